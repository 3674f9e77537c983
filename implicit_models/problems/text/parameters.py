"""The parameters of text: corpora, and how models of them are tested."""

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from implicit_models.language_models.parameters import SearchParameters, SweepParameters
from implicit_models.parameters import ParameterError, Parameters
from implicit_models.problems.tested_apart import TestedApart

# Tokenizers of the hub whose size is known without a download.
VOCABULARIES = {"EleutherAI/gpt-neox-20b": 50_277, "openai-community/gpt2": 50_257}


class HeldOutParameters(Parameters):
    """Which documents of a corpus make a split that is not trained on.

    Attributes
    ----------
    files
        Patterns (``*`` is anything, folders included) of the files, by their path under the
        corpus's source, all of whose documents belong to the split. Refused in `hub_corpora`.
    share
        Of the documents of all other files, the share that belongs to the split as well. A
        document's text decides, so that a corpus which grows keeps its splits.
    """

    files: tuple[str, ...] = ()
    share: float = Field(default=0.0, ge=0.0, lt=1.0)

    @property
    def is_asked_for(self) -> bool:
        """Whether any document can belong to the split."""
        return bool(self.files) or self.share > 0


class CorpusParameters(Parameters):
    """A text corpus: documents from local files, tokenised, in splits that share no text.

    Attributes
    ----------
    source
        A ``.txt`` file (one document), a ``.jsonl``, ``.jsonl.zst`` or ``.parquet`` file (one in
        every line or row), or a folder with such files, at any depth.
    text_field, domain_field
        Fields of a line, or columns of a row; dots lead into nested ones. Without a domain field
        the domain is the first folder under the source, or the file's name.
    tokenizer
        ``bytes``, the path of a ``tokenizer.json`` inside the source or of a folder there with one,
        or a name on the hub.
    sequence_length
        Tokens of a sequence that is trained on.
    validation, test
        What is held out; the rest is the training split.
    unusable_documents
        What becomes of a document that is empty, too long to be tokenised at once, no text, or of
        no domain, and of an empty file: ``error`` stops and names it, ``skip`` leaves it out and
        counts it.
    seed
        Decides, with its text, where a document falls.
    """

    kind: Literal["text"] = "text"
    source: str
    text_field: str = "text"
    domain_field: str | None = None
    tokenizer: str = "bytes"
    sequence_length: int = Field(ge=1)
    validation: HeldOutParameters = HeldOutParameters()
    test: HeldOutParameters = HeldOutParameters()
    unusable_documents: Literal["error", "skip"] = "error"
    seed: int = Field(ge=0, lt=2**64)

    def check(self) -> None:
        """Check that names are not empty, and that something is left to train on."""
        for key in ("source", "text_field", "domain_field", "tokenizer"):
            if getattr(self, key) == "":
                raise ParameterError(f"{key} = '' is not allowed; allowed is a name")
        if self.validation.share + self.test.share >= 1:
            raise ParameterError(
                f"test.share = {self.test.share} is not allowed; with validation.share = "
                f"{self.validation.share} the two must stay below 1 together"
            )


class HubCorpusParameters(CorpusParameters):
    """A text corpus whose documents are streamed from the Hugging Face hub.

    Attributes
    ----------
    source
        ``OWNER/NAME``, or ``OWNER/NAME@REVISION``.
    configuration
        Of the data set, where it has several.
    split
        Of the data set; all of it is divided anew.
    text_field, domain_field
        Columns of a row; dots lead into nested ones. Without a domain field all documents are of
        one domain, the data set's name.
    tokenizer
        ``bytes``, or a name on the hub.
    unusable_documents
        As for other corpora, but left out unless told otherwise: nobody can mend them.
    """

    configuration: str | None = None
    split: str = "train"
    unusable_documents: Literal["error", "skip"] = "skip"

    def check(self) -> None:
        """Check that the source can be a name, and that no file is named."""
        super().check()
        if not re.fullmatch(r"[\w.-]+/[\w.-]+(@[\w./-]+)?", self.source):
            raise ParameterError(
                f"source = {self.source!r} is not allowed; allowed is OWNER/NAME or "
                "OWNER/NAME@REVISION on the Hugging Face hub: local files are entries of corpora"
            )
        for name in ("validation", "test"):
            if getattr(self, name).files:
                raise ParameterError(
                    f"{name}.files is not allowed; of a data set on the hub only a share is held "
                    "out"
                )


# A small patience: texts settle, see docs/benchmarks.md.
_SEARCH = {"window": 32, "patience": 2, "max_steps": 64}


