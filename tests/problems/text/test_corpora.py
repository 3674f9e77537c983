"""Corpora on disk: every token once, splits apart, and texts and files that fail."""

import hashlib
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet
from tokenizers import Tokenizer, models, pre_tokenizers

from implicit_models.data.manifests import write_manifest
from implicit_models.files import unsealed
from implicit_models.parameters import ParameterError, read_section
from implicit_models.problems.text.checks import data_bytes, tokens_at_most
from implicit_models.problems.text.data.corpora import CorpusError, open_corpus, write_corpus
from implicit_models.problems.text.data.packing import pack
from implicit_models.problems.text.data.shards import TokenStream
from implicit_models.problems.text.data.tokenisation import (
    TextTokenizer,
    load_tokenizer,
)
from implicit_models.problems.text.data.vocabulary import tokenizer_digest
from implicit_models.problems.text.parameters import CorpusParameters, HeldOutParameters

SHARED = Path(__file__).parents[3] / ".." / "shared" / "data"
END = 256

BOOKS = {
    "books/one.txt": "One day, \r\na long time ago.\n" * 3,
    "books/two.txt": "Zwei Tage später 😀",
    "held/out.txt": "What nobody has read.",
    "poems.txt": "Roses are red",
    "web/pages.jsonl": [
        {"text": "first page of all", "meta": {"site": "a.org"}},
        {"text": "second", "meta": {"site": "b.org"}},
        {"text": "first page of all", "meta": {"site": "b.org"}},
    ],
}


ONE_HELD_OUT = {"test": HeldOutParameters(files=("d/vocab.txt",))}
HELD_OUT = {"validation": HeldOutParameters(files=("held/*",))}


def write_source(folder, files):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, list):
            content = "".join(json.dumps(line) + "\n" for line in content)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def parameters(source, **changes):
    defaults = CorpusParameters(
        source=str(source),
        sequence_length=4,
        seed=0,
    )
    return defaults.replace(**changes)


def texts(split):
    tokenizer = load_tokenizer(split.folder)
    return [tokenizer.decode(tokens) for tokens in split.document_tokens]


def lines(num_documents):
    """Lines of a file with so many documents, no two alike."""
    return [{"text": f"document {number} of many"} for number in range(num_documents)]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_source(tmp_path_factory.mktemp("source"), BOOKS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, source):
    directory = tmp_path_factory.mktemp("data") / "books"
    write_corpus(parameters(source, **HELD_OUT), directory)
    return directory


@pytest.fixture
def copy(folder, tmp_path):
    """A corpus of its own, to be damaged."""
    return Path(shutil.copytree(folder, tmp_path / "books"))


# What is written


def test_every_document_is_there_once(folder):
    corpus = open_corpus(folder)
    assert corpus.vocabulary_size == 257 and corpus.end_of_text == END
    assert corpus.tokenizer_digest == load_tokenizer("bytes").digest
    assert corpus.sequence_length == 4
    train = corpus.split("train")
    expected = [
        BOOKS["books/one.txt"],
        BOOKS["books/two.txt"],
        BOOKS["poems.txt"],
        *(line["text"] for line in BOOKS["web/pages.jsonl"]),
    ]
    assert texts(train) == expected
    assert tuple(train.documents.names) == (
        "books/one.txt",
        "books/two.txt",
        "poems.txt",
        "web/pages.jsonl:1",
        "web/pages.jsonl:2",
        "web/pages.jsonl:3",
    )
    assert tuple(train.documents.domains) == ("books", "books", "poems", "web", "web", "web")
    assert train.documents.num_bytes.tolist() == [len(text.encode()) for text in expected]
    assert train.num_tokens == sum(len(text.encode()) + 1 for text in expected)
    assert train.metadata["num_bytes"] == train.num_tokens - 6
    assert texts(corpus.split("validation")) == ["What nobody has read."]
    corpus.verify()


def test_the_stream_is_the_documents_with_their_ends(folder):
    train = open_corpus(folder).split("train")
    expected = [token for document in train.document_tokens for token in [*document, END]]
    stream = train.stream()
    assert stream[:].tolist() == expected and len(stream) == train.num_tokens
    for size in (0, 1, 10, 84, 85, 10**6):
        assert np.asarray(train.stream(size)).tolist() == expected[:size]
    assert not stream[3:9].flags.owndata and not stream[3:9].flags.writeable


