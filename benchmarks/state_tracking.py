"""State tracking, seed by seed: at which length how many seeds hold, and what each has cost.

Three presets, each a part with results of its own: `ten_seeds` (A5, on up to 65,536 tokens),
`layers` (S5, with five seeds) and `state_tracking_llama` (A5, by attention).

    python -m benchmarks.state_tracking            # all three, one after the other
    python -m benchmarks.state_tracking layers     # one of them
    python -m benchmarks.state_tracking --kept     # what was measured last, in a second

Each is run in a copy of this project, below ``benchmarks/clones``, two stages at once. It takes
hours; what is stopped goes on where it was, what `make figures` has trained is taken from DVC's
cache, and a second call computes nothing. What comes out is kept as `make figures` keeps it, in
docs/measured; `--kept` counts and judges what is there. `--quick` shows the way with trainings of a
few steps: of `ten_seeds`, where no other part is named.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks import harness
from benchmarks.clones import ROOT, CommandError, interrupted, reproduced
from implicit_models.parameters.composition import compose
from implicit_models.reporting.intervals import wilson
from pipelines.terminal import AGAIN
from scripts import measured
from scripts.measured import NotMeasuredError, of_folder, of_preset, take
from scripts.measured_tables import HOLDS
from scripts.results_tables import main as write_tables

CLONES = Path(__file__).parent / "clones"
PARTS = ("ten_seeds", "layers", "state_tracking_llama")
SEEDS = {"layers": range(5)}
"""Of parts whose preset has fewer than are asked for."""
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
    """Run the parts that are asked for; the exit status is 1 where a bar of one does not hold.

    It is 130 after Ctrl-C.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.state_tracking")
    parser.add_argument("parts", nargs="*", metavar="PRESET", help=f"of {', '.join(PARTS)}")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--quick", action="store_true", help="short trainings, judges nothing")
    how.add_argument("--kept", action="store_true", help="judge docs/measured, and run nothing")
    options = parser.parse_args(arguments)
    if unknown := [part for part in options.parts if part not in PARTS]:
        parser.error(f"no part {unknown[0]} (of {', '.join(PARTS)})")
    holds = True
    try:
        for part in options.parts or (PARTS[:1] if options.quick else PARTS):
            if not (options.quick or options.kept) and (status := _measure(part)):
                return status
            found = report(_briefly(part) if options.quick else of_preset(part))
            harness.tell(found)
            holds = holds and found.holds
    except KeyboardInterrupt:
        return interrupted(goes_on=not options.quick)
    except CommandError as error:
        again = "" if options.quick else f"; {AGAIN}"
        print(f"error: {error}{again}", file=sys.stderr)
        return 1
    except NotMeasuredError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0 if holds or options.quick else 1


def _measure(part: str) -> int:
    """Run a preset, and keep what comes out in docs/measured and the tables of the pages.

    Further seeds of its models that were measured before stay there. Returns the status of writing.
    """
    with reproduced(CLONES / part, part, jobs=2, cached=True, seeds=SEEDS.get(part, ())):
        take(part, CLONES / part, further=(measured.MEASURED / f"{part}.json").exists())
    return write_tables([])


def _briefly(part: str) -> list[dict[str, Any]]:
    """Run a preset with trainings of a few steps; return what comes out."""
    settings = _short(part)
    with (
        tempfile.TemporaryDirectory() as folder,
        reproduced(Path(folder), part, *settings, jobs=2, cached=False),
    ):
        return of_folder(part, Path(folder), settings)


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


def report(runs: Sequence[Mapping[str, Any]]) -> harness.Report:
    """Count the seeds that hold, of runs as docs/measured has them, and judge by that.

    There is a row for each model and length that it was tested at, of the seeds that have a score
    there; where some have none, it says how many.
    """
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for run in runs:
        groups.setdefault(run["group"], []).append(run)
    rows = [
        _row(name, length, seeds)
        for name, seeds in groups.items()
        for length in sorted({length for seed in seeds for length in seed["scores"]}, key=int)
    ]
    return harness.Report(rows, _bars(rows))


def _row(name: str, length: str, seeds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    known = [seed for seed in seeds if seed["scores"].get(length) is not None]
    scores = [seed["scores"][length] for seed in known]
    flops = [seed["training_flops"] for seed in known if seed["training_flops"] is not None]
    hold = sum(score >= HOLDS for score in scores)
    low, high = wilson(hold, len(scores)) if scores else (None, None)
    return {
        "model": name,
        "tokens": int(length),
        "seeds": len(scores),
        **({"without_score": len(seeds) - len(known)} if len(known) < len(seeds) else {}),
        "hold": hold,
        "interval_low": low,
        "interval_high": high,
        "mean_accuracy": statistics.mean(scores) if scores else None,
        "lowest": min(scores, default=None),
        "highest": max(scores, default=None),
        "training_seconds": statistics.mean(seed["train_seconds"] for seed in seeds),
        "training_flops": statistics.mean(flops) if flops else None,
    }


def _bars(rows: list[dict[str, Any]]) -> dict[str, harness.Bar]:
    """Judge what was asked for: how many seeds hold at which length."""
    asked = {(A5, 20): 10, (A5, 160): 10, (A5, 1280): 9}
    asked |= {(S5, 20): 4, (S5, 160): 4, (LLAMA, 20): 3, (LLAMA, 160): 3}
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
