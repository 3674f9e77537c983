"""The parameters of word problems: entries of ``datasets``, and how models of them are tested."""

import math
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from implicit_models.language_models.parameters import (
    STATE_SEARCH,
    SearchParameters,
    SweepParameters,
)
from implicit_models.parameters import Distinct, ParameterError, Parameters, first_of
from implicit_models.problems.tested_apart import TestedApart


class SplitParameters(Parameters):
    """A split of sequences of one length.

    Attributes
    ----------
    num_sequences
        How many sequences.
    length
        Tokens of each.
    """

    num_sequences: int = Field(ge=1)
    length: int = Field(ge=1)


def _sequences_within(num_sequences: int, max_tokens: int | None, length: int) -> int:
    """Return how many sequences of a length there are in so many tokens, one at least."""
    if max_tokens is None:
        return num_sequences
    return min(num_sequences, max(1, max_tokens // length))


class TestParameters(Parameters):
    """Test splits, one for each length.

    Attributes
    ----------
    num_sequences
        Number of sequences of each length.
    max_tokens
        The most tokens of all sequences of one length: of a long one there are fewer sequences, one
        at least. Null is no limit.
    lengths
        Tokens of the test sequences, a split for each.
    identity_probability
        Takes the place of the data set's own in the tests, so that a model can be tested on more
        or fewer hard tokens than it was trained on; null is the data set's own.
    further_identity_probabilities
        Further tests of the same lengths, with these probabilities. What a model has solved, and
        its sweep, are of the first test. Null is none.
    """

    __test__ = False  # not a test case, whatever its name

    num_sequences: int = Field(ge=1)
    max_tokens: int | None = Field(default=None, ge=1)
    lengths: Distinct[Annotated[int, Field(ge=1)]]
    identity_probability: float | None = Field(default=None, ge=0.0, le=1.0)
    further_identity_probabilities: Distinct[Annotated[float, Field(ge=0.0, le=1.0)]] | None = None

    def num_sequences_of(self, length: int) -> int:
        """Return the number of sequences of a length."""
        return _sequences_within(self.num_sequences, self.max_tokens, length)


class WordProblemParameters(Parameters):
    """A word problem: inputs are elements of a group, labels their prefix products.

    Attributes
    ----------
    group
        ``S5``, ``A5``, ``Z60``, ``D5``, ``PSL(2, 7)``, generators in cycle notation,
        ``<(1 2 3 4 5), (1 2)>``, the monoid ``M``, or a direct product such as ``A5 x M``.
    identity_probability
        Probability with which the group part of a token is set to the identity; otherwise it is
        uniform over the whole group, the identity included. 0 is the plain word problem.
    monoid_sampling
        How factors that are monoids are drawn. ``uniform`` is the paper's: in ``A5 x M`` the
        monoid is then absorbed within about ten tokens and nearly constant from there on.
        ``informative`` draws the identity of the monoid except at two tokens of a sequence on
        average, so that its state changes all along.
    seed
        Decides all sequences.
    train, validation, test
        The splits, which share no sequence.
    """

    kind: Literal["word_problem"]
    group: str
    identity_probability: float = Field(default=0.0, ge=0.0, le=1.0)
    monoid_sampling: Literal["uniform", "informative"] = "uniform"
    seed: int = Field(ge=0, lt=2**64)
    train: SplitParameters
    validation: SplitParameters
    test: TestParameters

    @property
    def tested_probabilities(self) -> tuple[float, ...]:
        """The probability of the identity in each test, the first and further ones."""
        first, further = self.test.identity_probability, self.test.further_identity_probabilities
        return (self.identity_probability if first is None else first, *(further or ()))

    def check(self) -> None:
        """Check the name of the group, that the monoid sampling has an effect, and the tests."""
        # Here, for groups need numpy, and a wrong key is to be answered without waiting for it.
        from implicit_models.problems.word_problem.data import groups

        try:
            factors = groups.parse(self.group)
        except ValueError as error:
            raise ParameterError(f"group = {error}") from None
        if self.monoid_sampling != "uniform" and all(factor.is_group for factor in factors):
            raise ParameterError(
                f"monoid_sampling = {self.monoid_sampling!r} is not allowed; {self.group} has no "
                "monoid factor, so only 'uniform' is"
            )
        first = self.tested_probabilities[0]
        further = list(self.test.further_identity_probabilities or ())
        if first in further:
            raise ParameterError(
                f"test.further_identity_probabilities = {further} is not allowed; {first} is the "
                "first test's (test.identity_probability, or the training's), and each may be "
                "tested only once"
            )
        if not any(factor.is_group for factor in factors):
            for name, value in (
                ("identity_probability", self.identity_probability),
                ("test.identity_probability", self.test.identity_probability),
                ("test.further_identity_probabilities", further),
            ):
                if value:
                    raise ParameterError(
                        f"{name} = {value} is not allowed; {self.group} has no factor that is a "
                        "group, so only 0 is"
                    )


class WordProblemEvaluationParameters(SearchParameters):
    """How trained models are evaluated on word problems.

    Attributes
    ----------
    lengths
        Lengths of the test sequences.
    num_sequences
        Test sequences read at each length, through the sliding window.
    max_tokens
        The most tokens read at a length: of a long one fewer sequences, one at least. Null is no
        limit.
    num_mode_sequences
        The first so many of them, or all where there are fewer, are read once more in every mode
        (window, simultaneous, sequential) and compared; the spectral radius is that of the shortest
        of them. 0 leaves both out.
    num_past_sequences
        Sequences as long as those trained on that are drawn to see what the state keeps of its
        past: pairs of them with one product go on with the same tokens
        (`evaluation.pasts.past_distance`). 0 leaves it out, as do models whose state grows.
    batch_size
        Sequences searched together; it changes the time and the memory, never a prediction.
    solver, best_so_far, damping, window, patience, tolerance, max_steps
        As in `SearchParameters`; left out, a window of 8 tokens, a patience of 12, a tolerance of
        0.01 and 64 steps. The patience is that of the sequential mode too. The evaluation that
        gives the output comes on top of the steps. The simultaneous mode, which gives up whole
        sequences, may take as many as the sequential mode took for its slowest one. A model whose
        search knows no window has no modes.
    """

    suitable = {**STATE_SEARCH, "tolerance": 0.01}

    lengths: Distinct[Annotated[int, Field(ge=1)]]
    num_sequences: int = Field(ge=1)
    max_tokens: int | None = Field(default=None, ge=1)
    num_mode_sequences: int = Field(ge=0)
    num_past_sequences: int = Field(default=128, ge=0)
    batch_size: int = Field(default=64, ge=1)

    def check(self) -> None:
        """Check the keys against each other."""
        super().check()
        self.check_at_most("num_mode_sequences", "num_sequences")

    def num_sequences_of(self, length: int) -> int:
        """Return the number of sequences that are read at a length."""
        return _sequences_within(self.num_sequences, self.max_tokens, length)


class WordProblemSweepParameters(SweepParameters):
    """How accuracy is measured against the computation allowed at test time."""

    suitable = STATE_SEARCH

    batch_size: int = Field(default=64, ge=1)


SCHEMAS = {"datasets": WordProblemParameters}
IS_TEXT = False
EVALUATION = WordProblemEvaluationParameters
SWEEP = WordProblemSweepParameters
ENTRIES: dict[str, type[TestedApart]] = {}


def check_entry(key: str, data: WordProblemParameters) -> None:
    """See that an entry can be prepared: it needs nothing from elsewhere."""


def check_training(key: str, data: WordProblemParameters) -> tuple[int, str]:
    """Return the length of the training sequences, and the key that says so."""
    return data.train.length, f"{key}.train.length"


def check_carry(key: str, data: WordProblemParameters, shortest: int) -> None:
    """Accept all: any sequence goes on from any other, and its labels from their product."""


def num_sequences(data: WordProblemParameters, split: str) -> tuple[int, str]:
    """Return how many sequences a split will have, and the key that says so."""
    return getattr(data, split).num_sequences, f"{split}.num_sequences"


def check_evaluation(
    key: str,
    data: WordProblemParameters,
    parameters: WordProblemEvaluationParameters,
    where: str = "evaluation.word_problem",
) -> None:
    """See that there are the test sequences that the section ``evaluation`` asks for."""
    asked = {length: parameters.num_sequences_of(length) for length in parameters.lengths}
    _check_tests(where, parameters.num_sequences, asked, key, data)


def check_sweep(
    key: str,
    data: WordProblemParameters,
    parameters: WordProblemSweepParameters,
    where: str = "sweep.word_problem",
) -> None:
    """See that there are the test sequences that the section ``sweep`` asks for."""
    asked = {parameters.length: parameters.num_sequences}
    _check_tests(where, parameters.num_sequences, asked, key, data)


def vocabulary_size(data: WordProblemParameters) -> int:
    """Return the number of elements of the group."""
    from implicit_models.problems.word_problem.data import groups

    return math.prod(factor.size for factor in groups.parse(data.group))


def _check_tests(
    where: str,
    num_sequences: int,
    asked: Mapping[int, int],
    key: str,
    data: WordProblemParameters,
) -> None:
    test = data.test
    found = [
        ParameterError(
            f"{where} asks for test sequences of length {length}; allowed is one of "
            f"{key}.test.lengths, {list(test.lengths)}"
        )
        for length in asked
        if length not in test.lengths
    ]
    lacking = {
        length: count
        for length, count in asked.items()
        if length in test.lengths and count > test.num_sequences_of(length)
    }
    if lacking and num_sequences > test.num_sequences:
        found.append(
            ParameterError(
                f"{where}.num_sequences = {num_sequences} is not allowed; allowed is at most "
                f"{key}.test.num_sequences, {test.num_sequences}"
            )
        )
    else:
        found += [
            ParameterError(
                f"{where}.num_sequences asks for {count} test sequences of length {length}; "
                f"allowed is at most {test.num_sequences_of(length)}, as many as {key}.test has "
                f"within its max_tokens, {test.max_tokens}"
            )
            for length, count in lacking.items()
        ]
    if found:
        raise first_of(found)
