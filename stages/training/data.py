"""What a training reads: the sequences of a word problem, or a corpus packed into some."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from implicit_models.data.corpora import open_corpus
from implicit_models.data.parameters import CorpusParameters
from implicit_models.data.tokenisation import tokenizer_digest
from implicit_models.data.word_problems import open_splits
from implicit_models.language_models.labelled import Sequences
from implicit_models.language_models.language_model import LabelAlignment
from stages.common import DataParameters
from stages.vocabulary import check_tokenizer

SPLITS = ("train", "validation")


@dataclass(frozen=True, eq=False)
class TrainingData:
    """Sequences to train on and to validate with.

    Attributes
    ----------
    label_alignment
        Of the models that learn from them.
    identity
        What decides their content, as plain values.
    tokenizer
        Folder with the files of the corpus's tokenizer; None for word problems.
    folder
        Where it lies, in a folder for each split.
    verify
        Compares all of it with its checksums.
    """

    train: Sequences
    validation: Sequences
    vocabulary_size: int
    label_alignment: LabelAlignment
    identity: Any
    folder: Path
    verify: Callable[[], None]
    tokenizer: Path | None = None

    def files(self) -> list[Path]:
        """List the files that are trained on and validated with."""
        found = (self.folder / split for split in SPLITS)
        return sorted(path for each in found for path in each.rglob("*") if path.is_file())

    def check_model(self, folder: Path) -> None:
        """Check that a model which is trained on knows the corpus's tokenizer.

        Raises
        ------
        VocabularyError
            Where it knows another one.
        """
        if self.tokenizer is not None and tokenizer_digest(folder) is not None:
            digest = tokenizer_digest(self.tokenizer)
            assert digest is not None
            check_tokenizer(folder, digest, self.tokenizer.parent)


def open_training_data(name: str, parameters: DataParameters) -> TrainingData:
    """Open ``data/NAME``, memory-mapped.

    Raises
    ------
    DataError, CorpusError
        Where something is missing or damaged.
    """
    folder = Path("data", name)
    if isinstance(parameters, CorpusParameters):
        corpus = open_corpus(folder, SPLITS)
        train, validation = (
            corpus.split(split).packed(parameters.sequence_length) for split in SPLITS
        )
        return TrainingData(
            train=train,
            validation=validation,
            vocabulary_size=corpus.vocabulary_size,
            label_alignment="next_token",
            identity=[corpus.split(split).metadata for split in SPLITS],
            folder=folder,
            verify=corpus.verify,
            tokenizer=folder / "train",
        )
    data = open_splits(folder, SPLITS)
    return TrainingData(
        train=data.split("train"),
        validation=data.split("validation"),
        vocabulary_size=data.vocabulary_size,
        label_alignment="aligned",
        identity=[data.metadata["table_digest"], *(data.metadata["splits"][s] for s in SPLITS)],
        folder=folder,
        verify=data.verify,
    )
