"""Test-time compute: what a model gets right against the computation it is allowed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from implicit_models.equilibrium.phase import Phase, search_phase
from implicit_models.equilibrium.solvers import Picard
from implicit_models.equilibrium.stopping import FixedSteps
from implicit_models.equilibrium.window import Window
from implicit_models.evaluation import metrics
from implicit_models.evaluation.search import Search
from implicit_models.language_models.language_model import LanguageModel
from implicit_models.language_models.reading import is_implicit


class SweepParameters(Protocol):
    """What a sweep asks of its section of params.yaml, whatever the problem."""

    @property
    def length(self) -> int:
        """Tokens of the sequences that are read."""
        ...

    @property
    def self_iterations(self) -> tuple[int, ...]:
        """Numbers of self-iterations, each run to its end over whole sequences."""
        ...

    @property
    def tolerances(self) -> tuple[float, ...]:
        """Relative residuals that are searched for."""
        ...

    @property
    def window(self) -> int:
        """Tokens searched together on the way to a tolerance."""
        ...

    @property
    def patience(self) -> int:
        """Evaluations below a tolerance before a token counts as converged."""
        ...

    @property
    def max_steps(self) -> int:
        """Evaluations after which a token is given up."""
        ...

    @property
    def damping(self) -> float:
        """Of the search."""
        ...


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
    """

    scores: Mapping[str, float | None]
    search: Search
    flops: float
    seconds: float


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


def check_sweepable(model: LanguageModel) -> None:
    """Raise a ValueError for a model that has nothing to vary."""
    if not is_implicit(model):
        raise ValueError("an explicit model has no self-iterations to vary; sweep implicit runs")


def sweep(
    measure: Callable[[Phase, str], Measured],
    parameters: SweepParameters,
    *,
    num_sequences: int,
    windows: Mapping[str, Window | None] | None = None,
) -> SweepResult:
    """Measure against the allowed self-iterations, and against the tolerance in each mode.

    Every point is a reading of its own, so that its wall time is measured and not derived; with
    the allowed numbers doubling, all of them together cost twice the largest.

    Parameters
    ----------
    measure
        Reads the texts in a phase; it is told in words what that is.
    windows
        The modes of the search to a tolerance by name; None means the sliding window alone, which
        then needs no name.
    """
    sliding = Window(parameters.window, parameters.patience)
    modes = {None: sliding} if windows is None else windows
    simultaneous = None if windows is None else "simultaneous"
    solver = Picard(parameters.damping)

    def point(allowed: int | float, mode: str | None, phase: Phase, description: str) -> SweepPoint:
        measured = measure(phase, description)
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

    return SweepResult(
        length=parameters.length,
        num_sequences=num_sequences,
        self_iterations=tuple(
            point(
                number,
                simultaneous,
                Phase(solver, FixedSteps(number - 1), None),
                f"{number} self-iterations",
            )
            for number in parameters.self_iterations
        ),
        tolerance=tuple(
            point(
                tolerance,
                mode,
                search_phase(tolerance, parameters.max_steps, parameters.damping, window),
                " ".join(filter(None, (f"tolerance {tolerance:g}", mode))),
            )
            for tolerance in parameters.tolerances
            for mode, window in modes.items()
        ),
    )


def _mode(point: SweepPoint) -> dict[str, str]:
    return {} if point.mode is None else {"mode": point.mode}
