"""Tables of docs/benchmarks.md are what benchmarks/results holds."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from benchmarks import state_tracking
from benchmarks.harness import RESULTS
from scripts.measured import of_preset
from scripts.results_tables import ROOT

PAGE = (ROOT / "docs" / "benchmarks.md").read_text()
_TABLE = re.compile(r"^(\|.*)\n\|[-:| ]+\n((?:\|.*\n)+)", re.MULTILINE)


def tables(section: str, head: str) -> list[str]:
    """Return the rows under all tables of a section whose first line begins so."""
    body = PAGE.partition(f"# {section}\n")[2]
    body = re.split(r"^#+ ", body, maxsplit=1, flags=re.MULTILINE)[0]
    return [
        row
        for first, rows in _TABLE.findall(body)
        if first.startswith(head)
        for row in rows.splitlines()
    ]


def results(benchmark: str, part: str | None = None) -> list[dict[str, Any]]:
    rows = json.loads((RESULTS / f"{benchmark}.json").read_text())["rows"]
    return [row for row in rows if part in (None, row.get("part"))]


def line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def number(value: float | str | None) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"


def percent(share: float | None, digits: int = 2) -> str:
    return "" if share is None else f"{100 * share:.{digits}f} %"


def windows() -> Iterator[str]:
    models = ["A5 trained", "S3 trained", "A5 half-trained", "S3 half-trained"]
    rows = results("equilibrium", "windows")
    for row in sorted(rows, key=lambda row: models.index(row["model"])):
        found = row.get
        yield line(
            *(number(row[key]) for key in ("length", "window", "depth")),
            number(row["token_evaluations"] / (16 * row["length"])),
            *(number(found(key)) for key in ("seconds", "microseconds_per_token")),
            *(percent(found(key)) for key in ("accuracy", "token_match", "not_converged")),
        )


def patience() -> Iterator[str]:
    for row in results("equilibrium", "patience"):
        if "half" in row["model"] and row["window"] == 20:
            shares = ("accuracy", "token_match", "token_match_where_whole_converged")
            yield line(
                *(number(row[key]) for key in ("tolerance", "patience", "depth")),
                number(row["token_evaluations"] / (64 * row["length"])),
                *(percent(row[key]) for key in shares),
            )


def training() -> Iterator[str]:
    for row in results("equilibrium", "training"):
        yield line(
            *(number(row[key]) for key in ("model", "length", "window", "depth")),
            number(row["token_evaluations"] / (64 * row["length"])),
            number(row["seconds"]),
            percent(row["not_converged"]),
        )


def solvers() -> Iterator[str]:
    for row in results("equilibrium", "solvers"):
        keys = ("model", "length", "tolerance", "solver", "mean_iterations")
        yield line(
            *(number(row[key]) for key in keys),
            percent(row["not_converged"]),
            number(row["seconds"]),
        )


def torchdeq() -> Iterator[str]:
    for row in results("equilibrium", "torchdeq"):
        keys = ("solver", "library", "depth", "seconds", "peak_memory_mib")
        yield line(*(number(row[key]) for key in keys))


def generation() -> Iterator[str]:
    for row in results("generation"):
        speed = None if row["part"] == "a token" else row.get("tokens_per_second")
        keys = ("seconds", "milliseconds_per_evaluation", "self_iterations", "peak_memory_mib")
        seconds, *others = (number(row.get(key)) for key in keys)
        named = (number(row.get(key)) for key in ("family", "part", "model", "prompt", "texts"))
        speed = "" if speed is None else number(speed if speed < 100 else round(speed))
        yield line(*named, seconds, speed, *others)


def bars(benchmark: str, digits: int) -> Iterator[str]:
    content = json.loads((RESULTS / f"{benchmark}.json").read_text())
    for label, bar in content["bars"].items():
        values = (f"{bar[key]:.{digits}g}" for key in ("value", "required"))
        yield line(label, *values, "yes" if bar["holds"] else "no")


def state_tracking_bars() -> Iterator[str]:
    for part in state_tracking.PARTS:
        for label, bar in state_tracking.report(of_preset(part)).bars.items():
            yield line(label, f"{bar.value}", f"{bar.required}", "yes" if bar.holds else "no")


def window_error() -> Iterator[str]:
    rows = results("window_error")
    one, nine = ([row for row in rows if row["model"].endswith(seed)] for seed in ("1", "9"))
    for row, other in zip(one, nine, strict=True):
        shares = (percent(each["accuracy"], 1) for each in (row, other))
        errors = zip((error(row), error(other)), shares, strict=True)
        yield line(
            *(str(row[key]) for key in ("window", "tolerance", "patience")),
            f"{row['evaluations_per_token']:.1f}",
            f"{row['depth_per_token']:.2f}",
            f"{row['seconds']:.1f}",
            *(cell for pair in errors for cell in pair),
        )


def error(row: dict[str, Any]) -> str:
    value = row["error"]
    if value == 0:
        return "0"
    if value < 9.5e-4:
        return f"{value:.0e}".replace("e-0", "e-")
    return f"{value:.3f}".lstrip("0") if value < 1 else f"{value:.3g}"


def kernels() -> Iterator[str]:
    found = {
        (row["length"], row["part"], row["model"], row.get("dtype")): row["milliseconds"]
        for row in results("kernels")
        if row["part"].startswith("forward")
    }
    for length, each in dict.fromkeys(key[:2] for key in found):

        def cell(model: str, dtype: str = "float32", length: int = length, each: str = each) -> str:
            value = found[length, each, model, dtype]
            return number(value) if value < 1000 else f"{value:.0f}"

        chunks = [key[2] for key in found if key[:2] == (length, each) and "alone, " in key[2]]
        fastest = min(chunks, key=lambda model: found[length, each, model, "float32"])
        yield line(
            *(f"8 x {length:,}", each, cell("products of the projections alone"), cell(fastest)),
            *(cell("ours"), cell("ours", "bfloat16"), cell("ours, reference kernels")),
            *(cell("transformers, chunk 64"), cell("transformers, chunk 256")),
            cell("transformers, chunk 64", "bfloat16"),
        )


def few_rows() -> Iterator[str]:
    found: dict[str, list[str]] = {}
    for row in results("kernels"):
        if " rows times " in row["part"]:
            found.setdefault(row["part"], []).append(f"{row['gigabytes_per_second']:.1f}")
    for part, speeds in found.items():
        yield line(*part.split(" rows times "), *speeds)


def training_step() -> Iterator[str]:
    found = {(row["part"], row["when"]): row for row in results("training_step")}

    def cells(part: str, key: str, digits: int) -> list[str]:
        return [f"{found[part, when][key]:.{digits}f}" for when in ("before", "after")]

    for part in ("bounded, 4 iterations", "free, 24 + 4 iterations"):
        alone = found[f"matrix products alone, {part}", "both"]["milliseconds"]
        yield line(f"{alone:.0f}", *cells(f"step, {part}", "milliseconds", 0))
    for part in ("iteration of a search", "iteration with activations kept"):
        yield line("", *cells(part, "milliseconds", 1))
    for key in ("seconds_to_solve", "seconds"):
        yield line("", *cells("training to the end", key, 0))


def evaluation() -> Iterator[str]:
    bars = json.loads((RESULTS / "evaluation.json").read_text())["bars"]
    found = {label: bar["value"] for label, bar in bars.items()}
    long, memory = "peak memory, 16,384 tokens to 2,048", "peak memory of 16,384 tokens, GiB"
    apart = max(value for label, value in found.items() if "log-likelihoods" in label)
    for task in ("hellaswag", "lambada_openai"):
        speed = found[f"{task}: speed, ours to lm-eval's"]
        yield f"{speed:.2f}"
    yield f"{max(value for label, value in found.items() if 'accuracies' in label):.0f}"
    yield f"{apart:.1e}".replace("e-0", "e-")
    for kind in ("explicit", "implicit"):
        yield f"{found[f'mamba2-{kind}: minutes of 5,153 LAMBADA items']:.1f}"
    yield f"{max(value for label, value in found.items() if memory in label):.2f} GiB"
    for family in ("llama", "mamba2"):
        yield f"{found[f'{family}-implicit: {long}']:.2f}"
    yield f"{max(value for label, value in found.items() if 'FLOPs' in label):.0f}"


def pretraining() -> Iterator[str]:
    rows = results("pretraining", "training")
    pairs = list(zip(rows[::2], rows[1::2], strict=True))
    for pair in pairs:
        ours, trainer = (row["tokens_per_second"] for row in pair)
        yield line(f"{ours:,.0f}", f"{trainer:,.0f}", f"{ours / trainer:.2f}")
    ours, trainer = ([row["peak_memory_mib"] for row in each] for each in zip(*pairs, strict=True))
    shares = (f"{one / other:.2f}"[1:] for one, other in zip(ours, trainer, strict=True))
    sizes = (", ".join(f"{size:,.0f}" for size in each) + " MiB" for each in (ours, trainer))
    yield line(*sizes, ", ".join(shares))
    delays = [row["delay_of_100_steps"] for row in results("pretraining", "checkpoint")]
    yield line(", ".join(percent(delay)[1:] for delay in delays), "", "")
    content = json.loads((RESULTS / "pretraining.json").read_text())
    wait = content["bars"]["longest wait for batches, share of the time"]["value"]
    yield line(percent(wait)[1:], "", "")


def busy_cores() -> Iterator[str]:
    rows = results("busy_cores")
    for alone, beside in zip(rows[:4], rows[4:], strict=True):
        yield line(*(f"{row['milliseconds']:.3g} ms" for row in (alone, beside)))


def orchestration() -> Iterator[str]:
    found = {row["what"]: row for row in results("orchestration")}
    for what in (
        *("dvc repro, all cached", "an empty flow, all cached", "the flow, all cached"),
        *("overhead of the flow", "overhead of the flow, no database yet", "of that ours"),
    ):
        yield f"{found[what]['seconds']:.1f}"
    yield f"{found['four stages of 20 s, two slots']['over_ideal']:.3f}x"


CODES = ("b43cb1e", "5bd33a4", "1a926f0")


def on_a_gpu(part: str, key: str, what: str, model: str, code: str) -> list[float]:
    """Return a quantity of ours and of the baseline, of what was reached."""
    return [
        row["tokens_per_second" if part == "training step" else "seconds"]
        for side in ("ours", "baseline")
        for row in results("gpu", part)
        if (row["model"], row["side"], row[key], row["code"]) == (model, side, what, code)
        and row["parameters"] == "bfloat16"
    ]


def gpu_steps() -> Iterator[str]:
    for model in ("mamba2-350m", "mamba2-130m", "llama-350m", "llama-130m"):
        for phase in ("(24+4)", "(4+1)"):
            cells = []
            for code in CODES:
                found = on_a_gpu("training step", "phase", phase, model, code)
                digits = 1 if max(found, default=0) >= 1e4 else 2
                speeds = " / ".join(f"{speed / 1e3:.{digits}f}" for speed in found)
                ratio = f" ({found[0] / found[1]:.2f})" if len(found) == 2 else ""
                cells.append(speeds + ratio)
            yield line(*cells)


def gpu_evaluations() -> Iterator[str]:
    for model in ("mamba2-350m", "mamba2-130m", "llama-350m", "llama-130m"):
        for what in ("search only", "keeping activations"):
            if (model, what) == ("mamba2-130m", "keeping activations"):
                continue
            found = [on_a_gpu("cell evaluation", "what", what, model, code) for code in CODES]
            yield line(*(" / ".join(f"{1e3 * seconds:.1f}" for seconds in each) for each in found))


def shown(rows: list[str], columns: slice) -> list[str]:
    """Return some columns of rows, without what makes cells bold."""
    cells = [[cell.strip().strip("*") for cell in row.split("|")[1:-1]] for row in rows]
    return [line(*row[columns]) if len(row[columns]) > 1 else row[columns][0] for row in cells]


def about_windows() -> Iterator[str]:
    rows = results("equilibrium", "windows")
    found = {(row["model"], row["length"], row["window"]): row for row in rows}

    def ratios(key: str, one: int | str, other: int | str, shortest: int = 0) -> list[float]:
        return [
            found[model, length, one][key] / found[model, length, other][key]
            for model in ("A5 trained", "S3 trained")
            for length in (64, 256, 1024)
            if length >= shortest
        ]

    a5, s3 = ratios("seconds", "whole", 20, 1024)
    yield f"is {a5:.0f} times (A5) and {s3:.0f} times (S3) faster than the whole search"
    yield f"Its depth is {max(ratios('depth', 20, 'whole')):.2f} times that of the whole search"
    faster = [100 * (1 - ratio) for ratio in ratios("seconds", 16, 20, 256)]
    yield f"{min(faster):.0f} to {max(faster):.0f} % faster from 256 tokens on"
    slower = ratios("seconds", 32, 20)
    yield f"takes {min(slower):.1f} to {max(slower):.1f} times as long as one of 20"


def about_kernels() -> Iterator[str]:
    bars = json.loads((RESULTS / "kernels.json").read_text())["bars"]

    def span(label: str) -> str:
        values = [bar["value"] for name, bar in bars.items() if label in name]
        return f"{min(values):.2f} to {max(values):.2f} times"

    yield f"{span('float32, times')} its speed in float32"
    yield f"{span('bfloat16, times')} in bfloat16"
    yield f"The whole pass takes {span('products alone')} all its products alone"


ALL, VALUE, VALUES = slice(None), slice(1, 2), slice(1, 4)
TABLES: dict[tuple[str, str], tuple[Callable[[], Iterator[str]], slice]] = {
    ("Windows against whole sequences", "| tokens |"): (windows, ALL),
    ("Patience: when is a token done?", "| tolerance |"): (patience, ALL),
    ("What a window leaves unsettled", "| window |"): (window_error, ALL),
    ("Search in training", "| model |"): (training, ALL),
    ("Solvers", "| model |"): (solvers, ALL),
    ("Beside torchdeq", "| solver |"): (torchdeq, ALL),
    ("Bars", "| bar |"): (lambda: bars("equilibrium", 4), ALL),
    ("What generation costs", "| family |"): (generation, ALL),
    ("What generation costs", "| bar |"): (lambda: bars("generation", 3), ALL),
    ("Kernels on a CPU", "| tokens |"): (kernels, ALL),
    ("Kernels on a CPU", "| rows |"): (few_rows, ALL),
    ("A training step of `make repro`", "| |"): (training_step, VALUES),
    ("State tracking, seed by seed", "| bar |"): (state_tracking_bars, ALL),
    ("Evaluation", "| what |"): (evaluation, VALUE),
    ("Pretraining", "| what |"): (pretraining, VALUES),
    ("Beside other work", "| threads |"): (busy_cores, slice(1, 3)),
    ("Orchestration", "| what |"): (orchestration, VALUE),
    ("On a GPU", "| thousand tokens a second"): (gpu_steps, VALUES),
    ("On a GPU", "| an evaluation of the cell"): (gpu_evaluations, VALUES),
}
"""What writes a table's rows, and which columns; the others are words."""


@pytest.mark.parametrize(("section", "head"), TABLES)
def test_a_table_is_what_was_measured(section, head):
    measured, columns = TABLES[section, head]
    found, wanted = shown(tables(section, head), columns), list(measured())
    assert wanted and found == wanted


@pytest.mark.parametrize("sentences", [about_windows, about_kernels])
def test_a_sentence_says_what_was_measured(sentences):
    text = " ".join(PAGE.split())
    for sentence in sentences():
        assert sentence in text
