"""The parameters that the stages which test trained models share."""

from collections.abc import Iterable, Mapping
from typing import Any

from implicit_models.data.parameters import CorpusParameters, DatasetParameters
from implicit_models.evaluation.parameters import EvaluationParameters, SweepParameters
from implicit_models.parameters import ParameterError, read_section
from stages.common import DataParameters

_SECTIONS = {"evaluation": EvaluationParameters, "sweep": SweepParameters}


def read_part(section: str, data: DataParameters) -> Any:
    """Read the part of ``evaluation`` or ``sweep`` that is about this kind of data.

    Raises
    ------
    ParameterError
        Where params.yaml has no such part.
    """
    part = "text" if isinstance(data, CorpusParameters) else "word_problem"
    found = getattr(read_section(section, _SECTIONS[section]), part)
    if found is None:
        raise ParameterError(
            f"params.yaml: {section}.{part} is missing; a model of this kind of data is tested as "
            "it says"
        )
    return found


def check_test_splits(
    section: str, lengths: Iterable[int], num_sequences: int, name: str, dataset: DatasetParameters
) -> None:
    """Check that a data set has the test sequences that a section asks for."""
    test = dataset.test
    for length in lengths:
        if length not in test.lengths:
            raise ParameterError(
                f"{section} asks for test sequences of length {length}; allowed is one of "
                f"datasets.{name}.test.lengths, {list(test.lengths)}"
            )
    if num_sequences > test.num_sequences:
        raise ParameterError(
            f"{section}.num_sequences = {num_sequences} is not allowed; allowed is at most "
            f"datasets.{name}.test.num_sequences, {test.num_sequences}"
        )


def headline(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Give the few metrics that fit a table of experiments."""
    if metrics["data"] == "text":
        perplexity = metrics["perplexity"]
        found = {name: perplexity[name] for name in ("perplexity", "bits_per_byte")}
        found["length_extrapolation"] = {
            length: each["perplexity"] for length, each in metrics["length_extrapolation"].items()
        }
        if metrics["kind"] == "implicit":
            found["evaluations_per_token"] = metrics["evaluations_per_token"]
        return found
    found = {"accuracy_last_10": metrics["accuracy_last_10"]}
    if metrics["kind"] == "implicit":
        for name in ("self_iterations", "evaluations_per_token"):
            found[name] = {length: each["mean"] for length, each in metrics[name].items()}
        found["mode_token_match"] = metrics["mode_token_match"]
    return found


def score(metrics: Mapping[str, Any]) -> tuple[str, float, bool]:
    """Choose what final models of one data set are ranked by.

    Returns
    -------
    tuple[str, float, bool]
        The tracked metric, its value, and whether higher is better: the perplexity of a model of
        text, and of a word problem's the accuracy of the last answers to the longest sequences.
    """
    if metrics["data"] == "text":
        return "evaluation.perplexity.perplexity", metrics["perplexity"]["perplexity"], False
    accuracy = metrics["accuracy_last_10"]
    longest = max(accuracy, key=int)
    return f"evaluation.accuracy_last_10.{longest}", accuracy[longest], True