def test_nothing_but_the_corpus_is_left_behind(folder):
    tokenizer = {"tokenizer.json", "tokenizer_config.json"}
    assert {path.name for path in folder.iterdir()} == tokenizer | {
        "manifest.json",
        "train",
        "validation",
    }
    assert {path.name for path in (folder / "train").iterdir()} == tokenizer | {
        "documents.npy",
        "names.json",
        "split.json",
        "tokens_00000.npy",
    }
    assert [path.name for path in folder.parent.iterdir()] == ["books"]
    for split in ("train", "validation"):
        assert tokenizer_digest(folder / split) == tokenizer_digest(folder)


def test_the_same_parameters_give_the_same_files(folder, source, tmp_path):
    manifest = write_corpus(parameters(source, **HELD_OUT), tmp_path / "books")
    assert manifest == unsealed((folder / "manifest.json").read_bytes())
    for path in folder.rglob("*"):
        if path.is_file():
            assert (tmp_path / "books" / path.relative_to(folder)).read_bytes() == path.read_bytes()


def test_shards_change_nothing_but_the_files(folder, source, tmp_path, monkeypatch):
    whole = open_corpus(folder).split("train")
    monkeypatch.setattr("implicit_models.problems.text.data.shards.MAX_SHARD_TOKENS", 40)
    monkeypatch.setattr("implicit_models.problems.text.data.joining.JOINED_TOKENS", 40)
    write_corpus(parameters(source, **HELD_OUT), tmp_path / "books")
    corpus = open_corpus(tmp_path / "books")
    split = corpus.split("train")
    sizes = [shard["num_tokens"] for shard in split.metadata["shards"]]
    assert sizes == [85, 23 + 14, 18 + 7, 18]  # a longer document has a shard of its own
    assert split.stream()[:].tolist() == whole.stream()[:].tolist()
    for start, stop in [(0, 5), (80, 90), (84, 85), (85, 86), (30, 140), (164, 999), (9, 3)]:
        assert split.stream()[start:stop].tolist() == whole.stream()[start:stop].tolist()
    assert [document.tolist() for document in split.document_tokens] == [
        document.tolist() for document in whole.document_tokens
    ]
    corpus.verify()


def test_batches_change_nothing(folder, source, tmp_path, monkeypatch):
    monkeypatch.setattr("implicit_models.problems.text.data.unit_writing._BATCH_BYTES", 1)
    write_corpus(parameters(source, **HELD_OUT), tmp_path / "books")
    name = "train/tokens_00000.npy"
    assert (tmp_path / "books" / name).read_bytes() == (folder / name).read_bytes()


def test_a_single_file(tmp_path):
    source = write_source(tmp_path, {"pages.jsonl": lines(3)}) / "pages.jsonl"
    write_corpus(parameters(source), tmp_path / "data" / "pages")
    corpus = open_corpus(tmp_path / "data" / "pages")
    assert list(corpus.splits) == ["train"]
    assert set(corpus.split("train").documents.domains) == {"pages"}


def test_fields_of_a_line(tmp_path):
    write_source(
        tmp_path / "source",
        {
            "a.jsonl": [
                {"body": {"raw": "nested"}, "meta.site": "dotted", "meta": {"site": "not this"}},
                {"body.raw": "plain", "meta": {"site": 7}},
            ],
            "b.txt": "a file has no fields",
            ".hidden/c.txt": "nor is this one read",
            "README.md": "nor this",
        },
    )
    changes = {"text_field": "body.raw", "domain_field": "meta.site"}
    write_corpus(parameters(tmp_path / "source", **changes), tmp_path / "data")
    train = open_corpus(tmp_path / "data").split("train")
    assert texts(train) == ["nested", "plain", "a file has no fields"]
    assert tuple(train.documents.domains) == ("dotted", "7", "b")


def test_blank_lines_and_byte_order_marks_are_no_text(tmp_path):
    files = {
        "a.jsonl": b'\xef\xbb\xbf{"text": "first"}\r\n\r\n  \n{"text": "second"}',
        "b.txt": b"\xef\xbb\xbfthird",
    }
    source = write_source(tmp_path / "source", files)
    write_corpus(parameters(source), tmp_path / "data")
    train = open_corpus(tmp_path / "data").split("train")
    assert texts(train) == ["first", "second", "third"]
    assert tuple(train.documents.names) == ("a.jsonl:1", "a.jsonl:4", "b.txt")


