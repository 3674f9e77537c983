"""State tracking: is the running product right at every position, at which length, at what cost."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Integer

from implicit_models.bars import bar
from implicit_models.equilibrium.phase import Phase, SearchSettings
from implicit_models.evaluation import metrics
from implicit_models.evaluation.contraction import spectral_radii
from implicit_models.evaluation.prediction import Predictions, predict
from implicit_models.language_models.forward import is_implicit
from implicit_models.language_models.labelled import LAST_TOKENS, Sequences
from implicit_models.language_models.language_model import LanguageModel, num_parameters
from implicit_models.language_models.phases import search_settings
from implicit_models.problems.word_problem.parameters import WordProblemEvaluationParameters


@dataclass(frozen=True, kw_only=True)
class ModeResult:
    """Some of the sequences read in one mode.

    Attributes
    ----------
    window_match
        Share of positions at which it predicts what the window did reading all sequences.
    self_iterations, evaluations_per_token
        As in `LengthResult`.
    relative_residual, share_converged
        Residuals, and share that reached the tolerance: of the sequences in the simultaneous mode,
        of the tokens in the others.
    seconds
        Wall time.
    """

    accuracy: float
    accuracy_last_10: float
    window_match: float
    self_iterations: dict[str, float | None]
    evaluations_per_token: dict[str, float | None]
    relative_residual: dict[str, float | None]
    share_converged: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class ModeComparison:
    """The sliding window, the simultaneous and the sequential mode on the same sequences.

    Attributes
    ----------
    num_sequences
        Sequences read: the first ones of the split.
    token_match
        Share of positions at which the last two predict the same label.
    """

    num_sequences: int
    token_match: float
    window: ModeResult
    simultaneous: ModeResult
    sequential: ModeResult


@dataclass(frozen=True, kw_only=True)
class LengthResult:
    """One model at one length, read with the search of the parameters.

    Attributes
    ----------
    num_sequences
        Sequences read.
    chance, chance_last_10
        The two accuracies of always naming the label that is most frequent among those scored.
    by_position
        Accuracy at each position.
    self_iterations
        Evaluations of the cell that follow one another, for each sequence, the one that gives the
        output included; None for an explicit model, like the next four.
    evaluations_per_token
        Tokens computed in them over the tokens of the sequence, for each sequence.
    relative_residual
        Relative residual of each token at its search's last evaluation.
    share_converged
        Share of the tokens that reached the tolerance.
    modes
        All modes on the first sequences; None where they were left out.
    flops, seconds
        Of reading all sequences, and its wall time.
    """

    num_sequences: int
    accuracy: float
    accuracy_last_10: float
    chance: float
    chance_last_10: float
    by_position: Float[np.ndarray, " L"]
    self_iterations: dict[str, float | None] | None
    evaluations_per_token: dict[str, float | None] | None
    relative_residual: dict[str, float | None] | None
    share_converged: float | None
    modes: ModeComparison | None
    flops: float
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
    lengths
        The result at each length.
    spectral_radius, spectral_radius_damped
        Of the cell's Jacobian, and of the damped iteration's, at the fixed points of the
        sequences that the modes are compared on: of the shortest length alone, since it takes a
        walk token by token.
    """

    kind: str
    num_parameters: int
    lengths: dict[int, LengthResult]
    spectral_radius: dict[int, dict[str, float | None]]
    spectral_radius_damped: dict[int, dict[str, float | None]]

    def metrics(self) -> dict[str, object]:
        """Return the content of ``evaluation.json``; lengths are keys, strings as JSON has them."""
        implicit = {n: r for n, r in self.lengths.items() if r.self_iterations is not None}
        compared = {n: r.modes for n, r in self.lengths.items() if r.modes is not None}
        return {
            "data": "word_problem",
            "kind": self.kind,
            "num_parameters": self.num_parameters,
            "chance": {
                "accuracy": {str(n): r.chance for n, r in self.lengths.items()},
                "accuracy_last_10": {str(n): r.chance_last_10 for n, r in self.lengths.items()},
            },
            "accuracy": {str(n): r.accuracy for n, r in self.lengths.items()},
            "accuracy_last_10": {str(n): r.accuracy_last_10 for n, r in self.lengths.items()},
            "self_iterations": {str(n): r.self_iterations for n, r in implicit.items()},
            "evaluations_per_token": {str(n): r.evaluations_per_token for n, r in implicit.items()},
            "relative_residual": {str(n): r.relative_residual for n, r in implicit.items()},
            "share_converged": {str(n): r.share_converged for n, r in implicit.items()},
            "modes": {str(n): dataclasses.asdict(r) for n, r in compared.items()},
            "mode_token_match": _token_match(compared),
            "spectral_radius": {str(n): found for n, found in self.spectral_radius.items()},
            "spectral_radius_damped": {
                str(n): found for n, found in self.spectral_radius_damped.items()
            },
            "num_sequences": {str(n): r.num_sequences for n, r in self.lengths.items()},
            "seconds": {str(n): r.seconds for n, r in self.lengths.items()},
        }

    def position_rows(self) -> list[dict[str, object]]:
        """Return the rows of ``evaluation_by_position.csv``; positions count from 1."""
        return [
            {"length": length, "position": position, "accuracy": float(accuracy)}
            for length, result in self.lengths.items()
            for position, accuracy in enumerate(result.by_position, start=1)
        ]


