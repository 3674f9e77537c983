"""Parameters of a problem from elsewhere: the parity of bits, asked for after each of them."""

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
        Of each split; an even number.
    length
        Bits of a sequence.
    seed
        The same seed draws the same bits.
    """

    kind: Literal["parity"]
    num_sequences: int = Field(ge=1)
    length: int = Field(ge=1)
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
        That of the data.
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
    if data.num_sequences % 2:
        raise ParameterError(f"{key}.num_sequences = {data.num_sequences} is not allowed; even is")


def check_training(key: str, data: ParityParameters) -> tuple[int, str]:
    return data.length, f"{key}.length"


def check_carry(key: str, data: ParityParameters, shortest: int) -> None:
    raise ParameterError(f"carry is not allowed: the sequences of {key} stand alone")


def num_sequences(data: ParityParameters, split: str) -> tuple[int, str]:
    return data.num_sequences, "num_sequences"


def check_evaluation(
    key: str, data: ParityParameters, parameters: Any, where: str = "evaluation.parity"
) -> None:
    if parameters.num_sequences > data.num_sequences:
        raise ParameterError(f"{where} asks for more than {key}.num_sequences")


def check_sweep(
    key: str, data: ParityParameters, parameters: Any, where: str = "sweep.parity"
) -> None:
    if parameters.length != data.length:
        raise ParameterError(f"{where}.length is not {key}.length, {data.length}")
    check_evaluation(key, data, parameters, where)


def vocabulary_size(data: ParityParameters) -> int:
    return 2
