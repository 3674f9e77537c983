"""The sections ``evaluation`` and ``sweep`` of params.yaml."""

from dataclasses import dataclass

from implicit_models.parameters import ParameterError, setting, validate


@dataclass(frozen=True, kw_only=True)
class EvaluationParameters:
    """How trained models are evaluated on word problems.

    Attributes
    ----------
    lengths
        Lengths of the test sequences.
    num_sequences
        Test sequences read at each length, in the simultaneous mode.
    num_sequential_sequences
        The first so many of them are also read token by token and compared; 0 leaves the
        sequential mode out.
    batch_size
        Sequences searched together; it changes the time and the memory, never a result.
    tolerance
        Relative residual at which a sequence (a token, in the sequential mode) has converged.
    max_steps
        Evaluations of the cell after which a search is given up; the one that gives the output
        comes on top.
    damping
        Of the search; use the one the model was trained with.
    """

    lengths: tuple[int, ...] = setting(minimum=1, distinct=True)
    num_sequences: int = setting(minimum=1)
    num_sequential_sequences: int = setting(minimum=0)
    batch_size: int = setting(default=64, minimum=1)
    tolerance: float = setting(above=0.0, below=1.0)
    max_steps: int = setting(minimum=1)
    damping: float = setting(above=0.0, below=2.0)

    def __post_init__(self) -> None:
        """Check every range, and that no more sequences are read one by one than at all."""
        validate(self)
        if self.num_sequential_sequences > self.num_sequences:
            raise ParameterError(
                f"num_sequential_sequences = {self.num_sequential_sequences} is not allowed; "
                f"allowed is at most num_sequences, {self.num_sequences}"
            )


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
        included), each run to its end whatever the residual.
    tolerances
        Relative residuals, each searched for with at most ``max_steps`` evaluations.
    max_steps
        Evaluations of the cell after which a search to a tolerance is given up; the one that
        gives the output comes on top.
    damping
        Of the search; use the one the model was trained with.
    """

    length: int = setting(minimum=1)
    num_sequences: int = setting(minimum=1)
    batch_size: int = setting(default=64, minimum=1)
    self_iterations: tuple[int, ...] = setting(minimum=1, distinct=True)
    tolerances: tuple[float, ...] = setting(above=0.0, below=1.0, distinct=True)
    max_steps: int = setting(default=512, minimum=1)
    damping: float = setting(above=0.0, below=2.0)

    def __post_init__(self) -> None:
        """Check every range."""
        validate(self)