def test_a_special_token_in_a_text_is_text(tmp_path):
    text = "The end. <|endoftext|> Or not."
    source = write_source(tmp_path / "source", {"a.txt": text})
    write_corpus(parameters(source), tmp_path / "data")
    train = open_corpus(tmp_path / "data").split("train")
    assert END not in train.document(0) and texts(train) == [text]


# Splits


def share(validation, test):
    return {
        "validation": HeldOutParameters(share=validation),
        "test": HeldOutParameters(share=test),
    }


def by_split(directory):
    return {name: texts(split) for name, split in open_corpus(directory).splits.items()}


def test_shares_are_disjoint_and_stay_where_they_are(tmp_path):
    small = write_source(tmp_path / "small", {"a.jsonl": lines(2000)})
    large = write_source(tmp_path / "large", {"z.jsonl": lines(2400)[::-1]})
    write_corpus(parameters(small, **share(0.1, 0.2)), tmp_path / "first")
    found = by_split(tmp_path / "first")
    assert sorted(sum(found.values(), [])) == sorted(line["text"] for line in lines(2000))
    assert abs(len(found["test"]) - 400) < 60 and abs(len(found["validation"]) - 200) < 45

    write_corpus(parameters(large, **share(0.1, 0.1)), tmp_path / "second")
    other = by_split(tmp_path / "second")
    assert set(found["validation"]) < set(other["validation"])
    assert set(found["train"]) < set(other["train"])

    write_corpus(parameters(small, **share(0.1, 0.2), seed=1), tmp_path / "third")
    assert len({*by_split(tmp_path / "third")["test"]} & {*found["test"]}) < 130


def test_equal_documents_land_in_one_split(tmp_path):
    files = {
        "train.jsonl": lines(300),
        "again.jsonl": lines(300),
        "test/a.jsonl": lines(20),
        "validation/a.jsonl": lines(40),
    }
    source = write_source(tmp_path / "source", files)
    changed = parameters(
        source,
        validation=HeldOutParameters(files=("validation/*",), share=0.2),
        test=HeldOutParameters(files=("test/*",)),
    )
    manifest = write_corpus(changed, tmp_path / "data")
    found = by_split(tmp_path / "data")
    copies = 20 + 2 * 40  # of the test's in validation, of both in each file of train
    assert manifest["num_copies_of_held_out"] == copies
    assert sum(map(len, found.values())) == 660 - copies
    one, two, three = (set(found[name]) for name in ("train", "validation", "test"))
    assert not one & two and not one & three and not two & three
    assert found["test"] == [line["text"] for line in lines(20)]
    assert {line["text"] for line in lines(40)[20:]} < two
    assert len(found["validation"]) == 20 + 2 * len(two - {line["text"] for line in lines(40)})


def test_a_corpus_to_evaluate_on_alone(source, tmp_path):
    held_out = {"test": HeldOutParameters(files=("*",))}
    write_corpus(parameters(source, **held_out), tmp_path / "data")
    assert list(open_corpus(tmp_path / "data").splits) == ["test"]
    with pytest.raises(CorpusError, match="no split 'train'; there are test: a split is written"):
        open_corpus(tmp_path / "data", ["train", "validation"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"test": HeldOutParameters(files=("held/*.txt",))},
            r"validation.files and test.files both name held/out.txt, by 'held/\*' and",
        ),
        (
            {"test": HeldOutParameters(files=("tset/*",))},
            r"test.files: 'tset/\*' names no file under .* there are books/one.txt, books/two.txt",
        ),
        (
            {
                "validation": HeldOutParameters(files=("hled/*",)),
                "test": HeldOutParameters(files=("tset/*",)),
            },
            r"test.files: 'tset/\*' and validation.files: 'hled/\*' name no file under",
        ),
        ({"test": HeldOutParameters(share=0.01)}, "test.share = 0.01 of 7 documents came out as"),
        (
            {"sequence_length": 22},
            "sequence_length = 22 is more than the validation split has: 22 tokens in 1 documents",
        ),
    ],
)
def test_splits_that_cannot_be(source, tmp_path, changes, words):
    with pytest.raises(ParameterError, match=words):
        write_corpus(parameters(source, **HELD_OUT | changes), tmp_path / "data")
    assert not list(tmp_path.iterdir())


def test_validation_that_is_all_in_the_test(tmp_path):
    source = write_source(tmp_path / "source", {"a/x.txt": "the same", "held/y.txt": "the same"})
    with pytest.raises(ParameterError, match="validation.files: every document there is one of"):
        write_corpus(
            parameters(source, test=HeldOutParameters(files=("a/*",)), **HELD_OUT),
            tmp_path / "data",
        )


