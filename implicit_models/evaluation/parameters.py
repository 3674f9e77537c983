"""The sections ``evaluation`` and ``sweep`` of params.yaml."""

from dataclasses import dataclass

from implicit_models.parameters import check_at_most, setting, validate


@dataclass(frozen=True, kw_only=True)
class EvaluationParameters:
    """How trained models are evaluated on word problems.

    Attributes
    ----------
    lengths
        Lengths of the test sequences.
    num_sequences
        Test sequences read at each length, through the sliding window.
    num_mode_sequences
        The first so many of them are read once more in every mode (window, simultaneous,
        sequential) and compared; the spectral radius is that of the shortest of them. 0 leaves
        both out.
    batch_size
        Sequences searched together; it changes the time and the memory, never a prediction.
    window
        Tokens that are searched together.
    patience
        Evaluations in a row whose residual must be below the tolerance before a token counts as
        converged, but at a sequence's end; in the sequential mode too.
    tolerance
        Relative residual at which a token has converged; in the simultaneous mode that of a
        sequence's worst token.
    max_steps
        Evaluations of the cell after which a token is given up, counted from when all tokens
        before it have ended. The evaluation that gives the output comes on top. The simultaneous
        mode, which gives up whole sequences, may take as many as the sequential mode took for its
        slowest one.
    damping
        Of the search; use the one the model was trained with.
    """

    lengths: tuple[int, ...] = setting(minimum=1, distinct=True)
    num_sequences: int = setting(minimum=1)
    num_mode_sequences: int = setting(minimum=0)
    batch_size: int = setting(default=64, minimum=1)
    window: int = setting(default=20, minimum=1)
    patience: int = setting(default=12, minimum=1)
    tolerance: float = setting(above=0.0, below=1.0)
    max_steps: int = setting(minimum=1)
    damping: float = setting(above=0.0, below=2.0)

    def __post_init__(self) -> None:
        """Check every range, and the keys against each other."""
        validate(self)
        check_at_most(self, "num_mode_sequences", "num_sequences")
        check_at_most(self, "patience", "max_steps")


@dataclass(frozen=True, kw_only=True)
class SweepParameters:
    """How accuracy is measured against the computation allowed at test time.

    Attributes
    ----------
    length, num_sequences
        Which test sequences are read, and how many.
    batch_size
        Sequences searched together.
    self_iterations
        Numbers of self-iterations (evaluations of the cell, the one that gives the output
        included), each run to its end whatever the residual, over whole sequences.
    tolerances
        Relative residuals, each searched for through the sliding window.
    window, patience, max_steps
        Of the searches to a tolerance, as in `EvaluationParameters`; the sweep over
        self-iterations has no use for them.
    damping
        Of the search; use the one the model was trained with.
    """

    length: int = setting(minimum=1)
    num_sequences: int = setting(minimum=1)
    batch_size: int = setting(default=64, minimum=1)
    self_iterations: tuple[int, ...] = setting(minimum=1, distinct=True)
    tolerances: tuple[float, ...] = setting(above=0.0, below=1.0, distinct=True)
    window: int = setting(default=20, minimum=1)
    patience: int = setting(default=12, minimum=1)
    max_steps: int = setting(default=64, minimum=1)
    damping: float = setting(above=0.0, below=2.0)

    def __post_init__(self) -> None:
        """Check every range, and that a token may be evaluated often enough."""
        validate(self)
        check_at_most(self, "patience", "max_steps")
