"""What stages ask of a corpus."""

from pathlib import Path

from implicit_models.language_models.labelled import Continuation
from implicit_models.problems.answers import TrainingData
from implicit_models.problems.text.data.corpora import open_corpus, write_corpus
from implicit_models.problems.text.data.tokenisation import load_tokenizer
from implicit_models.problems.text.data.vocabulary import check_source
from implicit_models.problems.text.parameters import CorpusParameters


def prepare(parameters: CorpusParameters, folder: Path, unfinished: Path) -> None:
    """Write the corpus and read it back; what was interrupted goes on."""
    write_corpus(parameters, folder, unfinished=unfinished)
    open_corpus(folder).verify()


def open_training(folder: Path, parameters: CorpusParameters) -> TrainingData:
    """Open what a training reads, packed into sequences; see `open_corpus`."""
    names = ("train", "validation")
    corpus = open_corpus(folder, names)
    train, validation = (corpus.split(name).packed(parameters.sequence_length) for name in names)
    tokenizer = folder / "train"
    return TrainingData(
        train=train,
        validation=validation,
        vocabulary_size=corpus.vocabulary_size,
        label_alignment="next_token",
        identity=[corpus.split(name).metadata for name in names],
        folder=folder,
        verify=corpus.verify,
        check_model=lambda model: check_source(model, corpus.tokenizer_digest, folder),
        save_beside=lambda model: load_tokenizer(tokenizer).save(model),
        continuation=Continuation(is_ordered=True),
        end_of_text=corpus.end_of_text,
    )
