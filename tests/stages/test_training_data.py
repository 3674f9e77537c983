"""What a training reads of a corpus, and what it refuses."""

import dataclasses
import random
from pathlib import Path
from types import SimpleNamespace

import pytest
from tokenizers import Tokenizer, models

from implicit_models.families.parameters import ModelParameters
from implicit_models.problems.answers import TrainingData
from implicit_models.problems.problem import data_of
from implicit_models.problems.text.data.corpora import CorpusError
from implicit_models.problems.text.data.corpus_writing import write_corpus
from implicit_models.problems.text.data.tokenisation import load_tokenizer
from implicit_models.problems.text.data.vocabulary import VocabularyError
from implicit_models.problems.text.parameters import CorpusParameters, HeldOutParameters
from implicit_models.training.distributed import Processes
from stages.training import data_verification, segment
from stages.training.data_verification import verify_data


def parameters(source: Path) -> CorpusParameters:
    return CorpusParameters(
        source=str(source),
        sequence_length=16,
        validation=HeldOutParameters(files=("validation/*",)),
        test=HeldOutParameters(files=("test/*",)),
        seed=0,
    )


@pytest.fixture
def opened(tmp_path, monkeypatch):
    """Return a function that opens a freshly written corpus of bytes."""
    monkeypatch.chdir(tmp_path)
    draw = random.Random(0)
    for split in ("train", "validation", "test"):
        path = Path("text", split, "words.txt")
        path.parent.mkdir(parents=True)
        path.write_text(" ".join(draw.choice(("river", "boat", "oar")) for _ in range(200)))
    chosen = parameters(Path("text"))
    write_corpus(chosen, Path("data/text"))

    def opened() -> TrainingData:
        return data_of("text").open_training(Path("data/text"), chosen)

    return opened


def test_a_corpus_as_it_was_written_passes(opened):
    opened().verify()


@pytest.mark.parametrize("split", ["train", "validation"])
def test_a_changed_shard_is_named_with_both_checksums(opened, split):
    shard = corrupt(split)
    with pytest.raises(CorpusError, match=f"{shard}.*[0-9a-f]{{64}}.*[0-9a-f]{{64}}"):
        opened().verify()


def corrupt(split: str) -> Path:
    (shard,) = Path("data", "text", split).glob("tokens_*.npy")
    content = bytearray(shard.read_bytes())
    content[-7] ^= 1
    shard.write_bytes(content)
    return shard


@pytest.mark.parametrize("always", [data_verification.ALWAYS, 0], ids=["little", "much"])
@pytest.mark.parametrize("split", ["train", "validation"])
def test_a_shard_that_changes_while_a_training_stands_still_is_named(
    opened, monkeypatch, split, always
):
    monkeypatch.setattr(data_verification, "ALWAYS", always)
    verify_data(opened(), Path("checkpoints"))
    shard = corrupt(split)
    for _ in range(2):  # what was found wrong is not taken for compared
        with pytest.raises(CorpusError, match=f"{shard}.*[0-9a-f]{{64}}"):
            verify_data(opened(), Path("checkpoints"))


def test_much_data_that_lies_as_it_was_compared_is_not_read_again(opened, monkeypatch):
    reads = []
    data = dataclasses.replace(opened(), verify=lambda: reads.append(1))
    verify_data(data, Path("checkpoints"))
    verify_data(data, Path("checkpoints"))
    assert len(reads) == 2  # little
    monkeypatch.setattr(data_verification, "ALWAYS", 0)
    verify_data(data, Path("checkpoints"))
    assert len(reads) == 2
    verify_data(data, Path("checkpoints", "of_another_training"))
    assert len(reads) == 3


def test_the_end_of_a_text_is_that_of_its_tokenizer(opened):
    assert opened().end_of_text == load_tokenizer("bytes").end_of_text


def test_a_model_of_another_tokenizer_is_refused(opened, tmp_path):
    data = opened()
    load_tokenizer("bytes").save(tmp_path / "same")
    data.check_model(tmp_path / "same")
    other = Tokenizer(models.WordLevel({"boat": 0, "<|endoftext|>": 1}))
    (tmp_path / "other").mkdir()
    other.save(str(tmp_path / "other" / "tokenizer.json"))
    with pytest.raises(VocabularyError, match="data/text was made with another tokenizer"):
        data.check_model(tmp_path / "other")


def test_a_model_without_a_tokenizer_is_trained_on_with_a_warning(opened, tmp_path, caplog):
    (tmp_path / "without").mkdir()
    opened().check_model(tmp_path / "without")
    assert f"{tmp_path / 'without'} has no tokenizer.json that tells whether" in caplog.text


def test_the_tokenizer_of_a_model_on_the_hub_is_compared_too(opened, tmp_path, monkeypatch, caplog):
    other = Tokenizer(models.WordLevel({"boat": 0, "<|endoftext|>": 1}))
    other.save(str(tmp_path / "other.json"))
    load_tokenizer("bytes").save(tmp_path)
    files = {"owner/other": "other.json", "owner/same": "tokenizer.json"}

    def download(repository, file, revision):
        if repository not in files:
            raise OSError("404 Client Error")
        return str(tmp_path / files[repository])

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    data = opened()
    data.check_model(Path("owner/same"))
    assert not caplog.text
    with pytest.raises(VocabularyError, match="than the model in owner/other knows"):
        data.check_model(Path("owner/other"))
    data.check_model(Path("owner/without"))
    assert "owner/without has no tokenizer.json" in caplog.text


def test_a_source_whose_configuration_alone_is_taken_may_have_another_tokenizer(opened, tmp_path):
    Tokenizer(models.WordLevel({"boat": 0})).save(str(tmp_path / "tokenizer.json"))

    def open_for(**model) -> TrainingData:
        chosen = ModelParameters(family="huggingface", source=str(tmp_path), **model)
        optimisation = SimpleNamespace(sequences_a_step=lambda _: 2, batch=lambda _: "batch_size")
        entry = SimpleNamespace(model=chosen, optimisation=optimisation)
        monitoring = SimpleNamespace(validation_sequences=1)
        this = SimpleNamespace(
            table="baselines", name="own", start=None, entry=entry, monitoring=monitoring
        )
        read = SimpleNamespace(
            kind="text", folder=Path("data/text"), parameters=parameters(Path("text"))
        )
        return segment._open_data(this, read, Processes())

    assert open_for(pretrained=False).vocabulary_size == 257
    with pytest.raises(VocabularyError, match="was made with another tokenizer"):
        open_for(pretrained=True)