# Sequences


@pytest.mark.parametrize("sizes", [(50,), (21, 20, 1, 60), (7, 41, 2, 3, 20)])
@pytest.mark.parametrize("length", [1, 5, 20])
def test_packed_sequences(sizes, length):
    tokens = np.arange(sum(sizes), dtype=np.uint16)
    shards = np.split(tokens, np.cumsum(sizes)[:-1])
    packed = pack(TokenStream(shards), length)
    count = (len(tokens) - 1) // length
    expected = tokens[: count * length].reshape(count, length)
    for rows, wanted in ((packed.inputs, expected), (packed.labels, expected + 1)):
        assert rows.shape == wanted.shape and len(rows) == len(wanted)
        assert rows.dtype == np.uint16
        np.testing.assert_array_equal(np.asarray(rows), wanted)
        chosen = np.array([len(wanted) - 1, 0, 0])
        for key in (
            slice(1, 3),
            slice(None, None, 2),
            slice(2, 2),
            -1,
            chosen,
            chosen.tolist(),
            (chosen, slice(None, 3)),
            (slice(1, 3), slice(1, -1)),
            (slice(None), slice(None, None, 2)),
            (chosen, 0),
            (0, -1),
            (0, slice(9, 2)),
        ):
            found = rows[key]
            np.testing.assert_array_equal(found, wanted[key])
            assert np.shape(found) == wanted[key].shape
        with pytest.raises(IndexError):
            rows[len(wanted)]


def test_packed_split(folder):
    train = open_corpus(folder).split("train")
    stream, packed = train.stream()[:], train.packed(20)
    assert packed.inputs.shape == packed.labels.shape == ((len(stream) - 1) // 20, 20)
    np.testing.assert_array_equal(np.ravel(packed.inputs), stream[: packed.inputs.shape[0] * 20])
    np.testing.assert_array_equal(np.ravel(packed.labels)[:-1], np.ravel(packed.inputs)[1:])
    assert len(train.packed(train.num_tokens - 1).inputs) == 1
    with pytest.raises(CorpusError, match=f"one sequence of {train.num_tokens} tokens"):
        train.packed(train.num_tokens)


def test_token_streams():
    stream = TokenStream([np.arange(3, dtype=np.uint8), np.arange(3, 5, dtype=np.uint8)])
    assert stream.shape == (5,) and stream.dtype == np.uint8
    assert [stream[index] for index in (0, 2, 3, -1, -5)] == [0, 2, 3, 4, 0]
    assert stream[::-2].tolist() == [4, 2, 0] and stream[4:1].tolist() == []
    assert list(stream.truncated(4)) == [0, 1, 2, 3] and stream.truncated(3).shape == (3,)
    for index in (5, -6):
        with pytest.raises(IndexError):
            stream[index]


# Sources that fail


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "source: holds no documents; a source is a .txt file"),
        ({"notes.md": "text"}, "source: holds no documents"),
        ({"a.txt": ""}, "a.txt: the document is empty; remove it"),
        ({"a.txt": " \n\t\n"}, "a.txt: the document is empty"),
        ({"a.jsonl": [{"text": "x"}, {"text": " \n"}]}, "a.jsonl:2: the document is empty"),
        ({"a.txt": b"abc\xffdef"}, r"a.txt: is not UTF-8: byte 3 is 0xff \(invalid start byte\)"),
        ({"a.txt": b"\xef\xbb\xbfabc\xff"}, "a.txt: is not UTF-8: byte 6 is 0xff"),
        ({"a.jsonl": b'{"text": "x"}\n{"text": "\xe9"}\n'}, "a.jsonl: is not UTF-8: byte 24 is"),
        ({"a.jsonl": b'{"text": "x"}\n{"text": '}, "a.jsonl:2: is not valid JSON"),
        ({"a.jsonl": ["only text"]}, 'a.jsonl:1: is "only text"; allowed is an object'),
        (
            {"a.jsonl": [{"content": "x", "id": 3}]},
            "a.jsonl:1: there is no field 'text'; the fields are 'content', 'id': set text_field",
        ),
        ({"a.jsonl": [{}]}, "a.jsonl:1: there is no field 'text'; the fields are none"),
        ({"a.jsonl": [{"text": ["x"]}]}, r'a.jsonl:1: the field \'text\' is \["x"\], which is not'),
        ({"a.jsonl": [{"text": "\ud800 x"}]}, r"a.jsonl:1: character 0 .* surrogates \(.ud800\)"),
    ],
)
def test_documents_that_fail(tmp_path, files, words):
    source = tmp_path / "source"
    source.mkdir()
    write_source(source, files)
    with pytest.raises(CorpusError, match=words):
        write_corpus(parameters(source), tmp_path / "data")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ({"text": "x"}, "a.jsonl:1: there is no field 'meta.site'; .* set domain_field to one"),
        ({"text": "x", "meta": {"site": None}}, "a.jsonl:1: the field 'meta.site' is null"),
        ({"text": "x", "meta": {"site": ""}}, "a.jsonl:1: the field 'meta.site' is \"\""),
    ],
)
def test_domains_that_fail(tmp_path, line, words):
    source = write_source(tmp_path / "source", {"a.jsonl": [line]})
    with pytest.raises(CorpusError, match=words):
        write_corpus(parameters(source, domain_field="meta.site"), tmp_path / "data")


