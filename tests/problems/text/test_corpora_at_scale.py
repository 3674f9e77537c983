"""Corpora written by several processes: the same to the byte, and found again after a kill."""

import errno
import fcntl
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from implicit_models.problems.text.data import corpus_writing
from implicit_models.problems.text.data.corpora import CorpusError, open_corpus, write_corpus
from implicit_models.problems.text.data.processes import num_cores, num_processes
from implicit_models.problems.text.data.tokenisation import load_tokenizer
from implicit_models.problems.text.parameters import CorpusParameters, HeldOutParameters

ROOT = Path(__file__).parents[3]
UNIT_BYTES = 2000  # of the tests: a source of some KiB has many units
END = 256


def make_texts(count, seed):
    """Texts of very different lengths, of which some come up again and again."""
    generator = random.Random(seed)
    words = ["grün", "day", "of", "the", "of\n", "ship", "😀", "never", "land"]
    return [
        f"{number % (count - 7)}: " + " ".join(generator.choices(words, k=generator.randint(1, 60)))
        if number % 5
        else f"text {number % 45} that is there more than once"
        for number in range(count)
    ]


def write_jsonl(path, texts):
    """Lines, with blank ones between them, and their numbers."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines, numbers = [], []
    for index, text in enumerate(texts):
        if index % 11 == 3:
            lines.append("  ")
        lines.append(json.dumps({"text": text, "meta": {"site": f"s{index % 3}"}}))
        numbers.append(len(lines))
    path.write_text("\n".join(lines) + "\n")
    return numbers


def write_zst(path, texts):
    numbers = write_jsonl(path.with_suffix(""), texts)
    content = path.with_suffix("").read_bytes()
    path.with_suffix("").unlink()
    codec = pyarrow.Codec("zstd")
    half = len(content) // 2  # two frames, as parallel compressors write them
    parts = (codec.compress(part, asbytes=True) for part in (content[:half], content[half:]))
    path.write_bytes(b"".join(parts))
    return numbers


def write_parquet(path, texts, row_group_size=16):
    path.parent.mkdir(parents=True, exist_ok=True)
    sites = [{"site": f"s{index % 3}"} for index in range(len(texts))]
    columns = {"number": list(range(len(texts))), "text": texts, "meta": sites}
    parquet.write_table(pyarrow.table(columns), path, row_group_size=row_group_size)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """A source of every kind, and its documents: file, number, text, split of the file."""
    folder = tmp_path_factory.mktemp("mixed")
    documents = []

    def add(name, numbers, texts, split="train"):
        documents.extend((name, n, t, split) for n, t in zip(numbers, texts, strict=True))

    for name, count, split in (
        ("held/test.jsonl", 90, "test"),
        ("held/validation.jsonl", 60, "validation"),
        ("many.jsonl", 400, "train"),
    ):
        texts = make_texts(count, count)
        add(name, write_jsonl(folder / name, texts), texts, split)
    for index in range(12):
        texts = make_texts(20, index)[3:4]
        (folder / f"notes_{index:02d}.txt").write_text(texts[0])
        add(f"notes_{index:02d}.txt", [0], texts)
    texts = make_texts(120, 3)
    write_parquet(folder / "table.parquet", texts)
    add("table.parquet", range(1, 121), texts)
    texts = make_texts(150, 4)
    add("zipped.jsonl.zst", write_zst(folder / "zipped.jsonl.zst", texts), texts)
    return folder, documents


def mixed_parameters(folder, **changes):
    defaults = CorpusParameters(
        source=str(folder),
        sequence_length=8,
        test=HeldOutParameters(files=("held/test*",), share=0.05),
        validation=HeldOutParameters(files=("held/val*",), share=0.1),
        seed=3,
    )
    return defaults.replace(**changes)


def expected_splits(documents, parameters):
    """Lay the documents out as they should be, one after the other."""
    reserved = {}
    splits = {"train": [], "validation": [], "test": []}
    for named in ("test", "validation", "train"):
        for file, number, text, split in documents:
            if split != named:
                continue
            digest = hashlib.blake2b(f"{parameters.seed}\0{text}".encode(), digest_size=16).digest()
            if reserved.get(digest, named) != named:
                continue
            if named == "train":
                position = int.from_bytes(digest[:8], "big") / 2**64
                drawn = "validation" if position >= 1 - parameters.validation.share else "train"
                place = "test" if position < parameters.test.share else drawn
            else:
                place = reserved.setdefault(digest, named)
            splits[place].append((f"{file}:{number}" if number else file, text))
    return splits


def content(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def plain(mixed, tmp_path_factory):
    """The corpus as one process writes it."""
    folder = tmp_path_factory.mktemp("data") / "mixed"
    write_corpus(mixed_parameters(mixed[0]), folder, processes=1, unit_bytes=UNIT_BYTES)
    return folder


# The same corpus, whoever writes it


def test_a_corpus_is_what_a_plain_loop_would_write(mixed, plain):
    parameters = mixed_parameters(mixed[0])
    expected = expected_splits(mixed[1], parameters)
    corpus = open_corpus(plain)
    corpus.verify()
    for name, documents in expected.items():
        split = corpus.split(name)
        names, texts = zip(*documents, strict=True)
        assert tuple(split.documents.names) == names
        stream = b"".join(
            np.frombuffer(t.encode(), "u1").astype("<u2").tobytes() + b"\0\1" for t in texts
        )
        assert split.stream()[:].tobytes() == stream
        sizes = [len(text.encode()) for text in texts]
        assert split.documents.num_bytes.tolist() == split.documents.num_tokens.tolist() == sizes
        assert split.documents.starts.tolist() == [0, *np.cumsum([n + 1 for n in sizes])[:-1]]
        assert split.metadata["num_bytes"] == sum(sizes)
    found = [{text for _, text in documents} for documents in expected.values()]
    assert not found[0] & found[1] and not found[0] & found[2] and not found[1] & found[2]
    assert len(expected["test"]) > 90 and len(expected["validation"]) > 60


@pytest.mark.parametrize("processes", [2, 5])
def test_the_number_of_processes_changes_nothing(mixed, plain, tmp_path, processes):
    parameters = mixed_parameters(mixed[0])
    write_corpus(parameters, tmp_path / "data", processes=processes, unit_bytes=UNIT_BYTES)
    assert content(tmp_path / "data") == content(plain)


@pytest.mark.parametrize("unit_bytes", [997, 10**6])
def test_the_units_change_nothing_that_is_joined(mixed, plain, tmp_path, unit_bytes):
    parameters = mixed_parameters(mixed[0])
    write_corpus(parameters, tmp_path / "data", processes=1, unit_bytes=unit_bytes)
    assert content(tmp_path / "data") == content(plain)


def test_shards_that_are_not_joined(mixed, plain, tmp_path, monkeypatch):
    monkeypatch.setattr("implicit_models.problems.text.data.joining.JOINED_TOKENS", 3000)
    parameters = mixed_parameters(mixed[0])
    write_corpus(parameters, tmp_path / "data", processes=1, unit_bytes=UNIT_BYTES)
    corpus, whole = open_corpus(tmp_path / "data"), open_corpus(plain)
    corpus.verify()
    sizes = [shard["num_tokens"] for shard in corpus.split("train").metadata["shards"]]
    assert len(sizes) > 10 and max(sizes) <= 3000
    assert all(one + other > 3000 for one, other in zip(sizes, sizes[1:], strict=False))
    for name, split in corpus.splits.items():
        other = whole.split(name)
        np.testing.assert_array_equal(split.stream()[:], other.stream()[:])
        assert (split.folder / "documents.npy").read_bytes() == (
            other.folder / "documents.npy"
        ).read_bytes()
        for rows, wanted in (
            (split.packed(50).inputs, other.packed(50).inputs),
            (split.packed(50).labels, other.packed(50).labels),
        ):  # rows that span shards are those of the one long shard
            np.testing.assert_array_equal(np.asarray(rows), np.asarray(wanted))


def test_the_format_changes_nothing_but_the_names(tmp_path):
    texts = make_texts(200, 8)
    write_jsonl(tmp_path / "lines" / "a.jsonl", texts)
    (tmp_path / "zst").mkdir()
    write_zst(tmp_path / "zst" / "a.jsonl.zst", texts)
    write_parquet(tmp_path / "rows" / "a.parquet", texts)
    found = []
    for kind in ("lines", "zst", "rows"):
        parameters = CorpusParameters(
            source=str(tmp_path / kind),
            domain_field="meta.site",
            sequence_length=8,
            test=HeldOutParameters(share=0.2),
            seed=0,
        )
        write_corpus(parameters, tmp_path / "data" / kind, processes=1, unit_bytes=UNIT_BYTES)
        corpus = open_corpus(tmp_path / "data" / kind)
        found.append(
            {
                name: (split.metadata["shards"], tuple(split.documents.domains))
                for name, split in corpus.splits.items()
            }
        )
    assert found[0] == found[1] == found[2]
    assert set(found[0]["train"][1]) == {"s0", "s1", "s2"}


def test_a_real_vocabulary_in_several_processes(mixed, tmp_path):
    """A tokenizer keeps, on its way to another process, that special tokens in a text are text."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[AddedToken("</s>", special=True)],
    )
    tokenizer.train_from_iterator([text for _, _, text, _ in mixed[1]], trainer)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    texts = [f"{number}: it says </s> here" for number in range(300)]
    write_jsonl(tmp_path / "texts" / "a.jsonl", texts)
    parameters = CorpusParameters(
        source=str(tmp_path / "texts"),
        tokenizer=str(tmp_path / "tokenizer.json"),
        sequence_length=8,
        seed=0,
    )
    for processes in (1, 2):
        out = tmp_path / "data" / str(processes)
        write_corpus(parameters, out, processes=processes, unit_bytes=UNIT_BYTES)
    assert content(tmp_path / "data" / "1") == content(tmp_path / "data" / "2")
    train = open_corpus(tmp_path / "data" / "2").split("train")
    loaded = load_tokenizer(tmp_path / "tokenizer.json")
    assert [loaded.decode(tokens) for tokens in train.document_tokens] == [
        f" {text}" for text in texts
    ]
    assert not any(loaded.end_of_text in tokens for tokens in train.document_tokens)


