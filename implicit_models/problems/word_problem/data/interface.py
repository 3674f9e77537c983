"""What stages ask of a word problem's data."""

from pathlib import Path

from implicit_models.language_models.labelled import Continuation
from implicit_models.problems.answers import TrainingData
from implicit_models.problems.word_problem.data.continuing import ContinuedProducts
from implicit_models.problems.word_problem.data.splits import open_splits
from implicit_models.problems.word_problem.data.writing import write_splits
from implicit_models.problems.word_problem.parameters import WordProblemParameters


def prepare(parameters: WordProblemParameters, folder: Path, unfinished: Path) -> None:
    """Write the splits and read them back; it takes moments, so that nothing is continued."""
    write_splits(parameters, folder)
    open_splits(folder).verify()


def open_training(folder: Path, parameters: WordProblemParameters) -> TrainingData:
    """Open what a training reads; see `open_splits`."""
    names = ("train", "validation")
    data = open_splits(folder, names)
    return TrainingData(
        train=data.split("train"),
        validation=data.split("validation"),
        vocabulary_size=data.vocabulary_size,
        label_alignment="aligned",
        identity=[data.metadata["table_digest"], *(data.metadata["splits"][s] for s in names)],
        folder=folder,
        verify=data.verify,
        continuation=Continuation(is_ordered=False, labels=ContinuedProducts.of(data)),
    )