NULLS = [
    {"body": {"raw": "long enough"}, "meta": {"site": "a.org"}},
    {"body": None, "meta": {"site": "a.org"}},
    {"body": {"raw": None}, "meta": {"site": "a.org"}},
    {"body": {"raw": "of no domain"}, "meta": {"site": None}},
    {"body": {"raw": "of no domain"}, "meta": None},
    {"body": {"raw": "of no domain"}, "meta": {"site": ""}},
]


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_nulls_on_the_way_to_a_field_are_unusable(tmp_path, name):
    fields = {"text_field": "body.raw", "domain_field": "meta.site"}
    for number, line in enumerate(NULLS[1:]):
        source = write_source(tmp_path / f"source{number}", {"a.jsonl": [NULLS[0], line]})
        if name == "a.parquet":
            parquet.write_table(pyarrow.Table.from_pylist([NULLS[0], line]), source / name)
            (source / "a.jsonl").unlink()
        chosen = parameters(source, **fields)
        with pytest.raises(CorpusError, match=rf"{name}:2: the field '\w+\.\w+' is (null|\"\")"):
            write_corpus(chosen, tmp_path / "data")
        skipping = chosen.replace(unusable_documents="skip")
        assert write_corpus(skipping, tmp_path / "data")["num_unusable_documents"] == 1
        assert texts(open_corpus(tmp_path / "data").split("train")) == ["long enough"]


def test_a_field_in_a_column_without_fields_is_none(tmp_path):
    parquet.write_table(pyarrow.table({"text": ["long enough"]}), tmp_path / "a.parquet")
    with pytest.raises(CorpusError, match=r"there is no field 'text.raw'; .* set text_field to"):
        write_corpus(parameters(tmp_path / "a.parquet", text_field="text.raw"), tmp_path / "data")


def test_sources_that_are_not_there(tmp_path):
    with pytest.raises(CorpusError, match="nothing: no such file or folder; a source is"):
        write_corpus(parameters(tmp_path / "nothing"), tmp_path / "data")
    (tmp_path / "wiki.tokens").write_text("some text")
    with pytest.raises(CorpusError, match="wiki.tokens: is of no kind that is read"):
        write_corpus(parameters(tmp_path / "wiki.tokens"), tmp_path / "data")


def test_links_to_folders_and_other_kinds_are_not_read_and_named(tmp_path, caplog):
    elsewhere = write_source(tmp_path / "elsewhere", {"a.txt": "far away"})
    parts = {f"part.{number}.gz": b"zipped" for number in range(3)}
    files = {"d/c.txt": "at hand", "tokenizer.json": "{}", "d/b.jsonl.gz": b"zipped", **parts}
    files |= {f"d/a.kind{number:02}": b"" for number in range(12)}
    source = write_source(tmp_path / "source", files)
    linked = source / "d" / "linked"
    linked.symlink_to(elsewhere, target_is_directory=True)
    load_tokenizer("bytes").save(source)
    (source / "tokenizer_config.json").unlink()
    chosen = parameters(source, tokenizer=str(source / "tokenizer.json"))
    write_corpus(chosen, tmp_path / "data")
    train = open_corpus(tmp_path / "data").split("train")
    assert list(train.documents.names) == ["d/c.txt"]
    (said,) = (line for line in caplog.messages if "not everything there is read" in line)
    assert said.startswith(f"{source}: not everything there is read; left out: 3 .gz, 1 .")
    assert said.endswith(f", 4 other kinds, {linked}, a link to a folder")
    assert data_bytes(chosen) > 0