# Interruptions

KILLED = """
import functools, os, signal, sys
from implicit_models.problems.text.data import corpora, corpus_writing
from stages import prepare

limit, log = int(sys.argv[1]), open(sys.argv[2], "a")
each = corpus_writing.each

def counted(job, items, processes, progress):
    for number, item in enumerate(each(job, items, processes, progress), 1):
        print(item.number, file=log, flush=True)
        if number == limit:
            os.kill(os.getpid(), signal.SIGKILL)
        yield item

corpus_writing.each = counted
corpora.write_corpus = functools.partial(corpora.write_corpus, unit_bytes=int(sys.argv[3]))
if __name__ == "__main__":
    prepare.main("mixed")
"""


def prepare(folder, limit, log):
    """Run the stage; that it returns shows that no process of it is left, which held its output."""
    script = folder / "prepare.py"
    script.write_text(KILLED)
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "IMPLICIT_MODELS_PREPARE_PROCESSES": "2",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, str(script), str(limit), str(log), str(UNIT_BYTES)]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )


def test_a_killed_stage_goes_on_from_the_units_that_it_has_finished(mixed, plain, tmp_path):
    parameters = (
        f"corpora:\n  mixed: {{source: {mixed[0]}, sequence_length: 8, seed: 3,"
        " test: {files: ['held/test*'], share: 0.05},"
        " validation: {files: ['held/val*'], share: 0.1}}\n"
        "datasets: {}\n"
    )
    (tmp_path / "params.yaml").write_text(parameters)
    logs = [tmp_path / "first.log", tmp_path / "second.log"]
    killed = prepare(tmp_path, 7, logs[0])
    assert killed.returncode == -signal.SIGKILL
    work = tmp_path / "checkpoints" / "data" / "mixed"
    (identity,) = work.iterdir()
    there = {path.parent.name for path in identity.glob("0*/0*")}
    assert not (tmp_path / "data" / "mixed").exists()
    ended = prepare(tmp_path, 10**6, logs[1])
    assert ended.returncode == 0, ended.stderr
    first, second = (list(map(int, log.read_text().split())) for log in logs)
    assert first and second and not set(first) & set(second)
    assert not {int(name) for name in there} & set(second)  # nor what nobody was told of
    assert len(there) + len(second) == len({int(name) for name in there} | set(second))
    assert content(tmp_path / "data" / "mixed") == content(plain)
    assert not work.exists()
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["mixed"]


