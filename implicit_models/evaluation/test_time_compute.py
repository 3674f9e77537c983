"""Test-time compute: what a model gets right against the computation it is allowed."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Integer

from implicit_models.equilibrium.iterate import find_fixed_point
from implicit_models.equilibrium.phase import Phase, search_phase
from implicit_models.equilibrium.solvers import Picard
from implicit_models.equilibrium.stopping import FixedSteps
from implicit_models.equilibrium.window import Window
from implicit_models.evaluation import metrics
from implicit_models.evaluation.parameters import SweepParameters
from implicit_models.evaluation.prediction import predict
from implicit_models.language_models.building import LanguageModel
from implicit_models.language_models.labelled import LAST_TOKENS, Sequences
from implicit_models.language_models.modelling import ImplicitForCausalLM
from implicit_models.language_models.reading import is_implicit


@dataclass(frozen=True, kw_only=True)
class SweepPoint:
    """What one allowance buys.

    Attributes
    ----------
    allowed
        The number of self-iterations, or the tolerance.
    relative_residual, relative_residual_p95
        Mean and 95th percentile of the relative residual at the searches' last evaluations, None
        where they made none: of the tokens in the window, of each sequence's worst token where
        self-iterations are allowed.
    share_converged
        Share of the tokens that reached the tolerance; 0 where there was none to reach.
    self_iterations
        Evaluations of the cell that follow one another, for each sequence, the one that gives the
        output included.
    evaluations_per_token
        Tokens computed in them over the tokens of the sequence, for each sequence.
    seconds
        Wall time.
    """

    allowed: int | float
    accuracy: float
    accuracy_last_10: float
    relative_residual: float | None
    relative_residual_p95: float | None
    share_converged: float
    self_iterations: dict[str, float | None]
    evaluations_per_token: dict[str, float | None]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class SweepResult:
    """Accuracy and cost against the allowed self-iterations and against the tolerance.

    Attributes
    ----------
    length, num_sequences
        What was read.
    self_iterations
        One point per number of self-iterations, all of them used on whole sequences: the last one
        gives the output, those before it are the search.
    tolerance
        One point per tolerance, searched for through the sliding window.
    """

    length: int
    num_sequences: int
    self_iterations: tuple[SweepPoint, ...]
    tolerance: tuple[SweepPoint, ...]

    def metrics(self) -> dict[str, Any]:
        """Give the content of ``test_time_compute.json``."""
        return {
            "length": self.length,
            "num_sequences": self.num_sequences,
            "self_iterations": [
                {
                    "self_iterations": point.allowed,
                    "accuracy": point.accuracy,
                    "accuracy_last_10": point.accuracy_last_10,
                    "relative_residual": point.relative_residual,
                    "relative_residual_p95": point.relative_residual_p95,
                    "seconds": point.seconds,
                }
                for point in self.self_iterations
            ],
            "tolerance": [
                {"tolerance": point.allowed, **_without_allowed(point)} for point in self.tolerance
            ],
        }

    def rows(self) -> list[dict[str, object]]:
        """Give the rows of ``test_time_compute.csv``, both sweeps under one set of columns."""
        sweeps = {"self_iterations": self.self_iterations, "tolerance": self.tolerance}
        return [
            {
                "sweep": sweep,
                "allowed": point.allowed,
                "accuracy": point.accuracy,
                "accuracy_last_10": point.accuracy_last_10,
                "relative_residual": point.relative_residual,
                "relative_residual_p95": point.relative_residual_p95,
                "self_iterations": point.self_iterations["mean"],
                "evaluations_per_token": point.evaluations_per_token["mean"],
                "seconds": point.seconds,
            }
            for sweep, points in sweeps.items()
            for point in points
        ]


def sweep_test_time_compute(
    model: LanguageModel,
    test: Sequences,
    parameters: SweepParameters,
) -> SweepResult:
    """Measure accuracy, residual and wall time against the allowed self-iterations and tolerance.

    Every point is a forward pass of its own, so that its wall time is measured and not derived;
    with the allowed numbers doubling, all of them together cost twice the largest.

    Raises
    ------
    ValueError
        Where the model is explicit or there are too few test sequences.
    """
    if not is_implicit(model):
        raise ValueError("an explicit model has no self-iterations to vary; sweep implicit runs")
    if len(test.inputs) < parameters.num_sequences:
        raise ValueError(
            f"sweep.num_sequences = {parameters.num_sequences}, but the data has only "
            f"{len(test.inputs)} test sequences of length {parameters.length}: lower it, or "
            "raise the dataset's test.num_sequences"
        )
    inputs = test.inputs[: parameters.num_sequences]
    labels = test.labels[: parameters.num_sequences]

    def measure(allowed: int | float, phase: Phase, description: str) -> SweepPoint:
        predictions = predict(
            model,
            inputs,
            phase=phase,
            batch_size=parameters.batch_size,
            description=description,
        )
        search = predictions.search
        assert search is not None
        residual = metrics.distribution(search.residual)
        return SweepPoint(
            allowed=allowed,
            accuracy=metrics.accuracy(predictions.labels, labels),
            accuracy_last_10=metrics.accuracy(predictions.labels, labels, LAST_TOKENS),
            relative_residual=residual["mean"],
            relative_residual_p95=residual["p95"],
            share_converged=metrics.share(search.converged),
            self_iterations=metrics.spread(search.self_iterations),
            evaluations_per_token=metrics.spread(search.evaluations_per_token),
            seconds=predictions.seconds,
        )

    solver = Picard(parameters.damping)
    window = Window(parameters.window, parameters.patience)
    return SweepResult(
        length=parameters.length,
        num_sequences=len(inputs),
        self_iterations=tuple(
            measure(
                number, Phase(solver, FixedSteps(number - 1), None), f"{number} self-iterations"
            )
            for number in parameters.self_iterations
        ),
        tolerance=tuple(
            measure(
                tolerance,
                search_phase(tolerance, parameters.max_steps, parameters.damping, window),
                f"tolerance {tolerance:g}",
            )
            for tolerance in parameters.tolerances
        ),
    )


@torch.inference_mode()
def trace_residual(
    model: ImplicitForCausalLM, tokens: Integer[np.ndarray, " L"], phase: Phase
) -> Float[np.ndarray, "S L"]:
    """Give the relative residual of every token of one sequence at each evaluation of a search.

    With a window a token that it has not reached yet is NaN, and one that it has left keeps its
    last residual.
    """
    device = next((tensor.device for tensor in model.parameters()), torch.device("cpu"))
    batch = torch.from_numpy(np.array(tokens, dtype=np.int64)[None]).to(device)
    cell, start = model.cell(batch)
    residuals: list[np.ndarray] = []

    def observe(step: int, residual: Float[torch.Tensor, "B L"]) -> None:
        residuals.append(residual[0].cpu().numpy())

    find_fixed_point(
        cell, start, phase.solver, phase.stopping, window=phase.window, observe=observe
    )
    return np.stack(residuals)


def _without_allowed(point: SweepPoint) -> dict[str, object]:
    values = dataclasses.asdict(point)
    del values["allowed"]
    return values
