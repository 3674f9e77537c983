"""What stages ask of the data of formal languages."""

from pathlib import Path

from implicit_models.problems.answers import TrainingData
from implicit_models.problems.formal_language.data.splits import open_splits
from implicit_models.problems.formal_language.data.writing import write_strings
from implicit_models.problems.formal_language.parameters import FormalLanguageParameters


def prepare(parameters: FormalLanguageParameters, folder: Path, unfinished: Path) -> None:
    """Write the strings and read them back; it takes moments, so that nothing is continued."""
    write_strings(parameters, folder)
    open_splits(folder).verify()


def open_training(folder: Path, parameters: FormalLanguageParameters) -> TrainingData:
    """Open what a training reads; see `open_splits`."""
    names = ("train", "validation")
    data = open_splits(folder, names)
    return TrainingData(
        train=data.learned("train"),
        validation=data.learned("validation"),
        vocabulary_size=len(data.tokens),
        label_alignment="next_token" if parameters.drawn.is_text else "aligned",
        identity=[
            parameters.objective,
            data.tokens,
            *(data.metadata["splits"][name] for name in names),
        ],
        folder=folder,
        verify=data.verify,
    )