@pytest.mark.parametrize(
    ("folder", "tokenizer"),
    [("t", "t"), ("t", "t/tokenizer.json"), ("", ""), ("", "tokenizer.json")],
)
def test_the_files_of_a_tokenizer_are_no_text(tmp_path, caplog, folder, tokenizer):
    own = {"vocab.txt": "a b c d e f", "merges.txt": "#version: 0.2"}
    files = {"d/c.txt": "at hand", "d/vocab.txt": "a document"}
    files |= {f"{folder}/{name}".lstrip("/"): content for name, content in own.items()}
    source = write_source(tmp_path / "source", files)
    load_tokenizer("bytes").save(source / folder)
    chosen = parameters(source, tokenizer=str(source / tokenizer), **ONE_HELD_OUT)
    counted = tokens_at_most(chosen)
    write_corpus(chosen, tmp_path / "data")
    corpus = open_corpus(tmp_path / "data")
    assert list(corpus.split("train").documents.names) == ["d/c.txt"]
    assert list(corpus.split("test").documents.names) == ["d/vocab.txt"]
    assert counted["train"] == len("at hand") + 1
    is_said = any(f"{source / 't'}, the tokenizer's folder" in line for line in caplog.messages)
    assert is_said == (tokenizer == "t")


def test_a_folder_around_the_source_may_hold_its_tokenizer(tmp_path):
    source = write_source(tmp_path / "source", {"c.txt": "at hand"})
    load_tokenizer("bytes").save(tmp_path)
    write_corpus(parameters(source, tokenizer=str(tmp_path)), tmp_path / "data")
    assert list(open_corpus(tmp_path / "data").split("train").documents.names) == ["c.txt"]


def test_a_byte_order_mark_may_be_aside_of_a_file_alone(tmp_path, monkeypatch):
    """Read a file of 20 bytes and a mark; leave out a line of 22, which cannot be tokenised."""
    files = {"a.txt": b"\xef\xbb\xbf" + b"0" * 20, "b.jsonl": [{"text": "0" * 22}]}
    source = write_source(tmp_path / "source", files)
    monkeypatch.setattr(TextTokenizer, "max_bytes", 20)
    chosen = parameters(source, unusable_documents="skip")
    assert write_corpus(chosen, tmp_path / "data")["num_unusable_documents"] == 1
    assert texts(open_corpus(tmp_path / "data").split("train")) == ["0" * 20]


