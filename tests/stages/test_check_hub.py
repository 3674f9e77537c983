"""What the check says of files of the Hugging Face hub, without asking it."""

import pytest
from tokenizers import Tokenizer, models

from stages.check import check_text
from tests.repositories import ROOT
from tests.stages.changed_presets import changed, composed
from tests.stages.tiny import write_text


@pytest.fixture(autouse=True)
def working(monkeypatch, tmp_path):
    (tmp_path / "conf").symlink_to(ROOT / "conf")
    write_text(tmp_path / "text")
    for file in (tmp_path / "text").rglob("*.txt"):
        file.write_text(100 * file.read_text())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.delenv("HF_DATASETS_OFFLINE", raising=False)


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """Return a function that puts a file into the hub's cache, of a model of some name."""
    cache = tmp_path / "hub"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    refused = "the hub was asked"
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda *_, **__: pytest.fail(refused))

    def put(name: str, content: str, file: str = "tokenizer.json") -> None:
        folder = cache / f"models--{name.replace('/', '--')}"
        snapshot = folder / "snapshots" / "abc"
        snapshot.mkdir(parents=True, exist_ok=True)
        (folder / "refs").mkdir(exist_ok=True)
        (folder / "refs" / "main").write_text("abc")
        (snapshot / file).write_text(content)

    return put


def small_tokenizer(*tokens: str) -> str:
    return Tokenizer(models.WordLevel({each: n for n, each in enumerate(tokens)})).to_str()


def tokenized(name: str) -> list:
    return check_text(changed("text_small", {"corpora.text.tokenizer": name}), "mine")


def test_a_tokenizer_of_the_hub_is_downloaded_which_is_said(hub, monkeypatch):
    (finding,) = tokenized("somebody/words")
    assert not finding.stops and finding.line == (
        "mine: corpora.text.tokenizer = 'somebody/words' is not on this machine yet; it will be "
        "downloaded from the Hugging Face hub"
    )
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    (finding,) = tokenized("somebody/words")
    assert finding.level == "missing"
    assert "and HF_HUB_OFFLINE keeps it from being downloaded; unset that, or" in finding.line


def test_prepared_data_needs_no_tokenizer_of_the_hub(hub, monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert [finding.level for finding in tokenized("somebody/words")] == ["missing"]
    (tmp_path / "data" / "text").mkdir(parents=True)
    assert not tokenized("somebody/words")


def test_a_tokenizer_in_the_cache_is_looked_at_as_a_local_one(hub):
    hub("somebody/words", small_tokenizer("a", "<|endoftext|>"))
    hub("somebody/endless", small_tokenizer("a", "b"))
    hub("somebody/broken", "{")
    assert not tokenized("somebody/words")
    for name, words in (
        ("endless", "has no end-of-text token"),
        ("broken", "is not a tokenizer's file"),
    ):
        (finding,) = tokenized(f"somebody/{name}")
        assert finding.level == "missing" and finding.line.startswith(
            "mine: corpora.text.tokenizer"
        )
        assert words in finding.line
    assert not tokenized("somebody/words@main")
    (finding,) = tokenized("somebody/words@another")
    assert "will be downloaded" in finding.line


def test_a_name_that_the_hub_cannot_have_is_told_before_the_preparation():
    (finding,) = tokenized("~/nowhere/tokenizer")
    assert finding.stops and "no such file or folder; allowed is 'bytes'" in finding.line


def test_tokenizers_of_the_hub_that_are_here_are_compared(hub):
    hub("somebody/words", small_tokenizer("a", "<|endoftext|>"))
    hub("somebody/more", small_tokenizer("a", "b", "<|endoftext|>"))
    corpus = composed("text_small")["corpora"]["text"]

    def compared(other: str) -> list[str]:
        changes = {
            "corpora.text.tokenizer": "somebody/words",
            "corpora.other": corpus | {"tokenizer": other},
            "readings": {"read": {"model": "models/text_mamba2/final", "corpus": "other"}},
        }
        found = check_text(changed("text_small", changes), "mine")
        return [each.line for each in found if "has another tokenizer" in each.line]

    assert compared("somebody/more")
    assert not compared("somebody/words") and not compared("somebody/unknown")


PILE = "pile_130m_mamba2"


def missing_of(preset: str, changes: dict | None = None) -> list[str]:
    found = check_text(changed(preset, changes or {}), "mine")
    return [each.line for each in found if each.level == "missing" and "the disk" not in each.line]


@pytest.mark.parametrize("variable", ["HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_corpora_and_tasks_of_the_hub_are_missing_offline(hub, monkeypatch, tmp_path, variable):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")
    bytes_alone = {"hub_corpora.pile.tokenizer": "bytes"}
    assert not missing_of(PILE, bytes_alone)
    monkeypatch.setenv(variable, "1")  # which the library reads as it is imported
    if variable == "TRANSFORMERS_OFFLINE":
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    corpus, tasks = missing_of(PILE, bytes_alone)
    assert corpus.startswith(
        "mine: hub_corpora.pile.source = 'EleutherAI/the_pile_deduplicated' is streamed from the "
        f"Hugging Face hub, so that no cache has it, and {variable} keeps the hub from being asked"
    )
    assert "unset that, or make an entry of corpora of its files (.txt" in corpus
    assert tasks.startswith("mine: hub_tasks.downstream: lambada_openai, hellaswag, piqa")
    assert f"{variable} keeps the hub from being asked; unset that, or put the tasks'" in tasks
    # What is there once may be read offline.
    here = tmp_path / "datasets" / "EleutherAI___lambada_openai" / "default" / "0.0.0" / "abc"
    here.mkdir(parents=True)
    (here / "dataset_info.json").write_text('{"config_name": "default"}')
    _, tasks = missing_of(PILE, bytes_alone)
    assert tasks.startswith("mine: hub_tasks.downstream: hellaswag, piqa")
    for name in ("pile", "downstream"):
        (tmp_path / "data" / name).mkdir(parents=True)
    assert not missing_of(PILE, bytes_alone)


def test_a_model_of_the_hub_is_missing_offline_until_it_was_downloaded(hub, monkeypatch):
    model = {"family": "huggingface", "source": "somebody/model", "pretrained": True}
    changes = {"baselines.s3_gpt2.model": model}
    (finding,) = check_text(changed("quick", changes), "mine")
    assert not finding.stops and finding.line == (
        "mine: baselines.s3_gpt2.model.source = 'somebody/model': its config.json is not in the "
        "cache of the Hugging Face hub yet; it will be downloaded"
    )
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for file, content in (("config.json", '{"model_type": "gpt2"}'), ("model.safetensors", "")):
        (line,) = missing_of("quick", changes)
        assert line == (
            f"mine: baselines.s3_gpt2.model.source = 'somebody/model': its {file} is not in the "
            "cache of the Hugging Face hub, and HF_HUB_OFFLINE keeps it from being downloaded; "
            "unset that, or name a folder of this machine"
        )
        hub("somebody/model", content, file)
    assert not missing_of("quick", changes)
