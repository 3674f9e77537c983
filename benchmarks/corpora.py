"""Speed of preparing a text corpus, and of reading it, on synthetic text.

Preparing is everything from the files of the source to the corpus in its place, digests included.
With the byte-level tokenizer it is judged by itself; with a byte-pair encoding, against the
tokenizer library called directly on the same texts, which are then in memory already. Both are in
one process with one thread, in turn, and the fastest of each counts, by the clock; the seconds of
the processor, which others on the same machine change less, stand beside them. The row of two
processes shows how the work is shared out.
"""

import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from benchmarks import harness
from implicit_models.problems.text.data.corpora import CorpusSplit, open_corpus, write_corpus
from implicit_models.problems.text.parameters import CorpusParameters, HeldOutParameters

VOCABULARY = 16384
BATCH_BYTES = 2**21  # handed to the library at once
SEQUENCES, LENGTH = 512, 2048  # of a step of pretraining: a million tokens


def run(quick: bool) -> harness.Report:
    """Measure tokens a second for both tokenizers, checksums, and random rows."""
    os.environ |= {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        size = 2**20 * (8 if quick else 96)
        _write_lines(root / "bytes" / "text.jsonl", size)
        byte_level = _write(root, "bytes", "bytes", 1)
        seconds = harness.measure(byte_level, repeats=3).best
        speed = _num_tokens(root / "corpus_bytes_1") / seconds / 1e6
        rows.append(_row("bytes", "write_corpus", 1, size, seconds, speed))
        split = open_corpus(root / "corpus_bytes_1").split("train")
        verified = harness.measure(split.verify, repeats=3).best
        rows.append(
            _row("bytes", "verify", 1, size, verified, split.num_tokens / verified / 1e6)
            | {
                "gigabytes_per_second": split.num_tokens
                * split.tokens.dtype.itemsize
                / 1e9
                / verified
            }
        )
        taken = harness.measure(_random_rows(split), repeats=20).median
        rows.append(
            _row("bytes", "512 random rows", 1, None, taken, SEQUENCES * LENGTH / taken / 1e6)
        )

        size = 2**20 * (4 if quick else 12)
        _write_lines(root / "bpe" / "text.jsonl", size)
        path = str(_train_tokenizer(root / "tokenizer.json"))
        calls = {
            "the library alone": _direct(path, root / "bpe" / "text.jsonl"),
            "write_corpus": _write(root, "bpe", path, 1),
        }
        found = _fastest(calls, 1 if quick else 6)
        num_tokens = _num_tokens(root / "corpus_bpe_1")
        for method, (seconds, of_processor) in found.items():
            row = _row("BPE", method, 1, size, seconds, num_tokens / seconds / 1e6)
            rows.append(row | {"processor_seconds": of_processor})
        unit_bytes = size // 8
        seconds = harness.measure(_write(root, "bpe", path, 2, unit_bytes), repeats=1).best
        rows.append(_row("BPE", "write_corpus", 2, size, seconds, num_tokens / seconds / 1e6))
    bars = {
        "bytes_million_tokens_per_second_per_core": harness.at_least(speed, 1.0),
        "bpe_share_of_the_librarys_own_speed": harness.at_least(
            found["the library alone"][0] / found["write_corpus"][0], 0.85
        ),
    }
    return harness.Report(rows, bars)


def _row(
    tokenizer: str,
    method: str,
    processes: int,
    size: int | None,
    seconds: float,
    million_tokens_per_second: float,
) -> dict[str, object]:
    return {
        "tokenizer": tokenizer,
        "method": method,
        "processes": processes,
        "megabytes_of_text": None if size is None else size / 1e6,
        "seconds": seconds,
        "million_tokens_per_second": million_tokens_per_second,
    }


def _texts(num_bytes: int) -> Iterator[str]:
    """Yield documents of made-up words, a few of them frequent and many rare, as in real text."""
    generator = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlucmfwypvbgk"))
    shares = np.arange(len(letters), 0, -1) / np.arange(1, len(letters) + 1).sum()
    lengths = generator.integers(2, 11, 50_000)
    words = ["".join(generator.choice(letters, n, p=shares)) for n in lengths]
    places = 1 / np.arange(1, len(words) + 1)
    written = 0
    for number in itertools.count():
        chosen = generator.choice(
            len(words), int(generator.lognormal(6, 1)) + 1, p=places / places.sum()
        )
        text = f"{number} " + " ".join(words[index] for index in chosen)
        written += len(text)
        if written > num_bytes:
            return
        yield text


def _write_lines(path: Path, num_bytes: int) -> None:
    path.parent.mkdir(parents=True)
    with open(path, "w", encoding="utf-8") as file:
        for text in _texts(num_bytes):
            file.write(json.dumps({"text": text}) + "\n")


def _train_tokenizer(path: Path) -> Path:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[AddedToken("<|endoftext|>", special=True)],
    )
    tokenizer.train_from_iterator(_texts(2**21), trainer)
    tokenizer.save(str(path))
    return path


def _write(
    root: Path, source: str, tokenizer: str, processes: int, unit_bytes: int = 2**26
) -> Callable[[], object]:
    parameters = CorpusParameters(
        source=str(root / source),
        tokenizer=tokenizer,
        sequence_length=LENGTH,
        test=HeldOutParameters(share=0.01),
        seed=0,
    )
    folder = root / f"corpus_{source}_{processes}"
    return lambda: write_corpus(parameters, folder, processes=processes, unit_bytes=unit_bytes)


def _num_tokens(folder: Path) -> int:
    return sum(split.num_tokens for split in open_corpus(folder).splits.values())


def _direct(tokenizer: str, lines: Path) -> Callable[[], None]:
    """Encode the texts, a batch at a time, and look at every id."""
    with open(lines, encoding="utf-8") as file:
        texts = [json.loads(line)["text"] for line in file]
    starts = np.cumsum([len(text) for text in texts]) // BATCH_BYTES
    batches = list(_batches(texts, starts))

    def encode() -> None:
        library = Tokenizer.from_file(tokenizer)  # a new one, which has kept no words
        for batch in batches:
            for encoding in library.encode_batch_fast(batch, add_special_tokens=False):
                len(encoding.ids)

    return encode


def _batches(texts: list[str], numbers: np.ndarray) -> Iterator[list[str]]:
    paired = zip(numbers.tolist(), texts, strict=True)
    for _, batch in itertools.groupby(paired, key=lambda pair: pair[0]):
        yield [text for _, text in batch]


def _fastest(
    calls: Mapping[str, Callable[[], Any]], repeats: int
) -> dict[str, tuple[float, float]]:
    """Return the least wall time and processor time of functions that are called in turn."""
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            start, start_of_processor = time.perf_counter(), time.process_time()
            call()
            taken = time.perf_counter() - start, time.process_time() - start_of_processor
            seconds[name].append(taken)
    return {
        name: (min(clock for clock, _ in times), min(processor for _, processor in times))
        for name, times in seconds.items()
    }


def _random_rows(split: CorpusSplit) -> Callable[[], object]:
    packed = split.packed(LENGTH)
    generator = np.random.default_rng(0)
    return lambda: packed.inputs[generator.integers(len(packed.inputs), size=SEQUENCES)]


if __name__ == "__main__":
    sys.exit(harness.main("corpora", run, packages=("numpy", "tokenizers", "pyarrow")))