def test_a_document_within_which_a_text_ends_is_unusable(tmp_path):
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "</s>": 1, "one": 2}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["</s>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    lines = [{"text": "one one one one one"}, {"text": "one </s> one"}]
    source = write_source(tmp_path / "source", {"a.jsonl": lines})
    chosen = parameters(source, tokenizer=str(tmp_path / "tokenizer.json"))
    with pytest.raises(CorpusError, match="a.jsonl:2: the tokenizer .* end of text within .*</s>"):
        write_corpus(chosen, tmp_path / "data")
    skipping = chosen.replace(unusable_documents="skip")
    assert write_corpus(skipping, tmp_path / "data")["num_unusable_documents"] == 1


@pytest.mark.parametrize("files", [{"a.txt": "0" * 24}, {"a.jsonl": [{"text": "ä" * 12}]}])
def test_a_document_too_long_for_memory(tmp_path, monkeypatch, files):
    source = write_source(tmp_path / "source", files)
    monkeypatch.setattr(TextTokenizer, "max_bytes", 20)
    with pytest.raises(CorpusError, match="a.*: the document has 24 bytes; at most 20 are"):
        write_corpus(parameters(source), tmp_path / "data")


def test_a_document_of_which_the_tokenizer_leaves_nothing(tmp_path):
    load_tokenizer("bytes").save(tmp_path)
    path = tmp_path / "tokenizer.json"
    content = json.loads(path.read_text())
    content["normalizer"] = {"type": "Replace", "pattern": {"String": "x"}, "content": ""}
    path.write_text(json.dumps(content))
    source = write_source(tmp_path / "source", {"a.jsonl": [{"text": "axa"}, {"text": "xx"}]})
    with pytest.raises(CorpusError, match="a.jsonl:2: nothing is left of the document"):
        write_corpus(
            parameters(source, tokenizer=str(path)),
            tmp_path / "data",
        )


# Files that fail


def test_an_interrupted_write_leaves_no_manifest(copy, source, monkeypatch):
    def fail(*arguments):
        raise KeyboardInterrupt

    before = sorted(path.name for path in copy.iterdir())
    monkeypatch.setattr(TextTokenizer, "encode", fail)
    with pytest.raises(KeyboardInterrupt):
        write_corpus(parameters(source), copy)
    assert sorted(path.name for path in copy.iterdir()) == before
    open_corpus(copy).verify()
    monkeypatch.undo()
    replace = os.replace

    def fail_in_place(source, target):
        return fail() if Path(target).parent == copy else replace(source, target)

    monkeypatch.setattr(os, "replace", fail_in_place)
    with pytest.raises(KeyboardInterrupt):
        write_corpus(parameters(source), copy)
    with pytest.raises(CorpusError, match="manifest.json: is missing, the corpus is incomplete"):
        open_corpus(copy)
    assert [path.name for path in copy.parent.iterdir()] == ["books"]


def test_writing_again_replaces_everything(copy, source):
    write_corpus(parameters(source), copy)
    assert list(open_corpus(copy).splits) == ["train"]
    assert not (copy / "validation").exists()


def test_splits_can_be_opened_alone(copy):
    for path in copy.iterdir():
        if path.name != "train":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    corpus = open_corpus(copy, ["train"])
    corpus.verify()
    assert len(corpus.split("train").documents) == 6
    assert load_tokenizer(copy / "train").digest == corpus.tokenizer_digest


def test_missing_folder_and_split(folder, tmp_path):
    again = "`dvc repro prepare_corpus@nothing` writes it"
    with pytest.raises(CorpusError, match=f"nothing: no such folder; {again}"):
        open_corpus(tmp_path / "nothing")
    for name in ("test", "other", "../books/train"):
        with pytest.raises(CorpusError, match=f"no split '{name}'; there are train, validation"):
            open_corpus(folder).split(name)
        with pytest.raises(CorpusError, match=f"no split '{name}'; there are train, validation"):
            open_corpus(folder, [name])


@pytest.mark.parametrize("size", [0, 50, 200])
def test_a_truncated_shard(copy, size):
    path = copy / "train" / "tokens_00000.npy"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(CorpusError, match="train/tokens_00000.npy: is truncated .* `dvc repro"):
        open_corpus(copy)


def test_a_missing_shard(copy):
    (copy / "train" / "tokens_00000.npy").unlink()
    open_corpus(copy, ["validation"])
    with pytest.raises(CorpusError, match="train/tokens_00000.npy: no such file; `dvc repro"):
        open_corpus(copy)


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros(21, np.uint16), r"shape is \(21,\), its split says \(22,\)"),
        (np.zeros(22, np.int64), "dtype is int64, its split says uint16"),
    ],
)
def test_another_array(copy, array, words):
    np.save(copy / "validation" / "tokens_00000.npy", array)
    with pytest.raises(CorpusError, match=f"validation/tokens_00000.npy: the {words}"):
        open_corpus(copy)


@pytest.mark.parametrize(
    "name", ["tokens_00000.npy", "documents.npy", "names.json", "tokenizer.json"]
)
def test_changed_content(copy, name):
    path = copy / "train" / name
    corpus = open_corpus(copy)
    split = corpus.split("train")
    key = f"{name.partition('.')[0]}_sha256"
    expected = split.metadata.get(key) or split.metadata["shards"][0]["sha256"]
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    tokens = name == "tokens_00000.npy"
    found = hashlib.sha256(np.load(path).tobytes() if tokens else content).hexdigest()
    words = f"is {found}, {expected} was written; `dvc repro"
    with pytest.raises(CorpusError, match=f"train/{name}: the content has .* SHA-256 {words}"):
        corpus.verify()
    corpus.split("validation").verify()
    path.unlink()
    if name != "tokens_00000.npy":
        with pytest.raises(CorpusError, match=f"train/{name}: no such file"):
            open_corpus(copy).verify()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda rows: rows[:-1], "its 5 documents do not add up to the split's 6 with"),
        (lambda rows: rows[[0, 1, 2, 3, 4, 4]], "its 6 documents do not add up to"),
        (lambda rows: rows["start"], r"is damaged \(it holds uint64\)"),
        (lambda rows: None, "is damaged"),
    ],
)
def test_damaged_documents(copy, damage, words):
    path = copy / "train" / "documents.npy"
    rows = damage(np.load(path))
    path.write_bytes(path.read_bytes()[:-9]) if rows is None else np.save(path, rows)
    split = open_corpus(copy).split("train")
    with pytest.raises(CorpusError, match=f"documents.npy: {words}"):
        split.document(0)
    path.unlink()
    with pytest.raises(CorpusError, match="documents.npy: no such file"):
        _ = split.documents