def failing_after(number, error):
    """A function of no effect that fails when it is called for the last time."""
    left = [number]

    def fail(*arguments):
        left[0] -= 1
        if not left[0]:
            raise error

    return fail


def test_a_full_disk_loses_nothing_that_was_finished(mixed, plain, tmp_path, monkeypatch):
    parameters, work = mixed_parameters(mixed[0]), tmp_path / "work"
    arguments = {"unfinished": work, "processes": 1, "unit_bytes": UNIT_BYTES}
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(os, "fsync", failing_after(60, full))
    words = "cannot be written .No space left on device.; what is finished stays: .* make room"
    with pytest.raises(CorpusError, match=words):
        write_corpus(parameters, tmp_path / "data", **arguments)
    monkeypatch.undo()
    (identity,) = work.iterdir()
    assert not list(identity.glob("0*/.*")) and not (tmp_path / "data").exists()
    finished = {path: path.stat().st_mtime_ns for path in identity.glob("0*/0*/part.json")}
    assert len(finished) > 5
    done = []
    each = corpus_writing.each
    monkeypatch.setattr(
        corpus_writing,
        "each",
        lambda job, items, *rest: (done.extend(i.number for i in items), each(job, items, *rest))[
            1
        ],
    )
    write_corpus(parameters, tmp_path / "data", **arguments)
    assert done and not set(done) & {int(path.parts[-3]) for path in finished}
    assert content(tmp_path / "data") == content(plain)


