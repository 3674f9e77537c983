"""Sentences about word problems: A5, S5, mixtures, Llama, ten seeds."""

import json
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import yaml
from scipy import stats

from benchmarks.harness import RESULTS
from implicit_models.problems.word_problem.data.splits import file_name, name_of_test
from implicit_models.problems.word_problem.data.writing import write_splits
from implicit_models.problems.word_problem.parameters import (
    WordProblemEvaluationParameters,
    WordProblemParameters,
)
from scripts.results_tables import runs_of
from scripts.store_notebooks import composed
from tests.results_prose.values import WORDS, each, held, model, part, rate, span

A5 = model("laptop", "implicit Mamba2, 2 layers")
LSTM = model("laptop", "torch's LSTM, 1 layer")
S5 = model("layers", "implicit Mamba2, 1 layer")
LLAMA = model("state_tracking_llama", "implicit Llama, 1 layer")
TEN_SEEDS = model("ten_seeds", "implicit Mamba2, 2 layers")
_SCORED = "the most frequent of the labels scored"


def in_short() -> Iterator[str]:
    assert min(TEN_SEEDS.scores(65536)) == 100
    yield f"right at 65,536, with [{WORDS[len(TEN_SEEDS.runs)]} seeds of ten]"
    yield f"A5 at 160 with [{WORDS[held(LLAMA.scores(160))]} of {WORDS[len(LLAMA.runs)]}]"
    yield f"S5 at 80 with [{WORDS[held(S5.scores(80))]} of {WORDS[len(S5.runs)]}]"


def a5() -> Iterator[str]:
    yield f"chance, {_SCORED}, is {between(chance('laptop'))}"
    yield f"for {part(LSTM.flops, A5.flops)} of the implicit model's FLOPs"
    of_ten = held(model("ten_seeds", "torch's LSTM, 1 layer").scores(160))
    yield f"has {LSTM.scores(160)[0]:.1f} % at 160 tokens, where {WORDS[of_ten]} of ten have 99"


def s5() -> Iterator[str]:
    yield f"chance, {_SCORED}, is {between(chance('layers'))}"
    scores = S5.scores(160)
    assert sum(score < 99 for score in scores) == 1 and scores.index(min(scores)) == 0
    yield "with all but one at eight times"
    yield f"and {scores[0]:.1f} % now"


def mixtures() -> Iterator[str]:
    first, easier = chance("mixtures"), chance("mixtures", 0.9)
    yield f"chance, {_SCORED}, is {each(first, 1)} % at the three lengths"
    yield f"nine tenths are (there it is {each(easier, 1)} %)"
    yield f"at chance ({easier[0]:.0f} % of these answers have the most frequent label)"
    second = {
        run["name"]: {length: 100 * share for length, share in run["further_tests"]["0.9"].items()}
        for run in runs_of(["mixtures"])
    }
    hard = [second["hard_implicit_mamba2"]["80"], second["hard_implicit_mamba2_seed_1"]["80"]]
    yield f"the two trained on hard ones have {hard[0]:.1f} and {hard[1]:.1f} % at 80 tokens"
    explicit = [second[f"{kind}_mamba2_4_layers"]["20"] for kind in ("half", "easy")]
    yield f"those trained on half or on easy tokens have {explicit[0]:.1f} and {explicit[1]:.1f} %"
    easy = [second["easy_implicit_mamba2"], second["easy_implicit_mamba2_seed_1"]]
    means = {length: statistics.mean(seed[length] for seed in easy) for length in ("20", "40")}
    yield f"has {means['20']:.0f} % of the last answers right on 20 tokens"
    yield f"and {means['40']:.0f} % on 40"


def llama() -> Iterator[str]:
    yield f"All {WORDS[held(LLAMA.scores(160))]} seeds follow A5 at eight times"
    yield f"costs {WORDS[round(LLAMA.flops / A5.flops)]} times the training FLOPs"
    assert round(LLAMA.parameters / A5.parameters) == 2
    yield "twice the parameters"


def ten_seeds() -> Iterator[str]:
    scores = TEN_SEEDS.scores(65536)
    assert min(scores) == 100
    yield f"such seeds: {rate(scores)}"
    lstm = model("ten_seeds", "torch's LSTM, 1 layer")
    yield f"takes {part(lstm.flops, TEN_SEEDS.flops)} of the implicit model's FLOPs"
    assert held(lstm.scores(20)) == len(lstm.runs) == 10
    (far,) = {held(lstm.scores(length)) for length in (1280, 16384, 65536)}
    yield (
        f"have 99 % at 20 tokens, {WORDS[held(lstm.scores(160))]} at 160, and {WORDS[far]} at "
        "1,280, 16,384 and 65,536"
    )
    yield f"holds so far with {WORDS[far]} of ten"


def generation() -> Iterator[str]:
    rows = json.loads((RESULTS / "word_problems.json").read_text())["rows"]
    (row,) = (row for row in rows if (row["group"], row["method"]) == ("A5", "generate"))
    speed, times = row["million_tokens_per_second"], row["times_the_loop"]
    yield f"| {speed:.0f} million tokens a second, {times:.0f} times a Python loop per token |"


def readme() -> Iterator[str]:
    lstm = model("ten_seeds", "torch's LSTM, 1 layer")
    p = [
        {_fisher(TEN_SEEDS.scores(length), lstm.scores(length)) for length in lengths}
        for lengths in ((80, 160), (1280, 16384, 65536))
    ]
    (first,), (second,) = p
    yield f"Fisher's exact test has p = {first}, and of ten against four, further on, {second} (not"
    yield f"chance (the most frequent of these labels) {between(chance('laptop'))}"
    assert min(TEN_SEEDS.scores(65536)) == 100
    yield f"with {WORDS[held(S5.scores(80))]} seeds of {WORDS[len(S5.runs)]}"


def _fisher(*models: Sequence[float]) -> str:
    """Return how likely as different numbers of seeds that hold are, were the models alike."""
    table = [[held(scores), len(scores) - held(scores)] for scores in models]
    return f"{stats.fisher_exact(table).pvalue:.2f}".removeprefix("0")


def between(shares: Sequence[float]) -> str:
    return f"{span(shares, 1)} %"


@cache
def chance(preset: str, identity: float | None = None) -> list[float]:
    """Return the share of the most frequent label among the last 10, in per cent, by length.

    That is of the tests of a preset's first data set, or of the further one with this share of
    easy tokens.
    """
    parameters = yaml.safe_load(composed(preset))
    data = next(iter(parameters["datasets"].values()))
    for split in ("train", "validation"):
        data[split]["num_sequences"] = 1  # tests are drawn first
    evaluation = WordProblemEvaluationParameters(**parameters["evaluation"]["word_problem"])
    with tempfile.TemporaryDirectory() as folder:
        write_splits(WordProblemParameters(**data), Path(folder) / "data")
        shares = []
        for length in evaluation.lengths:
            name = file_name(name_of_test(length, identity), "labels")
            read = np.load(Path(folder) / "data" / name)[: evaluation.num_sequences_of(length)]
            _, counts = np.unique(read[:, -10:], return_counts=True)
            shares.append(100 * counts.max() / counts.sum())
    return shares
