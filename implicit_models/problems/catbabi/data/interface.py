"""What stages ask of the streams' data."""

from pathlib import Path

from implicit_models.language_models.labelled import Continuation
from implicit_models.problems.answers import TrainingData
from implicit_models.problems.catbabi.data.streams import EOS, Cut, open_streams
from implicit_models.problems.catbabi.data.words import check_words, save_words
from implicit_models.problems.catbabi.data.writing import write_streams
from implicit_models.problems.catbabi.parameters import CatbabiParameters


def prepare(parameters: CatbabiParameters, folder: Path, unfinished: Path) -> None:
    """Write the streams and read them back; it takes moments, so that nothing is continued."""
    write_streams(parameters, folder)
    open_streams(folder).verify()


def open_training(folder: Path, parameters: CatbabiParameters) -> TrainingData:
    """Open what a training reads, cut into sequences; see `open_streams`."""
    names = ("train", "validation")
    data = open_streams(folder, names)
    asked = None if parameters.objective == "all" else data.vocabulary.index("?")
    train, validation = (
        Cut.of(data.splits[name], parameters.sequence_length, asked) for name in names
    )
    return TrainingData(
        train=train,
        validation=validation,
        vocabulary_size=len(data.vocabulary),
        label_alignment="next_token",
        identity=[
            parameters.objective,
            parameters.sequence_length,
            data.vocabulary,
            *(data.metadata["splits"][name] for name in names),
        ],
        folder=folder,
        verify=data.verify,
        check_model=lambda model: check_words(model, data.vocabulary, folder),
        save_beside=lambda model: save_words(data.vocabulary, model),
        continuation=Continuation(is_ordered=True),
        end_of_text=EOS,
    )
