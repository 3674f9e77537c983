"""State tracking, seed by seed: at which length how many seeds hold, and what each has cost.

The preset `state_tracking` is run in a copy of this project, ``benchmarks/clones/state_tracking``,
two stages at once. It takes hours; what is stopped goes on where it was, and a second call
computes nothing. `--quick` shows the way with trainings of a few steps.
"""

import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.clones import clone, python
from implicit_models.problems.word_problem.report.seed_figures import TRACKED
from stages.notebooks import open_results

CLONE = Path(__file__).parent / "clones" / "state_tracking"
A5, S5, LLAMA = "a5_implicit_mamba2", "s5_implicit_mamba2", "a5_implicit_llama"

_LEFT_OUT = [
    *(f"~runs.{A5}_seed_{seed}" for seed in range(1, 10)),
    *(f"~runs.{S5}_seed_{seed}" for seed in range(1, 5)),
    f"~runs.{LLAMA}",
    *(f"~runs.{LLAMA}_seed_{seed}" for seed in range(1, 3)),
    *(f"~baselines.{name}" for name in ("a5_lstm", "a5_mamba2_4_layers", "s5_mamba2_1_layer")),
    *(f"~baselines.a5_llama_{each}_layers" for each in (2, 4)),
    *(f"~baselines.s5_mamba2_{each}_layers" for each in (2, 4, 8)),
]
_QUICK = [
    *_LEFT_OUT,
    *(
        f"runs.{run}.{key}"
        for run in (A5, S5)
        for key in (
            *("optimisation.warmup_steps=5", "bounded.num_training_steps=10"),
            *("bounded.lengths.growth_steps=10", "free.num_training_steps=10"),
            *("free.decay_steps=5", "free.lengths.growth_steps=5"),
        )
    ),
    *(
        f"baselines.a5_mamba2_2_layers.training.{key}"
        for key in ("num_training_steps=20", "decay_steps=10", "lengths.growth_steps=10")
    ),
    *(f"datasets.{name}.train.num_sequences=2048" for name in ("a5", "s5")),
    "datasets.a5.test.lengths=[20,40]",
    "evaluation.word_problem.num_sequences=16",
    f"runs.{S5}.evaluation.lengths=[20,40]",
    "sweep.word_problem.length=40",
    "sweep.word_problem.num_sequences=4",
    "sweep.word_problem.self_iterations=[1,8]",
    "sweep.word_problem.tolerances=[0.1]",
]


def run(quick: bool) -> harness.Report:
    """Run the preset, and count the seeds that hold."""
    if quick:
        with tempfile.TemporaryDirectory() as folder:
            return _measured(Path(folder), _QUICK)
    return _measured(CLONE, [])


def _measured(path: Path, settings: list[str]) -> harness.Report:
    clone(path, "state_tracking", *settings)
    python(path, "-m", "pipelines.reproduce", "--jobs", "2", shown=True)
    summary = json.loads((path / "results" / "summary.json").read_text())
    opened = open_results("word_problem", "state_tracking", path)
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
    sys.exit(harness.main("state_tracking", run, packages=("torch", "dvc", "prefect")))
