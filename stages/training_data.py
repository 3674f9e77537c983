"""What a training reads: the sequences of a word problem, or a corpus packed into some."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from implicit_models.data.corpora import open_corpus
from implicit_models.data.parameters import CorpusParameters
from implicit_models.data.word_problems import open_splits
from implicit_models.language_models.building import LabelAlignment
from implicit_models.language_models.labelled import Sequences
from stages.common import DataParameters

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
    """

    train: Sequences
    validation: Sequences
    vocabulary_size: int
    label_alignment: LabelAlignment
    identity: Any
    tokenizer: Path | None = None


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
            tokenizer=folder / "train",
        )
    data = open_splits(folder, SPLITS)
    return TrainingData(
        train=data.split("train"),
        validation=data.split("validation"),
        vocabulary_size=data.vocabulary_size,
        label_alignment="aligned",
        identity=[data.metadata["table_digest"], *(data.metadata["splits"][s] for s in SPLITS)],
    )