def test_a_unit_goes_on_behind_its_last_part(tmp_path, monkeypatch):
    """A file that cannot be cut in advance is one unit of many parts."""
    write_zst(tmp_path / "a.jsonl.zst", make_texts(300, 1))
    parameters = CorpusParameters(source=str(tmp_path / "a.jsonl.zst"), sequence_length=8, seed=0)
    arguments = {"processes": 1, "unit_bytes": UNIT_BYTES}
    write_corpus(parameters, tmp_path / "whole", **arguments)
    monkeypatch.setattr(os, "fsync", failing_after(10, OSError(errno.EIO, "Input/output error")))
    with pytest.raises(CorpusError, match="cannot be written .Input/output error."):
        write_corpus(parameters, tmp_path / "data", unfinished=tmp_path / "work", **arguments)
    parts = sorted((tmp_path / "work").glob("*/000000/0*"))
    assert [part.name for part in parts] == ["0000", "0001", "0002"]
    monkeypatch.undo()
    before = [part.stat().st_ino for part in parts]
    seen = []
    join = corpus_writing.join_split
    monkeypatch.setattr(
        corpus_writing,
        "join_split",
        lambda *given: (seen.extend(p.stat().st_ino for p in parts), join(*given))[1],
    )
    write_corpus(parameters, tmp_path / "data", unfinished=tmp_path / "work", **arguments)
    assert seen == before
    assert content(tmp_path / "data") == content(tmp_path / "whole")


def test_work_is_continued_by_the_same_corpus_alone(mixed, tmp_path, monkeypatch, caplog):
    source = tmp_path / "a.jsonl"
    write_jsonl(source, make_texts(50, 1))
    parameters = CorpusParameters(source=str(source), sequence_length=8, seed=0)
    arguments = {"unfinished": tmp_path / "work", "processes": 1, "unit_bytes": UNIT_BYTES}

    def interrupted(changed):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(corpus_writing, "join_split", failing_after(1, KeyboardInterrupt()))
            write_corpus(changed, tmp_path / "data", **arguments)
        return len(list((tmp_path / "work").iterdir()))

    assert interrupted(parameters) == interrupted(parameters) == 1
    assert interrupted(parameters.replace(sequence_length=9)) == 1
    assert interrupted(parameters.replace(seed=1)) == 2
    source.write_text(source.read_text() + '{"text": "one more"}\n')
    with caplog.at_level("INFO"):
        assert interrupted(parameters) == 3
    assert "is left by a corpus of other parameters, files or code" in caplog.text
    write_corpus(parameters, tmp_path / "data", **arguments)
    assert len(list((tmp_path / "work").iterdir())) == 2
    assert len(open_corpus(tmp_path / "data").split("train").documents) == 51


def test_two_writers_of_one_corpus(mixed, tmp_path, monkeypatch):
    parameters = mixed_parameters(mixed[0])
    arguments = {"unfinished": tmp_path / "work", "processes": 1}
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(corpus_writing, "join_split", failing_after(1, KeyboardInterrupt()))
        write_corpus(parameters, tmp_path / "data", **arguments)
    (folder,) = (tmp_path / "work").iterdir()
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(CorpusError, match="another process is writing this corpus"):
            write_corpus(parameters, tmp_path / "data", **arguments)
    write_corpus(parameters, tmp_path / "data", **arguments)


# Sources that fail


def refused(source, words, tmp_path, processes=1, **changes):
    parameters = CorpusParameters(source=str(source), sequence_length=1, seed=0, **changes)
    with pytest.raises(CorpusError, match=words):
        write_corpus(parameters, tmp_path / "data", processes=processes, unit_bytes=UNIT_BYTES)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("processes", [1, 2])
def test_mistakes_name_their_line_wherever_a_file_is_cut(tmp_path, processes):
    numbers = write_jsonl(tmp_path / "a.jsonl", make_texts(200, 5))
    lines = (tmp_path / "a.jsonl").read_text().splitlines()
    lines[numbers[150] - 1] = '{"text": "", "meta": 0}'
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    words = f"a.jsonl:{numbers[150]}: the document is empty"
    refused(tmp_path / "a.jsonl", words, tmp_path, processes)


