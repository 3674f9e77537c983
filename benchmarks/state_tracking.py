"""State tracking, seed by seed: at which length how many seeds hold, and what each has cost.

Three presets, each a part with results of its own: `ten_seeds` (A5, on up to 65,536 tokens),
`layers` (S5) and `state_tracking_llama` (A5, by attention).

    python -m benchmarks.state_tracking            # all three, one after the other
    python -m benchmarks.state_tracking layers     # one of them

Each is run in a copy of this project, below ``benchmarks/clones``, two stages at once. It takes
hours; what is stopped goes on where it was, what `make figures` has trained is taken from DVC's
cache, and a second call computes nothing. `--quick` shows the way with trainings of a few steps.
"""

import argparse
import functools
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks import harness
from benchmarks.clones import ROOT, CommandError, reproduce
from implicit_models.parameters.composition import compose
from implicit_models.problems.word_problem.report.seed_figures import TRACKED
from stages.notebooks import open_results

CLONES = Path(__file__).parent / "clones"
PARTS = ("ten_seeds", "layers", "state_tracking_llama")
A5, S5, LLAMA = "a5_implicit_mamba2", "s5_implicit_mamba2", "a5_implicit_llama"

_STEPS = {
    "runs": (
        *("optimisation.warmup_steps=5", "bounded.num_training_steps=10"),
        *("bounded.lengths.growth_steps=10", "free.num_training_steps=10"),
        *("free.decay_steps=5", "free.lengths.growth_steps=5"),
    ),
    "baselines": (
        *("training.num_training_steps=20", "training.decay_steps=10"),
        "training.lengths.growth_steps=10",
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts that are asked for; the exit status is 1 where a bar of one does not hold."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.state_tracking")
    parser.add_argument("parts", nargs="*", metavar="PRESET", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="short trainings, judges nothing")
    options = parser.parse_args(arguments)
    if unknown := [part for part in options.parts if part not in PARTS]:
        parser.error(f"no part {unknown[0]} (of {', '.join(PARTS)})")
    try:
        return max(
            harness.main(
                "state_tracking",
                functools.partial(run, part),
                part=part,
                packages=("torch", "dvc", "prefect"),
                arguments=["--quick"] if options.quick else [],
            )
            for part in options.parts or PARTS
        )
    except CommandError as error:
        print(f"error: {error}; the same command goes on from there", file=sys.stderr)
        return 1


def run(part: str, quick: bool) -> harness.Report:
    """Run a preset, and count the seeds that hold."""
    if quick:
        with tempfile.TemporaryDirectory() as folder:
            return _measured(part, Path(folder), _short(part))
    return _measured(part, CLONES / part, [])


def _short(part: str) -> list[str]:
    """Return what makes a preset short: a seed of every model, a few steps, two tests."""
    tables = yaml.safe_load(compose(ROOT, [f"preset={part}"]))
    names = [(table, name) for table in ("runs", "baselines") for name in tables[table]]
    ((dataset, of_dataset),) = tables["datasets"].items()
    shorter, longer = of_dataset["test"]["lengths"][:2]
    return [
        *(f"~{table}.{name}" for table, name in names if "_seed_" in name),
        *(
            f"{table}.{name}.{setting}"
            for table, name in names
            if "_seed_" not in name
            for setting in _STEPS[table]
        ),
        f"datasets.{dataset}.train.num_sequences=2048",
        f"datasets.{dataset}.test.lengths=[{shorter},{longer}]",
        "evaluation.word_problem.num_sequences=16",
        f"sweep.word_problem.length={longer}",
        "sweep.word_problem.num_sequences=4",
        "sweep.word_problem.self_iterations=[1,8]",
        "sweep.word_problem.tolerances=[0.1]",
    ]


def _measured(part: str, path: Path, settings: list[str]) -> harness.Report:
    reproduce(path, part, *settings, jobs=2, cached=not settings)
    summary = json.loads((path / "results" / "summary.json").read_text())
    opened = open_results("word_problem", part, path)
    tracked = {run.name: run.tracked_length(TRACKED) for shown in opened for run in shown.runs}
    rows = [
        row
        for name, group in summary["success"].items()
        for row in _rows(name, group, summary["runs"], tracked)
    ]
    return harness.Report(rows, _bars(rows))


def _rows(
    name: str, group: Mapping[str, Any], runs: Mapping[str, Any], tracked: Mapping[str, int]
) -> list[dict[str, Any]]:
    """Return a row for each length that the models of one group were tested at."""
    members = [runs[each] for each in group["runs"]]
    rows = []
    for length, rate in group["by_length"].items():
        accuracies = [each["accuracy_last_10"][length] for each in members]
        rows.append(
            {
                "model": name,
                "tokens": int(length),
                "seeds": group["num_runs"],
                "hold": rate["num_solved"],
                "interval_low": rate["interval"][0],
                "interval_high": rate["interval"][1],
                "mean_accuracy": sum(accuracies) / len(accuracies),
                "lowest": min(accuracies),
                "highest": max(accuracies),
                "tracked_at_least": min(tracked[each] for each in group["runs"]),
                "training_seconds": sum(each["train_seconds"] for each in members) / len(members),
                "training_flops": sum(each["training_flops"] for each in members) / len(members),
            }
        )
    return rows


def _bars(rows: list[dict[str, Any]]) -> dict[str, harness.Bar]:
    """Judge what was asked for: how many seeds hold at which length."""
    asked = {(A5, 20): 10, (A5, 160): 10, (A5, 1280): 9, (S5, 20): 4, (LLAMA, 20): 3}
    found = {(row["model"], row["tokens"]): row["hold"] for row in rows}
    return {
        f"{model}: seeds with 99 % at {length} tokens": harness.at_least(
            found[model, length], required
        )
        for (model, length), required in asked.items()
        if (model, length) in found
    }


if __name__ == "__main__":
    sys.exit(main())