def evaluate_state_tracking(
    model: LanguageModel,
    splits: Mapping[int, Sequences],
    parameters: WordProblemEvaluationParameters,
) -> StateTrackingResult:
    """Evaluate a model on word problems of several lengths.

    An implicit model reads all sequences with the search of the parameters, and where that is
    through a window, a few once more in every mode. An explicit model knows no modes.

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
    taken = {length: _take(splits, length, parameters) for length in parameters.lengths}
    search = search_settings(parameters, model.config) if is_implicit(model) else None
    results = {}
    with bar(len(taken), "evaluation", "length") as counted:
        for length, sequences in taken.items():
            results[length] = _evaluate_length(model, *sequences, search, parameters)
            counted.update()
        plain, damped = _spectral_radii(model, taken[min(taken)][0], search, parameters)
    return StateTrackingResult(
        kind="implicit" if is_implicit(model) else "explicit",
        num_parameters=num_parameters(model),
        lengths=results,
        spectral_radius=plain,
        spectral_radius_damped=damped,
    )


def _take(
    splits: Mapping[int, Sequences], length: int, parameters: WordProblemEvaluationParameters
) -> tuple[np.ndarray, np.ndarray]:
    if length not in splits:
        raise ValueError(
            f"there are no test sequences of length {length}; the data has "
            f"{sorted(splits)}: change evaluation.word_problem.lengths or the dataset's "
            "test.lengths"
        )
    inputs, labels = splits[length].inputs, splits[length].labels
    asked = parameters.num_sequences_of(length)
    if len(inputs) < asked:
        raise ValueError(
            f"evaluation.word_problem.num_sequences = {asked}, but the data has only "
            f"{len(inputs)} test sequences of length {length}: lower it, or raise the "
            "dataset's test.num_sequences"
        )
    return inputs[:asked], labels[:asked]


def _evaluate_length(
    model: LanguageModel,
    inputs: Integer[np.ndarray, "N L"],
    labels: Integer[np.ndarray, "N L"],
    settings: SearchSettings | None,
    parameters: WordProblemEvaluationParameters,
) -> LengthResult:
    predictions = predict(
        model,
        inputs,
        phase=None if settings is None else settings.phase(),
        batch_size=parameters.batch_size,
        description=f"length {inputs.shape[1]}",
    )
    modes = None
    if settings is not None and settings.window is not None and parameters.num_mode_sequences:
        modes = _compare_modes(model, inputs, labels, predictions, settings, parameters)
    search = predictions.search
    return LengthResult(
        num_sequences=len(inputs),
        accuracy=metrics.accuracy(predictions.labels, labels),
        accuracy_last_10=metrics.accuracy(predictions.labels, labels, LAST_TOKENS),
        chance=metrics.chance(labels),
        chance_last_10=metrics.chance(labels, LAST_TOKENS),
        by_position=metrics.accuracy_by_position(predictions.labels, labels),
        self_iterations=metrics.spread(search.self_iterations) if search else None,
        evaluations_per_token=metrics.spread(search.evaluations_per_token) if search else None,
        relative_residual=metrics.distribution(search.residual) if search else None,
        share_converged=metrics.share(search.converged) if search else None,
        modes=modes,
        flops=predictions.flops,
        seconds=predictions.seconds,
    )


def _compare_modes(
    model: LanguageModel,
    inputs: Integer[np.ndarray, "N L"],
    labels: Integer[np.ndarray, "N L"],
    windowed: Predictions,
    settings: SearchSettings,
    parameters: WordProblemEvaluationParameters,
) -> ModeComparison:
    count = min(parameters.num_mode_sequences, len(inputs))

    def read(mode: str, phase: Phase) -> Predictions:
        return predict(
            model,
            inputs[:count],
            phase=phase,
            batch_size=parameters.batch_size,
            description=f"length {inputs.shape[1]}, {mode}",
        )

    def judge(predictions: Predictions) -> ModeResult:
        search = predictions.search
        assert search is not None
        return ModeResult(
            accuracy=metrics.accuracy(predictions.labels, labels[:count]),
            accuracy_last_10=metrics.accuracy(predictions.labels, labels[:count], LAST_TOKENS),
            window_match=metrics.accuracy(predictions.labels, windowed.labels[:count]),
            self_iterations=metrics.spread(search.self_iterations),
            evaluations_per_token=metrics.spread(search.evaluations_per_token),
            relative_residual=metrics.distribution(search.residual),
            share_converged=metrics.share(search.converged),
            seconds=predictions.seconds,
        )

    window = read("window", settings.phase())
    sequential = read("sequential", replace(settings, window=1).phase())
    assert sequential.search is not None
    # A whole sequence may take as many iterations as its tokens took one after another.
    depth = int(sequential.search.self_iterations.max())
    whole = replace(settings, window=None, patience=None, max_steps=depth)
    simultaneous = read("simultaneous", whole.phase())
    return ModeComparison(
        num_sequences=count,
        token_match=metrics.accuracy(sequential.labels, simultaneous.labels),
        window=judge(window),
        simultaneous=judge(simultaneous),
        sequential=judge(sequential),
    )


def _spectral_radii(
    model: LanguageModel,
    inputs: Integer[np.ndarray, "N L"],
    settings: SearchSettings | None,
    parameters: WordProblemEvaluationParameters,
) -> tuple[dict[int, dict[str, float | None]], dict[int, dict[str, float | None]]]:
    """Return the spectral radii of the plain and of the damped iteration, by length."""
    count = parameters.num_mode_sequences
    if not is_implicit(model) or settings is None or not count:
        return {}, {}
    plain, damped = spectral_radii(
        model,
        inputs[:count],
        phase=settings.phase(),
        batch_size=parameters.batch_size,
        dampings=(1.0, settings.damping),
    )
    length = inputs.shape[1]
    return {length: metrics.distribution(plain)}, {length: metrics.distribution(damped)}


def _token_match(results: Mapping[int, ModeComparison]) -> float | None:
    """Average over all tokens of all lengths."""
    tokens = {length: length * result.num_sequences for length, result in results.items()}
    if not tokens:
        return None
    matched = sum(result.token_match * tokens[length] for length, result in results.items())
    return matched / sum(tokens.values())