class TextEvaluationParameters(SearchParameters):
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
    solver, best_so_far, damping, window, patience, tolerance, max_steps
        Of an implicit model's searches, as in `SearchParameters`; left out, a window of 32 tokens,
        a patience of 2, a tolerance of 0.05 and 64 steps.
    """

    suitable = {**_SEARCH, "tolerance": 0.05}

    context_length: int = Field(ge=1)
    stride: int = Field(ge=1)
    batch_size: int = Field(default=16, ge=1)
    piece_length: int = Field(default=1024, ge=1)
    max_tokens: int | None = Field(default=None, ge=1)
    lengths: tuple[Annotated[int, Field(ge=1)], ...] = ()
    num_sequences: int | None = Field(default=None, ge=1)
    bootstrap_samples: int = Field(default=1000, ge=2)
    num_shown_tokens: int = Field(default=256, ge=0)

    def check(self) -> None:
        """Check the keys against each other."""
        super().check()
        self.check_at_most("stride", "context_length")
        if len(set(self.lengths)) < len(self.lengths):
            raise ParameterError(
                f"lengths = {self.lengths} is not allowed; allowed is each length only once"
            )
        if any(max(self.lengths) % length for length in self.lengths):
            raise ParameterError(
                f"lengths = {self.lengths} is not allowed; each must divide the longest, so that "
                "all read the same text"
            )


class TextSweepParameters(SweepParameters):
    """How perplexity is measured against the computation allowed at test time.

    The test text is cut into sequences, and each tolerance is searched for in three modes: through
    the sliding window, over whole sequences (simultaneous) and token by token (sequential); where
    the solver knows no window, over whole sequences alone. The patience is that of the sequential
    mode too, and in the simultaneous mode ``max_steps`` is a sequence's.

    Attributes
    ----------
    bootstrap_samples
        Resamplings behind each standard error.
    """

    suitable = _SEARCH

    batch_size: int = Field(default=16, ge=1)
    bootstrap_samples: int = Field(default=1000, ge=2)


class ReadingParameters(TestedApart, SearchParameters):
    """An entry of the table ``readings``: one model on a corpus it was not trained on.

    It is read as the section ``evaluation.text`` says, but for the keys of the search that the
    entry has itself.

    Attributes
    ----------
    model
        As in `TestedApart`.
    corpus
        An entry of ``corpora`` or ``hub_corpora`` with a test split, in the model's tokenizer.
    """

    data_key = "corpus"
    label = "reading"
    stage = "evaluate_reading"
    results_file = "evaluation.json"
    headline_file = "metrics.json"

    corpus: str

    @property
    def metric_prefix(self) -> str:
        """The beginning of the tracked metrics' names."""
        return f"readings.{self.corpus}."

    def evaluation(self, section: Parameters | None) -> Parameters:
        """Return the section with the entry's own search.

        Where that is of whole sequences, the section's window and patience have no place in it.
        """
        assert section is not None
        without = {"window": None, "patience": None} if self.is_whole else {}
        return section.replace(**without | self.search)


SCHEMAS = {"corpora": CorpusParameters, "hub_corpora": HubCorpusParameters}
IS_TEXT = True
EVALUATION = TextEvaluationParameters
SWEEP = TextSweepParameters
ENTRIES = {"readings": ReadingParameters}


def check_entry(key: str, data: CorpusParameters) -> None:
    """See that a tokenizer's file lies where DVC watches it."""
    tokenizer, source = Path(data.tokenizer).resolve(), Path(data.source).resolve()
    is_file = data.tokenizer != "bytes" and tokenizer.exists()
    if is_file and isinstance(data, HubCorpusParameters):
        raise ParameterError(
            f"{key}.tokenizer = {data.tokenizer!r} is not allowed; allowed is 'bytes' or a name on "
            "the Hugging Face hub: DVC would not notice that a file changes"
        )
    if is_file and source not in (tokenizer, *tokenizer.parents):
        raise ParameterError(
            f"{key}.tokenizer = {data.tokenizer!r} is not allowed; allowed is a tokenizer.json "
            f"inside the source, {data.source}, where DVC notices that it changes, 'bytes', or a "
            "name on the Hugging Face hub: copy the file there"
        )


def check_training(key: str, data: CorpusParameters) -> tuple[int, str]:
    """Return the length of the training sequences, and the key that says so.

    Raises
    ------
    ParameterError
        Where nothing is held out.
    """
    for split in ("validation", "test"):
        if not getattr(data, split).is_asked_for:
            raise ParameterError(
                f"{key}.{split} holds nothing out; a model that is trained on a corpus needs its "
                "validation and test split: name files, or a share"
            )
    return data.sequence_length, f"{key}.sequence_length"


def check_carry(key: str, data: CorpusParameters, shortest: int) -> None:
    """See that sequences are not cut, so that each begins where the one before has ended.

    Raises
    ------
    ParameterError
        Where they are.
    """
    if shortest < data.sequence_length:
        raise ParameterError(
            f"carry = 'passed' is not allowed with lengths.minimum = {shortest}; allowed is "
            f"{key}.sequence_length, {data.sequence_length}: texts go on where sequences end"
        )


def num_sequences(data: CorpusParameters, split: str) -> None:
    """Return None: how many there are is known once the corpus is prepared."""


def check_evaluation(
    key: str,
    data: CorpusParameters,
    parameters: TextEvaluationParameters,
    where: str = "evaluation.text",
) -> None:
    """See that the corpus can be tested on: its text is measured once it is prepared."""


def check_sweep(
    key: str, data: CorpusParameters, parameters: TextSweepParameters, where: str = "sweep.text"
) -> None:
    """See that the corpus can be tested on: its text is measured once it is prepared."""


def vocabulary_size(data: CorpusParameters) -> int:
    """Return the number of the tokenizer's tokens.

    Raises
    ------
    ParameterError
        Where the tokenizer cannot be read here.
    """
    if data.tokenizer in VOCABULARIES:
        return VOCABULARIES[data.tokenizer]

    from implicit_models.problems.text.data.tokenisation import TokenizerError, load_tokenizer

    try:
        return load_tokenizer(data.tokenizer).vocabulary_size
    except TokenizerError as error:
        raise ParameterError(f"{error}; or give its size: vocabulary=50277") from None
