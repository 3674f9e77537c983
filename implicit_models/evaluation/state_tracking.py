"""State tracking: is the running product right at every position, at which length, at what cost."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Integer

from implicit_models.equilibrium.phase import search_phase
from implicit_models.evaluation import metrics
from implicit_models.evaluation.parameters import EvaluationParameters
from implicit_models.evaluation.prediction import Predictions, predict, sequential
from implicit_models.language_models.building import LanguageModel, num_parameters
from implicit_models.language_models.labelled import LAST_TOKENS, Sequences


@dataclass(frozen=True, kw_only=True)
class SequentialResult:
    """The same sequences read token by token.

    Attributes
    ----------
    num_sequences
        Sequences read: the first ones of the split.
    token_match
        Share of positions at which both modes predict the same label.
    self_iterations
        Evaluations of the cell per token, the one that gives the output included.
    seconds
        Wall time.
    """

    num_sequences: int
    accuracy: float
    accuracy_last_10: float
    token_match: float
    self_iterations: dict[str, float | None]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class LengthResult:
    """One model at one length.

    Attributes
    ----------
    num_sequences
        Sequences read.
    by_position
        Accuracy at each position.
    self_iterations
        Evaluations of the cell per sequence, the one that gives the output included; None for an
        explicit model, like the next three.
    relative_residual
        Relative residual of each sequence's worst token at its search's last evaluation.
    share_converged
        Share of the sequences that reached the tolerance.
    sequential
        The sequential mode.
    seconds
        Wall time of the simultaneous mode.
    """

    num_sequences: int
    accuracy: float
    accuracy_last_10: float
    by_position: Float[np.ndarray, " L"]
    self_iterations: dict[str, float | None] | None
    relative_residual: dict[str, float | None] | None
    share_converged: float | None
    sequential: SequentialResult | None
    seconds: float


@dataclass(frozen=True, kw_only=True)
class StateTrackingResult:
    """One model at every length.

    Attributes
    ----------
    kind
        ``"implicit"`` or ``"explicit"``.
    num_parameters
        Trained numbers in the model, tied ones counted once.
    chance
        Accuracy of always naming the most frequent label of the test sequences.
    lengths
        The result at each length.
    """

    kind: str
    num_parameters: int
    chance: float
    lengths: dict[int, LengthResult]

    def metrics(self) -> dict[str, object]:
        """Give the content of ``evaluation.json``; lengths are keys, and text, as JSON has it."""
        implicit = {n: r for n, r in self.lengths.items() if r.self_iterations is not None}
        compared = {n: r.sequential for n, r in self.lengths.items() if r.sequential is not None}
        return {
            "kind": self.kind,
            "num_parameters": self.num_parameters,
            "chance": self.chance,
            "accuracy": {str(n): r.accuracy for n, r in self.lengths.items()},
            "accuracy_last_10": {str(n): r.accuracy_last_10 for n, r in self.lengths.items()},
            "self_iterations": {str(n): r.self_iterations for n, r in implicit.items()},
            "relative_residual": {str(n): r.relative_residual for n, r in implicit.items()},
            "share_converged": {str(n): r.share_converged for n, r in implicit.items()},
            "sequential": {str(n): dataclasses.asdict(r) for n, r in compared.items()},
            "mode_token_match": _token_match(compared),
            "num_sequences": {str(n): r.num_sequences for n, r in self.lengths.items()},
            "seconds": {str(n): r.seconds for n, r in self.lengths.items()},
        }

    def position_rows(self) -> list[dict[str, object]]:
        """Give the rows of ``evaluation_by_position.csv``; positions count from 1."""
        return [
            {"length": length, "position": position, "accuracy": float(accuracy)}
            for length, result in self.lengths.items()
            for position, accuracy in enumerate(result.by_position, start=1)
        ]


def evaluate_state_tracking(
    model: LanguageModel, splits: Mapping[int, Sequences], parameters: EvaluationParameters
) -> StateTrackingResult:
    """Evaluate a model on word problems of several lengths, in both modes.

    Explicit models have one mode, a single forward pass.

    Parameters
    ----------
    model
        What `serialisation.load_model` gives; it is neither changed nor moved.
    splits
        Test sequences by length; at least those of
        ``parameters.lengths``.

    Raises
    ------
    ValueError
        Where a length has no or too few test sequences.
    """
    results = {
        length: _evaluate_length(model, *_take(splits, length, parameters), parameters)
        for length in parameters.lengths
    }
    labels = [splits[length].labels[: parameters.num_sequences].ravel() for length in results]
    return StateTrackingResult(
        kind="implicit" if model.is_implicit else "explicit",
        num_parameters=num_parameters(model),
        chance=metrics.chance(np.concatenate(labels)),
        lengths=results,
    )


def _take(
    splits: Mapping[int, Sequences], length: int, parameters: EvaluationParameters
) -> tuple[np.ndarray, np.ndarray]:
    if length not in splits:
        raise ValueError(
            f"there are no test sequences of length {length}; the data has "
            f"{sorted(splits)}: change evaluation.lengths or the dataset's test.lengths"
        )
    inputs, labels = splits[length].inputs, splits[length].labels
    if len(inputs) < parameters.num_sequences:
        raise ValueError(
            f"evaluation.num_sequences = {parameters.num_sequences}, but the data has only "
            f"{len(inputs)} test sequences of length {length}: lower it, or raise the dataset's "
            "test.num_sequences"
        )
    return inputs[: parameters.num_sequences], labels[: parameters.num_sequences]


def _evaluate_length(
    model: LanguageModel,
    inputs: Integer[np.ndarray, "N L"],
    labels: Integer[np.ndarray, "N L"],
    parameters: EvaluationParameters,
) -> LengthResult:
    length = inputs.shape[1]
    phase = None
    if model.is_implicit:
        phase = search_phase(parameters.tolerance, parameters.max_steps, parameters.damping)
    together = predict(
        model,
        inputs,
        phase=phase,
        batch_size=parameters.batch_size,
        description=f"length {length}",
    )
    num_sequential = parameters.num_sequential_sequences
    one_by_one = None
    if phase is not None and num_sequential:
        one_by_one = predict(
            model,
            inputs[:num_sequential],
            phase=phase,
            batch_size=parameters.batch_size,
            read=sequential,
            description=f"length {length}, sequential",
        )
    search = together.search
    return LengthResult(
        num_sequences=len(inputs),
        accuracy=metrics.accuracy(together.labels, labels),
        accuracy_last_10=metrics.accuracy(together.labels, labels, LAST_TOKENS),
        by_position=metrics.accuracy_by_position(together.labels, labels),
        self_iterations=_spread(search.self_iterations) if search else None,
        relative_residual=metrics.distribution(search.residual) if search else None,
        share_converged=metrics.share(search.converged) if search else None,
        sequential=_compare(one_by_one, together, labels) if one_by_one else None,
        seconds=together.seconds,
    )


def _compare(
    one_by_one: Predictions, together: Predictions, labels: Integer[np.ndarray, "N L"]
) -> SequentialResult:
    assert one_by_one.search is not None
    count = len(one_by_one.labels)
    return SequentialResult(
        num_sequences=count,
        accuracy=metrics.accuracy(one_by_one.labels, labels[:count]),
        accuracy_last_10=metrics.accuracy(one_by_one.labels, labels[:count], LAST_TOKENS),
        token_match=metrics.accuracy(one_by_one.labels, together.labels[:count]),
        self_iterations=_spread(one_by_one.search.self_iterations),
        seconds=one_by_one.seconds,
    )


def _spread(counts: np.ndarray) -> dict[str, float | None]:
    return {name: metrics.distribution(counts)[name] for name in ("mean", "p50", "p95")}


def _token_match(results: Mapping[int, SequentialResult]) -> float | None:
    """Average over all tokens of all lengths."""
    tokens = {length: length * result.num_sequences for length, result in results.items()}
    if not tokens:
        return None
    matched = sum(result.token_match * tokens[length] for length, result in results.items())
    return matched / sum(tokens.values())
