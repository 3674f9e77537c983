"""Corpora from the hub, with a stand-in served from local files: the hub itself is not asked."""

import json

import datasets
import pytest

from implicit_models.parameters import ParameterError, read_section
from implicit_models.problems.text.data import hub_source
from implicit_models.problems.text.data.corpora import CorpusError, open_corpus, write_corpus
from implicit_models.problems.text.parameters import (
    CorpusParameters,
    HeldOutParameters,
    HubCorpusParameters,
)

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TEXTS = [[f"shard {shard}, text {row}: {'word ' * row}" for row in range(40)] for shard in range(5)]
UNIT_BYTES = 1000


def hub_parameters(**changes):
    defaults = HubCorpusParameters(
        source="somebody/pages@v1",
        configuration="all",
        split="train",
        sequence_length=8,
        test=HeldOutParameters(share=0.1),
        seed=0,
    )
    return defaults.replace(**changes)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Put a data set of five files where the hub's would be; returns what was asked for."""
    asked = []
    files = []
    for index, texts in enumerate(TEXTS):
        path = tmp_path / f"{index}.jsonl"
        path.write_text(
            "".join(json.dumps({"text": t, "meta": {"set": "web"}}) + "\n" for t in texts)
        )
        files.append(str(path))
    load = datasets.load_dataset

    def stand_in(name, configuration, **options):
        asked.append((name, configuration, options))
        return load("json", data_files=files, split="train", streaming=True)

    monkeypatch.setattr(datasets, "load_dataset", stand_in)
    monkeypatch.setattr(hub_source, "resolve_revision", lambda name, revision: COMMIT)
    return asked


def content(folder):
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_data_set_is_streamed_shard_by_shard(hub, tmp_path):
    for processes in (1, 2):
        folder = tmp_path / f"data{processes}"
        write_corpus(hub_parameters(), folder, processes=processes, unit_bytes=UNIT_BYTES)
    assert content(tmp_path / "data1") == content(tmp_path / "data2")
    options = {"split": "train", "revision": COMMIT, "streaming": True}
    assert hub == 2 * [("somebody/pages", "all", options)]
    corpus = open_corpus(tmp_path / "data1")
    corpus.verify()
    documents = {}
    for split in corpus.splits.values():
        assert set(split.documents.domains) == {"pages"}
        names = list(split.documents.names)
        assert names == sorted(names, key=lambda n: (n[:11], int(n.partition(":")[2])))
        tokens = (bytes(each.tolist()).decode() for each in split.document_tokens)
        documents |= dict(zip(names, tokens, strict=True))
    assert documents == {
        f"shard_{shard:05d}:{row}": text
        for shard, texts in enumerate(TEXTS)
        for row, text in enumerate(texts, 1)
    }
    manifest = json.loads((tmp_path / "data1" / "manifest.json").read_text())
    assert manifest["source"] == "somebody/pages@v1"
    assert (manifest["configuration"], manifest["revision"]) == ("all", COMMIT)


def test_the_documents_fall_where_those_of_local_files_do(hub, tmp_path):
    write_corpus(hub_parameters(domain_field="meta.set"), tmp_path / "data" / "hub", processes=1)
    local = CorpusParameters(
        source=str(tmp_path),
        domain_field="meta.set",
        sequence_length=8,
        test=HeldOutParameters(share=0.1),
        seed=0,
    )
    write_corpus(local, tmp_path / "data" / "local", processes=1)
    one, other = (open_corpus(tmp_path / "data" / name) for name in ("hub", "local"))
    for name in ("train", "test"):
        assert one.split(name).metadata["shards"] == other.split(name).metadata["shards"]
        assert set(one.split(name).documents.domains) == {"web"}