def test_mistakes_name_their_row(tmp_path):
    texts = make_texts(120, 5)
    write_parquet(tmp_path / "a.parquet", [*texts[:77], " ", *texts[78:]])
    refused(tmp_path / "a.parquet", "a.parquet:78: the document is empty", tmp_path)
    write_parquet(tmp_path / "a.parquet", [*texts[:99], None, *texts[100:]])
    refused(tmp_path / "a.parquet", "a.parquet:100: the field 'text' is null", tmp_path)


def test_a_row_that_is_not_utf8_is_named_or_left_out(tmp_path):
    texts = [text.encode() for text in make_texts(40, 5)]
    wrong = pyarrow.array([*texts[:29], b"caf\xe9!", *texts[30:]], pyarrow.binary())
    column = pyarrow.Array.from_buffers(pyarrow.string(), len(wrong), wrong.buffers())
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": column}), path, row_group_size=16)
    words = r"a.parquet:30: a field of the row is not UTF-8: byte 3 is 0xe9 \(.*\); mend the row"
    refused(path, words, tmp_path)
    parameters = CorpusParameters(
        source=str(path), sequence_length=1, unusable_documents="skip", seed=0
    )
    manifest = write_corpus(parameters, tmp_path / "data", processes=1)
    assert manifest["num_unusable_documents"] == 1
    found = open_corpus(tmp_path / "data").split("train").document_tokens
    assert [bytes(tokens.tolist()) for tokens in found] == texts[:29] + texts[30:]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"text_field": "content"},
            "there is no field 'content'; the fields are 'number', 'text', 'meta': set text_field",
        ),
        ({"domain_field": "meta.page"}, "there is no field 'meta.page'; .* set domain_field to"),
        ({"text_field": "number"}, "a.parquet:1: the field 'number' is 0, which is not text"),
    ],
)
def test_tables_without_the_fields(tmp_path, changes, words):
    write_parquet(tmp_path / "a.parquet", make_texts(20, 5))
    refused(tmp_path / "a.parquet", words, tmp_path, **changes)


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl.zst", "a.jsonl"])
def test_damaged_and_empty_files(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(b"")
    refused(path, f"{name}: the file is empty; remove it", tmp_path)
    if name == "a.jsonl":
        return
    texts = make_texts(300, 5)
    write_parquet(path, texts) if name == "a.parquet" else write_zst(path, texts)
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) * 2 // 3], b"something else", whole[20:]):
        path.write_bytes(damaged)
        refused(path, f"{name}: is .*damaged.*; fetch it again", tmp_path)
    path.write_bytes(whole[:2000] + bytes(200) + whole[2200:])
    refused(path, f"{name}: is .*damaged.*; fetch it again", tmp_path)


def test_a_source_without_any_document(tmp_path):
    (tmp_path / "a.jsonl").write_text("\n \n")
    refused(tmp_path / "a.jsonl", "a.jsonl: holds no documents; all there is has no text", tmp_path)


def test_unusable_documents_can_be_left_out(tmp_path, caplog):
    (tmp_path / "texts").mkdir()
    lines = [{"text": "first"}, {"text": " "}, {"text": None}, {"text": "\ud800"}, {"text": "last"}]
    path = tmp_path / "texts" / "a.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for name in ("b.txt", "c.jsonl", "d.parquet", "e.jsonl.zst"):
        (tmp_path / "texts" / name).write_bytes(b"")
    parameters = CorpusParameters(
        source=str(tmp_path / "texts"), sequence_length=1, unusable_documents="skip", seed=0
    )
    manifest = write_corpus(parameters, tmp_path / "data", processes=1)
    assert manifest["num_unusable_documents"] == 4  # three lines, and the text without any
    assert "4 documents of" in caplog.text and "were left out" in caplog.text
    train = open_corpus(tmp_path / "data").split("train")
    assert list(train.documents.names) == ["a.jsonl:1", "a.jsonl:5"]
    assert [bytes(tokens.tolist()) for tokens in train.document_tokens] == [b"first", b"last"]


# Processes


def test_the_number_of_processes(monkeypatch):
    name = "IMPLICIT_MODELS_PREPARE_PROCESSES"
    monkeypatch.delenv(name, raising=False)
    assert num_processes() == num_cores() == len(os.sched_getaffinity(0))
    monkeypatch.setenv(name, "3")
    assert num_processes() == 3
    for wrong in ("0", "many", "-1"):
        monkeypatch.setenv(name, wrong)
        with pytest.raises(CorpusError, match=f"{name} = '{wrong}' is not allowed"):
            num_processes()