@pytest.mark.parametrize("content", ["{", "[]", '{"files": ["a"]}'])
def test_damaged_names(copy, content):
    path = copy / "train" / "names.json"
    path.write_text(content)
    split = open_corpus(copy).split("train")
    with pytest.raises(CorpusError, match="names.json: is damaged"):
        split.document(0)
    path.unlink()
    with pytest.raises(CorpusError, match="names.json: no such file"):
        _ = split.documents


def test_a_manifest_of_another_tokenizer(copy):
    path = copy / "train" / "split.json"
    write_manifest(path, unsealed(path.read_bytes()) | {"tokenizer_digest": "0" * 64})
    with pytest.raises(CorpusError, match="split.json: is of another tokenizer: .* 000"):
        open_corpus(copy, ["train"]).verify()


@pytest.mark.parametrize("name", ["manifest.json", "train/split.json"])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format_version": 0}, "format_version is 0, this version of the library reads 3"),
        ({"end_of_text": ...}, "is incomplete, 'end_of_text' is missing"),
        (None, "is not valid JSON"),
        ([1], r"format_version is \[1\]"),
    ],
)
def test_damaged_manifests(copy, name, change, words):
    path = copy / name
    if isinstance(change, dict):
        content = unsealed(path.read_bytes()) | change
        write_manifest(path, {key: value for key, value in content.items() if value is not ...})
    else:
        path.write_text("{" if change is None else json.dumps(change))
    with pytest.raises(CorpusError, match=f"{name}: {words}.*; `dvc repro prepare_corpus@books`"):
        open_corpus(copy)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_tokens": 5}, "num_tokens is 5, the shards have"),
        ({"shards": [{"file": "tokens_00000.npy"}]}, "shards are not described .*'num_tokens'"),
        ({"shards": []}, "the shards have 0"),
        ({"vocabulary_size": 300}, "vocabulary_size is 300 in train and 257 in validation"),
    ],
)
def test_manifests_that_contradict(copy, change, words):
    path = copy / "train" / "split.json"
    write_manifest(path, unsealed(path.read_bytes()) | change)
    with pytest.raises(CorpusError, match=words):
        open_corpus(copy)


# Parameters


def read(tmp_path, text):
    path = tmp_path / "params.yaml"
    path.write_text(f"corpora:\n  books: {{source: text, sequence_length: 8, seed: 0{text}}}\n")
    return read_section("corpora.books", CorpusParameters, path)


def test_parameters(tmp_path):
    found = read(tmp_path, ", validation: {files: [a/*]}, test: {share: 0.1}, tokenizer: gpt2")
    assert found.validation == HeldOutParameters(files=("a/*",))
    assert found.test.share == 0.1 and found.tokenizer == "gpt2" and found.text_field == "text"
    assert not read(tmp_path, "").test.is_asked_for


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (", test: {share: 1.0}", "corpora.books.test.share = 1.0 is not allowed"),
        (", test: {share: .5}, validation: {share: .5}", "test.share = 0.5 .* below 1 together"),
        (", validation: {file: [a]}", "validation.file = .* the closest valid key is .*files"),
        (", text_field: ''", "corpora.books.text_field = '' is not allowed"),
    ],
)
def test_parameters_that_fail(tmp_path, text, words):
    with pytest.raises(ParameterError, match=words):
        read(tmp_path, text)


# Real files


def test_real_books_with_a_real_tokenizer(tmp_path):
    books = SHARED / "gutenberg"
    tokenizer = SHARED / "tokenizers" / "gpt-neox-20b" / "20B_tokenizer.json"
    if not (books.is_dir() and tokenizer.is_file()):
        pytest.skip("the books and GPT-NeoX's tokenizer are not here")
    title = "the-adventures-of-sherlock-holmes_pg1661"
    source = books / f"{title}.txt"
    changes = {"tokenizer": str(tokenizer)}
    write_corpus(parameters(source, **changes), tmp_path / "data")
    train = open_corpus(tmp_path / "data").split("train")
    content = source.read_bytes()
    assert train.documents.num_bytes.tolist() == [len(content.removeprefix(b"\xef\xbb\xbf"))]
    assert tuple(train.documents.domains) == (title,)
    assert texts(train)[0].encode() == content.removeprefix(b"\xef\xbb\xbf")
    assert (tmp_path / "data" / "train" / "split.json").stat().st_size < 2000
