"""The sections ``evaluation`` and ``sweep`` of params.yaml, each with a part per kind of data."""

from typing import Annotated

from pydantic import Field

from implicit_models.evaluation.downstream import Task
from implicit_models.parameters import Distinct, ParameterError, Parameters


class WordProblemEvaluationParameters(Parameters):
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

    lengths: Distinct[Annotated[int, Field(ge=1)]]
    num_sequences: int = Field(ge=1)
    num_mode_sequences: int = Field(ge=0)
    batch_size: int = Field(default=64, ge=1)
    window: int = Field(default=20, ge=1)
    patience: int = Field(default=12, ge=1)
    tolerance: float = Field(gt=0.0, lt=1.0)
    max_steps: int = Field(ge=1)
    damping: float = Field(gt=0.0, lt=2.0)

    def check(self) -> None:
        """Check the keys against each other."""
        self.check_at_most("num_mode_sequences", "num_sequences")
        self.check_at_most("patience", "max_steps")


class WordProblemSweepParameters(Parameters):
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
        Of the searches to a tolerance, as in `WordProblemEvaluationParameters`; the sweep over
        self-iterations has no use for them.
    damping
        Of the search; use the one the model was trained with.
    """

    length: int = Field(ge=1)
    num_sequences: int = Field(ge=1)
    batch_size: int = Field(default=64, ge=1)
    self_iterations: Distinct[Annotated[int, Field(ge=1)]]
    tolerances: Distinct[Annotated[float, Field(gt=0.0, lt=1.0)]]
    window: int = Field(default=20, ge=1)
    patience: int = Field(default=12, ge=1)
    max_steps: int = Field(default=64, ge=1)
    damping: float = Field(gt=0.0, lt=2.0)

    def check(self) -> None:
        """Check that a token may be evaluated often enough."""
        self.check_at_most("patience", "max_steps")


class TextEvaluationParameters(Parameters):
    """How trained models are evaluated on the test text of a corpus.

    Attributes
    ----------
    context_length
        The most tokens that a token is predicted from, when perplexity is measured.
    stride
        Tokens by which the window of that context moves on. Each window scores the tokens that
        the one before it has not: with a small stride every token has nearly all of its context,
        and the text is read ``context_length / stride`` times.
    batch_size
        Windows read together; it changes the time and the memory, never a score.
    piece_length
        Tokens that are read at once: a longer text comes in pieces, with the model's carry from
        one to the next, so that the memory is bounded whatever the length.
    max_tokens
        About how many tokens of the documents are scored at most, from all over the corpus; null
        for all.
    lengths
        Lengths at which the same text is read for the length extrapolation; empty leaves it out.
    num_sequences
        Sequences of the longest of these lengths; the shorter ones read the same text. null for
        as many as the text holds.
    bootstrap_samples
        Resamplings behind each standard error.
    num_shown_tokens
        The first so many tokens of the text are written out one by one, with their scores and
        their self-iterations; 0 leaves them out.
    window, patience, tolerance, max_steps, damping
        Of an implicit model's searches, as in `WordProblemEvaluationParameters`.
    """

    context_length: int = Field(ge=1)
    stride: int = Field(ge=1)
    batch_size: int = Field(default=16, ge=1)
    piece_length: int = Field(default=1024, ge=1)
    max_tokens: int | None = Field(default=None, ge=1)
    lengths: tuple[Annotated[int, Field(ge=1)], ...] = ()
    num_sequences: int | None = Field(default=None, ge=1)
    bootstrap_samples: int = Field(default=1000, ge=2)
    num_shown_tokens: int = Field(default=256, ge=0)
    window: int = Field(default=32, ge=1)
    patience: int = Field(default=4, ge=1)
    tolerance: float = Field(gt=0.0, lt=1.0)
    max_steps: int = Field(ge=1)
    damping: float = Field(gt=0.0, lt=2.0)

    def check(self) -> None:
        """Check the keys against each other."""
        self.check_at_most("stride", "context_length")
        self.check_at_most("patience", "max_steps")
        if len(set(self.lengths)) < len(self.lengths):
            raise ParameterError(
                f"lengths = {self.lengths} is not allowed; allowed is each length only once"
            )
        if any(max(self.lengths) % length for length in self.lengths):
            raise ParameterError(
                f"lengths = {self.lengths} is not allowed; each must divide the longest, so that "
                "all read the same text"
            )


class TextSweepParameters(Parameters):
    """How perplexity is measured against the computation allowed at test time.

    Attributes
    ----------
    length, num_sequences
        The test text is cut into sequences of this length; how many of them are read.
    batch_size
        Sequences searched together.
    self_iterations
        As in `WordProblemSweepParameters`.
    tolerances
        Relative residuals, each searched for in three modes: through the sliding window, over
        whole sequences (simultaneous) and token by token (sequential).
    window, patience
        Of the searches to a tolerance; the patience is that of the sequential mode too.
    max_steps
        Evaluations after which a token is given up, or in the simultaneous mode a sequence.
    damping
        Of the search; use the one the model was trained with.
    bootstrap_samples
        Resamplings behind each standard error.
    """

    length: int = Field(ge=1)
    num_sequences: int = Field(ge=1)
    batch_size: int = Field(default=16, ge=1)
    self_iterations: Distinct[Annotated[int, Field(ge=1)]]
    tolerances: Distinct[Annotated[float, Field(gt=0.0, lt=1.0)]]
    window: int = Field(default=32, ge=1)
    patience: int = Field(default=4, ge=1)
    max_steps: int = Field(default=64, ge=1)
    damping: float = Field(gt=0.0, lt=2.0)
    bootstrap_samples: int = Field(default=1000, ge=2)

    def check(self) -> None:
        """Check that a token may be evaluated often enough."""
        self.check_at_most("patience", "max_steps")


class EvaluationParameters(Parameters):
    """The section ``evaluation``: how the models of each kind of data are evaluated.

    Attributes
    ----------
    word_problem, text
        None where no model of that kind is evaluated.
    """

    word_problem: WordProblemEvaluationParameters | None = None
    text: TextEvaluationParameters | None = None


class SweepParameters(Parameters):
    """The section ``sweep``: how the models of each kind of data are measured against computation.

    Attributes
    ----------
    word_problem, text
        None where no model of that kind is swept.
    """

    word_problem: WordProblemSweepParameters | None = None
    text: TextSweepParameters | None = None


class ReadingParameters(Parameters):
    """An entry of the table ``readings``: one model on a corpus it was not trained on.

    Attributes
    ----------
    model
        A model's folder, ``models/NAME/final`` or any other that transformers load.
    corpus
        An entry of ``corpora`` with a test split, in the model's tokenizer.
    """

    model: str
    corpus: str


class BenchmarkParameters(Parameters):
    """An entry of the table ``benchmarks``: one model on the downstream tasks.

    Attributes
    ----------
    model
        A model's folder, ``models/NAME/final`` or any other that transformers load.
    tasks
        An entry of the table ``tasks``.
    names
        Which of its tasks; null is all of them.
    batch_size
        Texts read together; it changes the time and the memory.
    max_length
        Tokens of a text at most, what is longer being cut on the left; null as lm-eval finds it in
        the model's configuration or tokenizer, or else 2048.
    limit
        The first so many items of each task; null is all.
    window, patience, tolerance, max_steps, damping
        Of an implicit model's searches, as in `WordProblemEvaluationParameters`; null takes what
        the model's configuration has. An explicit model has no use for them.
    bootstrap_samples
        Resamplings behind the standard error of the perplexity.
    """

    model: str
    tasks: str
    names: Distinct[Task] | None = None
    batch_size: int = Field(default=32, ge=1)
    max_length: int | None = Field(default=None, ge=1)
    limit: int | None = Field(default=None, ge=1)
    window: int | None = Field(default=None, ge=1)
    patience: int | None = Field(default=None, ge=1)
    tolerance: float | None = Field(default=None, gt=0.0, lt=1.0)
    max_steps: int | None = Field(default=None, ge=1)
    damping: float | None = Field(default=None, gt=0.0, lt=2.0)
    bootstrap_samples: int = Field(default=1000, ge=2)

    def check(self) -> None:
        """Check that a token may be evaluated often enough."""
        if self.patience is not None and self.max_steps is not None:
            self.check_at_most("patience", "max_steps")
