"""Test-time compute: what a model gets right against the computation it is allowed."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Integer

from implicit_models.bars import bar
from implicit_models.equilibrium.phase import Phase
from implicit_models.evaluation import metrics
from implicit_models.evaluation.search import Search
from implicit_models.kernels.dispatch import kernels_for
from implicit_models.language_models.forward import is_implicit
from implicit_models.language_models.language_model import LanguageModel
from implicit_models.language_models.parameters import SweepParameters
from implicit_models.language_models.phases import search_modes, search_settings

_SIMULTANEOUS = "simultaneous"  # as `search_modes` names it


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What one way to search gives on the texts of a sweep.

    Attributes
    ----------
    scores
        How good the model is then, by any measures.
    search
        What that took.
    flops
        Of reading the texts.
    seconds
        Wall time.
    predictions
        The model's answer at every token, where modes are to be compared by them.
    """

    scores: Mapping[str, float | None]
    search: Search
    flops: float
    seconds: float
    predictions: Integer[np.ndarray, "..."] | None = None


@dataclass(frozen=True, kw_only=True)
class SweepPoint:
    """What one allowance buys.

    Attributes
    ----------
    allowed
        The number of self-iterations, or the tolerance.
    mode
        How the tokens are searched, where there are several modes; None where there is one.
    scores
        How good the model is then.
    token_match
        Share of the tokens that the simultaneous mode answers alike at the same tolerance; None of
        that mode itself, and where no modes are compared.
    relative_residual, relative_residual_p95
        Mean and 95th percentile of the relative residual at the searches' last evaluations, None
        where they made none: of the tokens in the window, of each sequence's worst token where
        whole sequences are searched.
    share_converged
        Share of the tokens, or sequences, that reached the tolerance; 0 where there was none to
        reach.
    self_iterations
        Evaluations of the cell that follow one another, for each sequence, the one that gives the
        output included.
    evaluations_per_token
        Tokens computed in them over the tokens of the sequence, for each sequence.
    flops
        Of reading all sequences.
    seconds
        Wall time.
    """

    allowed: int | float
    mode: str | None
    scores: Mapping[str, float | None]
    token_match: float | None = None
    relative_residual: float | None
    relative_residual_p95: float | None
    share_converged: float
    self_iterations: dict[str, float | None]
    evaluations_per_token: dict[str, float | None]
    flops: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class SweepResult:
    """Scores and cost against the allowed self-iterations and against the tolerance.

    Attributes
    ----------
    length, num_sequences
        What was read.
    self_iterations
        One point per number of self-iterations, all of them used on whole sequences: the last one
        gives the output, those before it are the search.
    tolerance
        One point per tolerance and mode.
    """

    length: int
    num_sequences: int
    self_iterations: tuple[SweepPoint, ...]
    tolerance: tuple[SweepPoint, ...]

    def metrics(self) -> dict[str, Any]:
        """Return the content of ``test_time_compute.json``."""
        return {
            "length": self.length,
            "num_sequences": self.num_sequences,
            "self_iterations": [
                {
                    "self_iterations": point.allowed,
                    **point.scores,
                    "relative_residual": point.relative_residual,
                    "relative_residual_p95": point.relative_residual_p95,
                    "flops": point.flops,
                    "seconds": point.seconds,
                }
                for point in self.self_iterations
            ],
            "tolerance": [
                {
                    "tolerance": point.allowed,
                    **_mode(point),
                    **point.scores,
                    "relative_residual": point.relative_residual,
                    "relative_residual_p95": point.relative_residual_p95,
                    "share_converged": point.share_converged,
                    "self_iterations": point.self_iterations,
                    "evaluations_per_token": point.evaluations_per_token,
                    "flops": point.flops,
                    "seconds": point.seconds,
                }
                for point in self.tolerance
            ],
        }

    def rows(self) -> list[dict[str, object]]:
        """Return the rows of ``test_time_compute.csv``, both sweeps under one set of columns."""
        sweeps = {"self_iterations": self.self_iterations, "tolerance": self.tolerance}
        return [
            {
                "sweep": sweep,
                "allowed": point.allowed,
                **_mode(point),
                **point.scores,
                "relative_residual": point.relative_residual,
                "relative_residual_p95": point.relative_residual_p95,
                "self_iterations": point.self_iterations["mean"],
                "evaluations_per_token": point.evaluations_per_token["mean"],
                "flops": point.flops,
                "seconds": point.seconds,
            }
            for sweep, points in sweeps.items()
            for point in points
        ]


