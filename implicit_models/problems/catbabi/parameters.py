"""The parameters of CatbAbI: entries of ``datasets`` and ``corpora``, and how models are tested."""

from typing import Annotated, Any, Literal

from pydantic import Field

from implicit_models.language_models.parameters import SearchParameters, SweepParameters
from implicit_models.parameters import Distinct, ParameterError, Parameters
from implicit_models.problems.tested_apart import TestedApart

TASKS = tuple(range(1, 21))
FILES = {"train": "train", "validation": "valid", "test": "test"}
"""The name of each split in those of bAbI's files."""


class CatbabiParameters(Parameters):
    """Stories of bAbI's tasks, all in one stream of words.

    Attributes
    ----------
    tasks
        Numbers of the tasks.
    objective
        Which tokens are learned: ``answers`` (the word after each "?"), or ``all``.
    sequence_length
        Tokens of a sequence that is trained on; where the carry is passed, the next one goes on.
    seed
        Of the order of the stories, and of the stories where they are generated.
    """

    kind: Literal["catbabi"]
    tasks: Distinct[Annotated[int, Field(ge=1, le=20)]] = TASKS
    objective: Literal["answers", "all"] = "answers"
    sequence_length: int = Field(ge=1)
    seed: int = Field(ge=0, lt=2**64)


class QuestionsParameters(Parameters):
    """About how many questions of each task a split has.

    Attributes
    ----------
    train, validation, test
        So many as whole stories make.
    """

    train: int = Field(ge=1)
    validation: int = Field(ge=1)
    test: int = Field(ge=1)


class GeneratedParameters(CatbabiParameters):
    """An entry of ``datasets``: stories in the style of bAbI's, from our own generator.

    Attributes
    ----------
    num_questions
        Of each task, by split; bAbI has 900, 100 and 1,000 of them, or 9,000, 1,000 and 1,000.
    """

    num_questions: QuestionsParameters


class FilesParameters(CatbabiParameters):
    """An entry of ``corpora``: the files of bAbI's release.

    Attributes
    ----------
    source
        A folder such as ``en-valid-10k``, with a file for each task and split.
    """

    source: str = Field(min_length=1)


_SEARCH = {"window": 32, "patience": 2, "tolerance": 0.03, "max_steps": 200}


class CatbabiEvaluationParameters(SearchParameters):
    """How trained models are evaluated on the stories of the test split.

    Attributes
    ----------
    num_streams
        The stories are read in so many streams side by side, each from its first story to its last.
    piece_length
        Tokens of a stream that are read at once.
    carry
        ``passed``: a stream is read as one text, whatever its length. ``reset``: the model forgets
        after every ``piece_length`` tokens, as one must that has no state or too few positions.
    num_stories
        The first so many stories; null reads all.
    solver, best_so_far, damping, window, patience, tolerance, max_steps
        As in `SearchParameters`; left out, a window of 32 tokens, a patience of 2, a tolerance of
        0.03 and 200 steps.
    """

    suitable = _SEARCH

    num_streams: int = Field(default=64, ge=1)
    piece_length: int = Field(default=200, ge=1)
    carry: Literal["passed", "reset"] = "passed"
    num_stories: int | None = Field(default=None, ge=1)


class CatbabiSweepParameters(SweepParameters):
    """How accuracy is measured against the computation allowed at test time.

    Each sequence begins with a story and is read from there, without what came before it.

    Attributes
    ----------
    length, num_sequences, batch_size, self_iterations, tolerances
        As in `SweepParameters`; so many sequences of the test split, side by side in its stream.
    solver, best_so_far, damping, window, patience, max_steps
        As in `SearchParameters`; left out, as in `CatbabiEvaluationParameters`.
    """

    suitable = {name: value for name, value in _SEARCH.items() if name != "tolerance"}


SCHEMAS = {"datasets": GeneratedParameters, "corpora": FilesParameters}
IS_TEXT = False
EVALUATION = CatbabiEvaluationParameters
SWEEP = CatbabiSweepParameters
ENTRIES: dict[str, type[TestedApart]] = {}


def check_entry(key: str, data: CatbabiParameters) -> None:
    """Accept what its class accepts."""


def check_training(key: str, data: CatbabiParameters) -> tuple[int, str]:
    """Return the length of the training sequences, and the key that says so."""
    return data.sequence_length, f"{key}.sequence_length"


def check_carry(key: str, data: CatbabiParameters, shortest: int) -> None:
    """See that sequences are not cut, so that each begins where the one before has ended.

    Raises
    ------
    ParameterError
        Where they are.
    """
    if shortest < data.sequence_length:
        raise ParameterError(
            f"carry = 'passed' is not allowed with lengths.minimum = {shortest}; allowed is "
            f"{key}.sequence_length, {data.sequence_length}: a stream goes on where sequences end"
        )


def num_sequences(data: CatbabiParameters, split: str) -> None:
    """Return None: how many there are is known once the stories are there."""


def check_evaluation(
    key: str,
    data: CatbabiParameters,
    parameters: CatbabiEvaluationParameters,
    where: str = "evaluation.catbabi",
) -> None:
    """See that there is a story for each stream of an evaluation.

    Raises
    ------
    ParameterError
        Where it has more streams than stories.
    """
    from implicit_models.problems.catbabi.amounts import stories_at_most

    asked, tested = parameters.num_stories, stories_at_most(data, "test")
    known = [(f"{where}.num_stories", asked), (f"the test stories of {key}", tested)]
    for name, number in known:
        if number is not None and parameters.num_streams > number:
            raise ParameterError(
                f"{where}.num_streams = {parameters.num_streams} is not allowed; allowed is at "
                f"most {name}, {number}: each stream reads a story at least"
            )


def check_sweep(
    key: str, data: CatbabiParameters, parameters: Any, where: str = "sweep.catbabi"
) -> None:
    """See that a sweep can be made: every sweep of these stories can."""


def vocabulary_size(data: CatbabiParameters) -> int:
    """Return the number of words, and of the two that are none.

    Raises
    ------
    ParameterError
        Of files, whose words are known once they have been read.
    """
    if isinstance(data, GeneratedParameters):
        from implicit_models.problems.catbabi.stories.words import WORDS

        return 2 + len(WORDS)
    raise ParameterError(
        "how many words the files have is known once they have been read; give a number: "
        "vocabulary=180"
    )