def test_a_broken_connection_loses_one_part(hub, tmp_path, monkeypatch):
    whole = tmp_path / "whole"
    write_corpus(hub_parameters(), whole, processes=1, unit_bytes=UNIT_BYTES)
    rows = hub_source.HubSource._rows
    read = []

    def breaking(limit):
        def counted(self, file_range, after):
            for number, row in enumerate(rows(self, file_range, after), after + 1):
                if len(read) == limit:
                    raise CorpusError("the connection is gone")
                read.append((file_range.name, number))
                yield row

        return counted

    arguments = {"unfinished": tmp_path / "work", "processes": 1, "unit_bytes": UNIT_BYTES}
    monkeypatch.setattr(hub_source.HubSource, "_rows", breaking(70))
    with pytest.raises(CorpusError, match="the connection is gone"):
        write_corpus(hub_parameters(), tmp_path / "data", **arguments)
    monkeypatch.setattr(hub_source.HubSource, "_rows", breaking(10**6))
    write_corpus(hub_parameters(), tmp_path / "data", **arguments)
    assert content(tmp_path / "data") == content(whole)
    assert len(set(read)) == 200 and 200 < len(read) < 200 + UNIT_BYTES / len(TEXTS[0][0])


def test_a_stream_that_fails_names_shard_and_row(hub, tmp_path, monkeypatch):
    def failing(self):
        yield {"text": "first"}
        raise ConnectionResetError("reset by peer")

    monkeypatch.setattr(datasets.IterableDataset, "__iter__", failing)
    words = r"somebody/pages, shard_00000: cannot be read on after row 1 \(reset by peer\); started"
    with pytest.raises(CorpusError, match=words):
        write_corpus(hub_parameters(), tmp_path / "data", processes=1)


def test_rows_that_are_no_documents(hub, tmp_path):
    path = tmp_path / "2.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], '{"text": " ", "meta": {"set": "x"}}', *lines[1:]]) + "\n")
    manifest = write_corpus(hub_parameters(), tmp_path / "data", processes=1)
    assert manifest["num_unusable_documents"] == 1
    counts = [split["num_documents"] for split in manifest["splits"].values()]
    assert sum(counts) == sum(map(len, TEXTS))
    words = "somebody/pages, shard_00002:2: the document is empty"
    with pytest.raises(CorpusError, match=words):
        write_corpus(hub_parameters(unusable_documents="error"), tmp_path / "data", processes=1)
    words = "somebody/pages, shard_00000:1: there is no field 'body'; the fields are 'text', 'meta'"
    with pytest.raises(CorpusError, match=words):
        write_corpus(hub_parameters(text_field="body"), tmp_path / "data", processes=1)


def test_a_data_set_that_cannot_be_had(tmp_path, monkeypatch):
    def unreachable(name, revision):
        raise ConnectionError("Name or service\n not known")

    monkeypatch.setattr(hub_source, "resolve_revision", unreachable)
    words = (
        r"source = 'somebody/pages@v1': the data set cannot be had from the Hugging Face hub "
        r"\(Name or service not known\); allowed is OWNER/NAME"
    )
    with pytest.raises(CorpusError, match=words):
        write_corpus(hub_parameters(), tmp_path / "data")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("source: pages", "hub_corpora.pile.source = 'pages' is not allowed; .* OWNER/NAME"),
        ("source: ./a/b", "hub_corpora.pile.source = './a/b' is not allowed"),
        ("source: a/b, test: {files: [x]}", "hub_corpora.pile.test.files is not allowed; of a"),
        ("source: a/b, unusable_documents: keep", "unusable_documents = 'keep' is not allowed"),
        ("source: a/b, streamed: true", "hub_corpora.pile.streamed = True"),
    ],
)
def test_parameters_that_fail(tmp_path, text, words):
    path = tmp_path / "params.yaml"
    path.write_text(f"hub_corpora:\n  pile: {{{text}, sequence_length: 8, seed: 0}}\n")
    with pytest.raises(ParameterError, match=words):
        read_section("hub_corpora.pile", HubCorpusParameters, path)


def test_parameters(tmp_path):
    path = tmp_path / "params.yaml"
    path.write_text(
        "hub_corpora:\n  pile: {source: EleutherAI/the_pile_deduplicated, sequence_length: 2048,"
        " test: {share: 0.001}, seed: 0}\n"
    )
    found = read_section("hub_corpora.pile", HubCorpusParameters, path)
    assert isinstance(found, CorpusParameters)
    assert found.split == "train" and found.configuration is None
    assert found.unusable_documents == "skip"
