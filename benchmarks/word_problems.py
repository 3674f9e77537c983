"""Speed of generating word problems, on one core, against a plain Python loop per token.

Generating is drawing the inputs and multiplying their prefixes; the last row also keeps the
splits apart, digests the arrays and writes them to disk.
"""

import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks import harness
from implicit_models.problems.word_problem.data import groups
from implicit_models.problems.word_problem.data.sequences import prefix_products, sample_inputs
from implicit_models.problems.word_problem.data.writing import write_splits
from implicit_models.problems.word_problem.parameters import (
    SplitParameters,
    TestParameters,
    WordProblemParameters,
)

LENGTH = 256
BLOCK = 4096  # sequences drawn at a time, as `write_splits` does


def run(quick: bool) -> harness.Report:
    """Measure tokens a second for the vectorised generator and for the loop."""
    num_sequences = BLOCK * (8 if quick else 64)
    repeats = 3 if quick else 7
    rows = []

    def add(group: str, method: str, num_sequences: int, seconds: float) -> float:
        tokens_per_second = num_sequences * LENGTH / seconds
        rows.append(
            {
                "group": group,
                "method": method,
                "length": LENGTH,
                "num_sequences": num_sequences,
                "seconds": seconds,
                "million_tokens_per_second": tokens_per_second / 1e6,
            }
        )
        return tokens_per_second

    loop_sequences = 200 if quick else 2000
    timing = harness.measure(lambda: _loop("A5", loop_sequences), repeats=3)
    loop = add("A5", "a Python loop per token", loop_sequences, timing.best)
    timing = harness.measure(lambda: _products("A5", num_sequences), repeats=repeats)
    add("A5", "prefix products alone", num_sequences, timing.best)
    timing = harness.measure(_generator("A5", num_sequences, 0.0, "uniform"), repeats=repeats)
    vectorised = add("A5", "generate", num_sequences, timing.best)
    for group, probability, sampling in (
        ("A5", 0.9, "uniform"),
        ("S5", 0.0, "uniform"),
        ("A5 x M", 0.0, "uniform"),
        ("A5 x M", 0.9, "informative"),
        ("S6", 0.0, "uniform"),
    ):
        function = _generator(group, num_sequences, probability, sampling)
        timing = harness.measure(function, repeats=3)
        method = f"generate, identity {probability}, {sampling}"
        add(group, method, num_sequences, timing.best)
    with tempfile.TemporaryDirectory() as folder:
        timing = harness.measure(lambda: _write(num_sequences, Path(folder) / "a5"), repeats=3)
    add("A5", "write_splits", num_sequences, timing.best)
    for row in rows:
        row["times_the_loop"] = row["million_tokens_per_second"] * 1e6 / loop
    bar = harness.at_least(vectorised / 1e6, 40.0)
    return harness.Report(rows, {"a5_million_tokens_per_second": bar})


def _products(group: str, num_sequences: int) -> None:
    table = groups.multiplication_table(group)
    inputs = np.random.default_rng(0).integers(len(table), size=(BLOCK, LENGTH), dtype=table.dtype)
    for _ in range(num_sequences // BLOCK):
        prefix_products(table, inputs)


def _generator(
    group: str, num_sequences: int, probability: float, sampling: str
) -> Callable[[], None]:
    table = groups.multiplication_table(group)
    factors = groups.parse(group)
    generator = np.random.default_rng(0)

    def generate() -> None:
        for _ in range(num_sequences // BLOCK):
            inputs = sample_inputs(
                generator,
                factors,
                num_sequences=BLOCK,
                length=LENGTH,
                identity_probability=probability,
                monoid_sampling=sampling,
            )
            prefix_products(table, inputs)

    return generate


def _loop(group: str, num_sequences: int) -> None:
    """Draw and multiply one token after another, with the table as nested lists."""
    table = groups.multiplication_table(group).tolist()
    generator = random.Random(0)
    for _ in range(num_sequences):
        inputs, labels, state = [], [], 0
        for _ in range(LENGTH):
            element = generator.randrange(len(table))
            state = table[state][element]
            inputs.append(element)
            labels.append(state)


def _write(num_sequences: int, folder: Path) -> None:
    parameters = WordProblemParameters(
        kind="word_problem",
        group="A5",
        seed=0,
        train=SplitParameters(num_sequences=num_sequences, length=LENGTH),
        validation=SplitParameters(num_sequences=1, length=LENGTH),
        test=TestParameters(num_sequences=1024, lengths=(LENGTH,)),
    )
    write_splits(parameters, folder)


if __name__ == "__main__":
    sys.exit(harness.main("word_problems", run, num_cores=1))
