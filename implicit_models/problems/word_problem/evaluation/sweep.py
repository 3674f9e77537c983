"""Test-time compute on word problems: accuracy against the computation that a model is allowed."""

from implicit_models.equilibrium.phase import Phase
from implicit_models.evaluation import metrics
from implicit_models.evaluation.prediction import predict
from implicit_models.evaluation.sweep import Measured, SweepResult, sweep
from implicit_models.language_models.labelled import LAST_TOKENS, Sequences
from implicit_models.language_models.language_model import LanguageModel
from implicit_models.problems.word_problem.parameters import WordProblemSweepParameters


def sweep_word_problem(
    model: LanguageModel,
    test: Sequences,
    parameters: WordProblemSweepParameters,
) -> SweepResult:
    """Measure a model's accuracy on word problems against its computation; see `sweep`.

    Raises
    ------
    ValueError
        Where the model is explicit or there are too few test sequences.
    """
    if len(test.inputs) < parameters.num_sequences:
        raise ValueError(
            f"sweep.word_problem.num_sequences = {parameters.num_sequences}, but the data has only "
            f"{len(test.inputs)} test sequences of length {parameters.length}: lower it, or "
            "raise the dataset's test.num_sequences"
        )
    inputs = test.inputs[: parameters.num_sequences]
    labels = test.labels[: parameters.num_sequences]

    def measure(phase: Phase, description: str) -> Measured:
        predictions = predict(
            model,
            inputs,
            phase=phase,
            batch_size=parameters.batch_size,
            description=description,
        )
        assert predictions.search is not None
        scores = {
            "accuracy": metrics.accuracy(predictions.labels, labels),
            "accuracy_last_10": metrics.accuracy(predictions.labels, labels, LAST_TOKENS),
        }
        return Measured(
            scores=scores,
            search=predictions.search,
            flops=predictions.flops,
            seconds=predictions.seconds,
        )

    return sweep(measure, parameters, model, num_sequences=len(inputs))
