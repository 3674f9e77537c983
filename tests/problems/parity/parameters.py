"""What stands in params.yaml of parities, which are asked for after each bit."""

from typing import Any, Literal

from pydantic import Field

from implicit_models.language_models.parameters import SearchParameters, SweepParameters
from implicit_models.parameters import ParameterError, Parameters
from implicit_models.problems.tested_apart import TestedApart


class ParityParameters(Parameters):
    """Random bits, in splits ``train``, ``validation`` and ``test``.

    Attributes
    ----------
    num_sequences
        Of each split.
    length
        Bits of a sequence that is trained on or validated with.
    test_length
        Bits of a sequence of the test.
    seed
        The same seed draws the same bits.
    """

    kind: Literal["parity"]
    num_sequences: int = Field(ge=1)
    length: int = Field(ge=2)
    test_length: int = Field(ge=2)
    seed: int = Field(ge=0)


class ParityEvaluationParameters(SearchParameters):
    """The test of a model.

    Attributes
    ----------
    num_sequences
        Sequences of the test split to read.
    """

    suitable = {"window": 8, "patience": 1}

    num_sequences: int = Field(ge=1)


class ParitySweepParameters(SweepParameters):
    """The test with more and fewer self-iterations.

    Attributes
    ----------
    length
        That of the test.
    num_sequences
        Sequences of the test split to read.
    batch_size
        Sequences read together.
    """

    suitable = {"window": 8, "patience": 1, "max_steps": 16}

    num_sequences: int = Field(default=8, ge=1)
    batch_size: int = Field(default=8, ge=1)


SCHEMAS = {"datasets": ParityParameters}
IS_TEXT = False
EVALUATION = ParityEvaluationParameters
SWEEP = ParitySweepParameters
ENTRIES: dict[str, type[TestedApart]] = {}


def check_entry(key: str, data: ParityParameters) -> None:
    """See that an entry can be prepared: here, that a test is no shorter than the training."""
    if data.test_length < data.length:
        raise ParameterError(
            f"{key}.test_length = {data.test_length} is not allowed; allowed is at least "
            f"{key}.length, {data.length}"
        )


def check_training(key: str, data: ParityParameters) -> tuple[int, str]:
    """Return how long the sequences are that are trained on, and the key that says so."""
    return data.length, f"{key}.length"


def check_carry(key: str, data: ParityParameters, shortest: int) -> None:
    """Refuse: no sequence goes on from another."""
    raise ParameterError(f"carry is not allowed: the sequences of {key} stand alone")


def num_sequences(data: ParityParameters, split: str) -> tuple[int, str]:
    """Return how many sequences a split has, and the key of it."""
    return data.num_sequences, "num_sequences"


def check_evaluation(
    key: str, data: ParityParameters, parameters: Any, where: str = "evaluation.parity"
) -> None:
    """See that there are as many sequences as an evaluation asks for."""
    if parameters.num_sequences > data.num_sequences:
        raise ParameterError(
            f"{where}.num_sequences = {parameters.num_sequences} is not allowed; allowed is at "
            f"most {key}.num_sequences, {data.num_sequences}"
        )


def check_sweep(
    key: str, data: ParityParameters, parameters: Any, where: str = "sweep.parity"
) -> None:
    """See that the data are as a sweep asks for them."""
    if parameters.length != data.test_length:
        raise ParameterError(
            f"{where}.length = {parameters.length} is not allowed; allowed is {key}.test_length, "
            f"{data.test_length}"
        )
    check_evaluation(key, data, parameters, where)


def vocabulary_size(data: ParityParameters) -> int:
    """Return the number of token ids."""
    return 2
