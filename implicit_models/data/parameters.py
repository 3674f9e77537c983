"""The parameters of data sets: entries of the table ``datasets``."""

import re
import typing
from typing import Annotated, Literal

from pydantic import Field

from implicit_models.parameters import Distinct, ParameterError, Parameters


class SplitParameters(Parameters):
    """A split of sequences of one length."""

    num_sequences: int = Field(ge=1)
    length: int = Field(ge=1)


class TestParameters(Parameters):
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

    num_sequences: int = Field(ge=1)
    lengths: Distinct[Annotated[int, Field(ge=1)]]
    identity_probability: float | None = Field(default=None, ge=0.0, le=1.0)


class DatasetParameters(Parameters):
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

    kind: Literal["word_problem"]
    group: str
    identity_probability: float = Field(default=0.0, ge=0.0, le=1.0)
    monoid_sampling: Literal["uniform", "informative"] = "uniform"
    seed: int = Field(ge=0)
    train: SplitParameters
    validation: SplitParameters
    test: TestParameters

    def check(self) -> None:
        """Check the name of the group, and that the monoid sampling has an effect."""
        # Here, for groups need numpy, and a wrong key is to be answered without waiting for it.
        from implicit_models.data import groups

        try:
            factors = groups.parse(self.group)
        except ValueError as error:
            raise ParameterError(f"group = {error}") from None
        if self.monoid_sampling != "uniform" and all(factor.is_group for factor in factors):
            raise ParameterError(
                f"monoid_sampling = {self.monoid_sampling!r} is not allowed; {self.group} has no "
                "monoid factor, so only 'uniform' is"
            )


class HeldOutParameters(Parameters):
    """Which documents of a corpus make a split that is not trained on.

    Attributes
    ----------
    files
        Patterns (``*`` is anything, folders included) of the files, by their path under the
        corpus's source, all of whose documents belong to the split.
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
        ``bytes``, the path of a ``tokenizer.json`` or of a folder with one, or a name on the hub.
    sequence_length
        Tokens of a sequence that is trained on.
    validation, test
        What is held out; the rest is the training split.
    unusable_documents
        What becomes of a document that is empty, too long to be tokenised at once, or no text, and
        of an empty file: ``error`` stops and names it, ``skip`` leaves it out and counts it.
    seed
        Decides, with its text, where a document falls.
    """

    source: str
    text_field: str = "text"
    domain_field: str | None = None
    tokenizer: str = "bytes"
    sequence_length: int = Field(ge=1)
    validation: HeldOutParameters = HeldOutParameters()
    test: HeldOutParameters = HeldOutParameters()
    unusable_documents: Literal["error", "skip"] = "error"
    seed: int = Field(ge=0)

    def check(self) -> None:
        """Check that names are not empty, and that something is left to train on."""
        for key in ("source", "text_field", "domain_field", "tokenizer"):
            if getattr(self, key) == "":
                raise ParameterError(f"{key} = '' is not allowed; it names nothing")
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
    domain_field
        Without one all documents are of one domain, the data set's name.
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


Task = Literal[
    "lambada_openai",
    "hellaswag",
    "piqa",
    "arc_easy",
    "arc_challenge",
    "winogrande",
    "openbookqa",
]
TASKS: tuple[Task, ...] = typing.get_args(Task)


class TaskPathsParameters(Parameters):
    """Files of each task, relative to the source; none named means those at the usual places."""

    lambada_openai: tuple[str, ...] = ()
    hellaswag: tuple[str, ...] = ()
    piqa: tuple[str, ...] = ()
    arc_easy: tuple[str, ...] = ()
    arc_challenge: tuple[str, ...] = ()
    winogrande: tuple[str, ...] = ()
    openbookqa: tuple[str, ...] = ()

    def check(self) -> None:
        """Check that as many files are named as a task has."""
        for task in TASKS:
            most = 2 if task == "piqa" else 1  # labels may stand in a file of their own
            if len(getattr(self, task)) > most:
                raise ParameterError(
                    f"{task} = {getattr(self, task)!r} is not allowed; allowed is at most {most} "
                    "file" + ("s, items and labels" if most > 1 else "")
                )


class TaskFilesParameters(Parameters):
    """Benchmark tasks: their items, from local files or from the hub.

    Attributes
    ----------
    source
        A folder, or ``hub`` to download: an entry of ``hub_tasks`` needs none, one of ``tasks`` has
        a folder, which DVC watches.
    files
        Of tasks whose files are not at the usual places of the folder: ``TASK.jsonl``, or
        ``lambada/lambada_test.jsonl``, ``hellaswag/hellaswag_val.jsonl``, ``piqa/valid.jsonl`` with
        ``piqa/valid-labels.lst``, ``arc/arc_easy_test.jsonl``, ``arc/arc_challenge_test.jsonl``,
        ``winogrande/winogrande_xl_dev.jsonl`` and ``openbookqa/openbookqa_test.jsonl`` (or as they
        are called in other forms, which are known too).
    tasks
        Which tasks; null is all of them.
    limit
        The first so many items of each; null is all.
    """

    source: str = "hub"
    files: TaskPathsParameters = TaskPathsParameters()
    tasks: Distinct[Task] | None = None
    limit: int | None = Field(default=None, ge=1)

    def check(self) -> None:
        """Check that the source names something, and that no file of the hub's is named."""
        if self.source == "":
            raise ParameterError("source = '' is not allowed; it names nothing")
        if self.source == "hub" and self.files != TaskPathsParameters():
            raise ParameterError("files = ... is not allowed; the hub's files are known")