def sweep(
    measure: Callable[[Phase, str], Measured],
    parameters: SweepParameters,
    model: LanguageModel,
    *,
    num_sequences: int,
    in_all_modes: bool = False,
) -> SweepResult:
    """Measure against the allowed self-iterations, and against the tolerance in each mode.

    Every point is a reading of its own, so that its wall time is measured and not derived; with
    the allowed numbers doubling, all of them together cost twice the largest.

    Parameters
    ----------
    measure
        Reads the texts in a phase; it is told in words what that is.
    in_all_modes
        Search to a tolerance in each of the `search_modes`, and not only as the parameters say,
        which then needs no name.

    Raises
    ------
    ValueError
        Where the model is explicit.
    """
    if not is_implicit(model):
        raise ValueError("an explicit model has no self-iterations to vary; sweep implicit runs")
    config = model.config
    simultaneous = _SIMULTANEOUS if in_all_modes else None

    def modes(tolerance: float) -> Mapping[str | None, Phase]:
        if in_all_modes:
            return {**search_modes(parameters, config, tolerance=tolerance)}
        return {None: search_settings(parameters, config, tolerance=tolerance).phase()}

    def fixed(number: int) -> Phase:
        return search_settings(
            parameters, config, tolerance=None, max_steps=number - 1, window=None
        ).phase()

    def point(allowed: int | float, mode: str | None, measured: Measured) -> SweepPoint:
        residual = metrics.distribution(measured.search.residual)
        return SweepPoint(
            allowed=allowed,
            mode=mode,
            scores=measured.scores,
            relative_residual=residual["mean"],
            relative_residual_p95=residual["p95"],
            share_converged=metrics.share(measured.search.converged),
            self_iterations=metrics.spread(measured.search.self_iterations),
            evaluations_per_token=metrics.spread(measured.search.evaluations_per_token),
            flops=measured.flops,
            seconds=measured.seconds,
        )

    wanted = [
        *(
            (number, simultaneous, fixed(number), f"{number} self-iterations")
            for number in parameters.self_iterations
        ),
        *(
            (tolerance, mode, phase, " ".join(filter(None, (f"tolerance {tolerance:g}", mode))))
            for tolerance in parameters.tolerances
            for mode, phase in modes(tolerance).items()
        ),
    ]
    found, answers, num_fixed = [], [], len(parameters.self_iterations)
    kernels_for(next(model.parameters()).device)  # compiled before anything is timed
    with bar(len(wanted), "sweep", "point") as counted:
        for allowed, mode, phase, description in wanted:
            measured = measure(phase, description)
            found.append(point(allowed, mode, measured))
            answers.append(measured.predictions if len(found) > num_fixed else None)
            counted.update()
    return SweepResult(
        length=parameters.length,
        num_sequences=num_sequences,
        self_iterations=tuple(found[:num_fixed]),
        tolerance=tuple(_compared(found[num_fixed:], answers[num_fixed:])),
    )


def _compared(
    points: Sequence[SweepPoint], answers: Sequence[Integer[np.ndarray, "..."] | None]
) -> Iterator[SweepPoint]:
    """Yield the points with the share of answers that the simultaneous mode gives as well."""
    whole = {
        point.allowed: found
        for point, found in zip(points, answers, strict=True)
        if point.mode == _SIMULTANEOUS and found is not None
    }
    for point, found in zip(points, answers, strict=True):
        if found is not None and point.mode not in {None, _SIMULTANEOUS}:
            point = replace(point, token_match=metrics.accuracy(found, whole[point.allowed]))
        yield point


def _mode(point: SweepPoint) -> dict[str, str | float | None]:
    """Return what there is only where modes are told apart."""
    if point.mode is None:
        return {}
    return {"mode": point.mode, "token_match": point.token_match}
