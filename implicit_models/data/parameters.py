"""The parameters of data sets: entries of the table ``datasets``."""

from dataclasses import dataclass

from implicit_models.data import groups
from implicit_models.parameters import ParameterError, setting, validate


@dataclass(frozen=True, kw_only=True)
class SplitParameters:
    """A split of sequences of one length."""

    num_sequences: int = setting(minimum=1)
    length: int = setting(minimum=1)

    def __post_init__(self) -> None:
        """Check each key."""
        validate(self)


@dataclass(frozen=True, kw_only=True)
class TestParameters:
    """Test splits, one for each length.

    Attributes
    ----------
    num_sequences
        Number of sequences of each length.
    identity_probability
        Takes the place of the data set's own in the tests, so that a model can be tested on more
        or fewer hard tokens than it was trained on; null is the data set's own.
    """

    __test__ = False  # not a test case, whatever its name

    num_sequences: int = setting(minimum=1)
    lengths: tuple[int, ...] = setting(minimum=1, distinct=True)
    identity_probability: float | None = setting(default=None, minimum=0.0, maximum=1.0)

    def __post_init__(self) -> None:
        """Check each key."""
        validate(self)


@dataclass(frozen=True, kw_only=True)
class DatasetParameters:
    """A word problem: inputs are elements of a group, labels their prefix products.

    Attributes
    ----------
    group
        ``S5``, ``A5``, ``Z60``, the monoid ``M``, or a direct product such as ``A5 x M``.
    identity_probability
        Probability with which the group part of a token is set to the identity; otherwise it is
        uniform over the whole group, the identity included. 0 is the plain word problem.
    monoid_sampling
        How factors that are monoids are drawn. ``uniform`` is the paper's: in ``A5 x M`` the
        monoid is then absorbed within about ten tokens and nearly constant from there on.
        ``informative`` draws the identity of the monoid except at two tokens of a sequence on
        average, so that its state changes all along.
    """

    kind: str = setting(choices=("word_problem",))
    group: str = setting()
    identity_probability: float = setting(default=0.0, minimum=0.0, maximum=1.0)
    monoid_sampling: str = setting(default="uniform", choices=("uniform", "informative"))
    seed: int = setting(minimum=0)
    train: SplitParameters
    validation: SplitParameters
    test: TestParameters

    def __post_init__(self) -> None:
        """Check each key, the name of the group, and that the monoid sampling has an effect."""
        validate(self)
        try:
            factors = groups.parse(self.group)
        except ValueError as error:
            raise ParameterError(f"group = {error}") from None
        if self.monoid_sampling != "uniform" and all(factor.is_group for factor in factors):
            raise ParameterError(
                f"monoid_sampling = {self.monoid_sampling!r} is not allowed; {self.group} has no "
                "monoid factor, so only 'uniform' is"
            )
