"""The parameters of formal languages: entries of ``datasets``, and how models are tested."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from implicit_models.language_models.parameters import (
    STATE_SEARCH,
    SearchParameters,
    SweepParameters,
)
from implicit_models.parameters import Distinct, ParameterError, Parameters, first_of
from implicit_models.problems.formal_language.names import LanguageName
from implicit_models.problems.tested_apart import TestedApart

if TYPE_CHECKING:
    from implicit_models.problems.formal_language.data.language import Language

MOST_TOKENS = 2**24
"""Of one string."""

Probability = Annotated[float, Field(ge=0.0, lt=1.0)]

_OF_TESTS = {
    "ignore_probability": ("ignore_probabilities", "ignoring"),
    "ask_probability": ("ask_probabilities", "asking"),
}
"""Of each probability, where tests have their own, and what their names say of it."""


class StringsParameters(Parameters):
    """A split of strings, whose lengths are drawn uniformly.

    What a length counts: tokens; of ``reverse_string`` those of the string without its answer; of
    ``swapped_cups`` and ``variable_trace`` statements.

    Attributes
    ----------
    num_sequences
        How many strings.
    shortest
        The least that a length may be.
    longest
        The most.
    """

    num_sequences: int = Field(ge=1)
    shortest: int = Field(ge=1)
    longest: int = Field(ge=1, le=MOST_TOKENS)

    def check(self) -> None:
        """Check the lengths against each other."""
        self.check_at_most("shortest", "longest")


class TestStringsParameters(StringsParameters):
    """The strings that are tested on.

    Attributes
    ----------
    ignore_probabilities
        One test split for each, where the language has instructions to ignore; left out, there is
        one, as the training split.
    ask_probabilities
        The same, where the language has statements that ask.
    """

    __test__ = False  # not a test case, whatever its name

    ignore_probabilities: Distinct[Probability] | None = None
    ask_probabilities: Distinct[Probability] | None = None


class FormalLanguageParameters(Parameters):
    """Strings of a formal language; see `problems.formal_language.data.languages`.

    Attributes
    ----------
    language
        Its name.
    size
        The modulus, or the number of places, cups or variables, of the languages that have one.
    answers
        ``last``: a string is asked at its end. ``every``: at each of its prefixes, where a prefix
        has an answer too (regular languages). Others are asked where their strings say so.
    objective
        Which labels are learned: ``answers``, or ``all``: the next token at every place, where the
        answer is the next token.
    ignore_probability
        Of the instructions of a flip-flop.
    ask_probability
        Of the statements of ``swapped_cups`` and ``variable_trace``, whose answers are told; the
        last one asks always.
    seed
        Decides all strings.
    train, validation, test
        The splits.
    """

    kind: Literal["formal_language"]
    language: LanguageName
    size: int = Field(default=5, ge=2, le=26)
    answers: Literal["last", "every"] = "last"
    objective: Literal["answers", "all"] = "answers"
    ignore_probability: Probability = 0.8
    ask_probability: Probability = 0.25
    seed: int = Field(ge=0, lt=2**64)
    train: StringsParameters
    validation: StringsParameters
    test: TestStringsParameters

    @property
    def drawn(self) -> "Language":
        """The language itself, as the training split has it."""
        return self.drawn_with(self._probabilities)

    @property
    def _probabilities(self) -> dict[str, float]:
        return {key: getattr(self, key) for key in _OF_TESTS}

    def drawn_with(self, probabilities: Mapping[str, float]) -> "Language":
        """Return the language with the probabilities of a split."""
        # Here, for it needs numpy, and a wrong key is to be answered without waiting for it.
        from implicit_models.problems.formal_language.data.languages import language

        return language(self.language, self.size, **probabilities)

    @property
    def splits(self) -> dict[str, tuple[StringsParameters, dict[str, float]]]:
        """The splits by their names, and the probabilities of what is drawn, by their keys."""
        own = self._probabilities
        tests = {
            f"test_{name}_{100 * each:g}_percent": (self.test, {**own, key: each})
            for key, (_, name) in _OF_TESTS.items()
            for each in self._of_tests(key) or ()
        }
        learned = {"train": (self.train, own), "validation": (self.validation, own)}
        return {**learned, **(tests or {"test": (self.test, own)})}

    def _of_tests(self, key: str) -> tuple[float, ...] | None:
        return getattr(self.test, _OF_TESTS[key][0])

    @property
    def test_names(self) -> list[str]:
        """The names of the test splits."""
        return [name for name in self.splits if name.startswith("test")]

    def check(self) -> None:
        """Check that every key has an effect, and that strings can be as short as is asked for."""
        from implicit_models.problems.formal_language.data.languages import ASKING, IGNORING, SIZED

        drawn = self.drawn
        having = {"size": SIZED, "ignore_probability": IGNORING, "ask_probability": ASKING}
        found = [
            ParameterError(f"{key} is not allowed; {self.language} has none: leave it out")
            for key, languages in having.items()
            if key in self.model_fields_set and self.language not in languages
        ]
        for key, value, usual, is_allowed in (
            ("answers", self.answers, "last", drawn.is_prefix_closed),
            ("objective", self.objective, "answers", drawn.is_text),
        ):
            if value != usual and not is_allowed:
                found.append(
                    ParameterError(
                        f"{key} = {value!r} is not allowed; allowed is {usual!r} with "
                        f"{self.language}"
                    )
                )
        found += [
            ParameterError(f"test.{several} is not allowed; {self.language} has none: leave it out")
            for key, (several, _) in _OF_TESTS.items()
            if self._of_tests(key) is not None and self.language not in having[key]
        ]
        for name in ("train", "validation", "test"):
            shortest = getattr(self, name).shortest
            if shortest < drawn.shortest:
                found.append(
                    ParameterError(
                        f"{name}.shortest = {shortest} is not allowed; allowed is at least "
                        f"{drawn.shortest} with {self.language}"
                    )
                )
        for key, (several, _) in _OF_TESTS.items():
            given = list(self._of_tests(key) or ())
            if len({f"{100 * each:g}" for each in given}) < len(given):
                found.append(
                    ParameterError(
                        f"test.{several} = {given} is not allowed; allowed are numbers that "
                        "differ in six digits"
                    )
                )
        if found:
            raise first_of(found)


class FormalLanguageEvaluationParameters(SearchParameters):
    """How trained models are evaluated, on the validation strings and on those of each test.

    Attributes
    ----------
    num_sequences
        The most strings of a split that are read; null reads all.
    batch_size
        Strings searched together; it changes the time and the memory, never a prediction.
    solver, best_so_far, damping, window, patience, tolerance, max_steps
        As in `SearchParameters`; left out, as in evaluations of word problems: a window of 8
        tokens, a patience of 12, a tolerance of 0.01 and 64 steps.
    """

    suitable = {**STATE_SEARCH, "tolerance": 0.01}

    num_sequences: int | None = Field(default=None, ge=1)
    batch_size: int = Field(default=64, ge=1)


class FormalLanguageSweepParameters(SweepParameters):
    """How accuracy is measured against the computation allowed at test time.

    Attributes
    ----------
    length, num_sequences, batch_size, self_iterations, tolerances
        As in `SweepParameters`; the first so many validation strings whose length is ``length`` or
        less.
    solver, best_so_far, damping, window, patience, max_steps
        As in `SearchParameters`; left out, as in `FormalLanguageEvaluationParameters`.
    """

    suitable = STATE_SEARCH

    batch_size: int = Field(default=64, ge=1)


SCHEMAS = {"datasets": FormalLanguageParameters}
IS_TEXT = False
EVALUATION = FormalLanguageEvaluationParameters
SWEEP = FormalLanguageSweepParameters
ENTRIES: dict[str, type[TestedApart]] = {}


def check_entry(key: str, data: FormalLanguageParameters) -> None:
    """See that an entry can be prepared: it needs nothing from elsewhere."""


def check_training(key: str, data: FormalLanguageParameters) -> tuple[int, str]:
    """Return the most tokens of a training string, and the key that says so."""
    return data.drawn.most_tokens(data.train.longest), f"{key}.train.longest"


def check_carry(key: str, data: FormalLanguageParameters, shortest: int) -> None:
    """Refuse: each string is asked about by itself.

    Raises
    ------
    ParameterError
        Always.
    """
    raise ParameterError(
        f"carry = 'passed' is not allowed; allowed is 'reset': the strings of {key} stand alone"
    )


def num_sequences(data: FormalLanguageParameters, split: str) -> tuple[int, str]:
    """Return how many strings a split will have, and the key that says so."""
    return getattr(data, split).num_sequences, f"{split}.num_sequences"


def check_evaluation(
    key: str,
    data: FormalLanguageParameters,
    parameters: FormalLanguageEvaluationParameters,
    where: str = "evaluation.formal_language",
) -> None:
    """See that these strings can be evaluated on: they always can."""


def check_sweep(
    key: str,
    data: FormalLanguageParameters,
    parameters: FormalLanguageSweepParameters,
    where: str = "sweep.formal_language",
) -> None:
    """See that there are strings for a sweep to read.

    Raises
    ------
    ParameterError
        Where none is short enough, or there are fewer.
    """
    strings = data.validation
    if parameters.length < strings.shortest:
        raise ParameterError(
            f"{where}.length = {parameters.length} is not allowed; allowed is at least "
            f"{key}.validation.shortest, {strings.shortest}"
        )
    from implicit_models.problems.formal_language.data.writing import draw_lengths, split_generator

    lengths = draw_lengths(split_generator(data.seed, "validation"), strings)
    count = int((lengths <= parameters.length).sum())
    if parameters.num_sequences > count:
        raise ParameterError(
            f"{where}.num_sequences = {parameters.num_sequences} is not allowed; allowed is at "
            f"most {count}, the validation strings of {key} that are no longer than {where}.length"
        )


def vocabulary_size(data: FormalLanguageParameters) -> int:
    """Return the number of tokens of the language, answers included."""
    return len(data.drawn.tokens)
