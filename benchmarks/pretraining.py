"""Pretraining beside the stock Trainer of transformers, the wait for batches, and checkpoints.

One process on two cores at a time, float32, random tokens from a file, four layers of width 256;
`benchmarks.pretraining_runs` says what both trainers have in common.

- Explicit models of equal size: transformers' ``LlamaForCausalLM`` (its sdpa attention) and
  ``Mamba2ForCausalLM`` (its path in PyTorch, with the chunk length that is fastest here) in its
  ``Trainer``, and ours in ours. Every figure is the median over the steps of processes that take
  turns, the first steps of each left out; peak memory is the process's own figure
  (``VmHWM``), the interpreter and its libraries with it.
- How long training waits for its batches, in all these runs of ours, the start with it.
- What a checkpoint delays: by how much the `DELAYED` steps from each checkpoint on, while it is
  being written, take longer than the other steps; over the `INTERVAL` steps that lie between two.
"""

import dataclasses
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.pretraining_runs import RUNS, Run, Setting, write_tokens

FAMILIES = ("llama", "mamba2")
# Vocabulary, length, batch, steps that count, repeats; the paper's vocabulary is the larger one.
SIZES = ((8_192, 512, 4, 12, 3), (50_277, 512, 4, 6, 3), (50_277, 2_048, 2, 4, 3))
LAYERS, WIDTH = 4, 256
WARM = 3
NUM_TOKENS = 2**24
INTERVAL, DELAYED, SAVE_EVERY, SAVES = 100, 3, 8, 3
Measured = tuple[list[dict[str, Any]], dict[str, harness.Bar]]


def run(quick: bool) -> harness.Report:
    """Measure all parts."""
    rows: list[dict[str, Any]] = []
    bars: dict[str, harness.Bar] = {}
    with tempfile.TemporaryDirectory() as folder:
        ours: list[Run] = []
        for more_rows, more_bars in (
            _beside_the_trainer(quick, Path(folder), ours),
            _checkpoints(quick, Path(folder), ours),
            _waits(ours),
        ):
            rows += more_rows
            bars |= more_bars
    return harness.Report(rows, bars)


def _beside_the_trainer(quick: bool, folder: Path, ours: list[Run]) -> Measured:
    rows, bars = [], {}
    for family in FAMILIES[:1] if quick else FAMILIES:
        for vocabulary, length, batch, steps, repeats in SIZES[:1] if quick else SIZES:
            setting = _setting(quick, family, vocabulary, folder)
            if not quick:
                steps = steps + WARM + 1
                setting = dataclasses.replace(setting, length=length, batch=batch, steps=steps)
            found: dict[str, list[Run]] = {who: [] for who in RUNS}
            for _ in range(1 if quick else repeats):
                for who in RUNS:
                    found[who].append(_run(who, setting))
            ours += found["ours"]
            speeds, peaks = {}, {}
            for who, runs in found.items():
                seconds = statistics.median(s for run in runs for s in run.step_seconds)
                speeds[who] = setting.batch * setting.length / seconds
                peaks[who] = statistics.median(run.peak_memory_mib for run in runs)
                rows.append(
                    _row(setting, "training", runs[-1])
                    | {
                        "trainer": who,
                        "tokens_per_second": speeds[who],
                        "peak_memory_mib": peaks[who],
                        "loss": runs[-1].loss,
                    }
                )
            name = f"{family}, vocabulary {setting.vocabulary:,}, length {setting.length:,}"
            faster = speeds["ours"] / speeds["Trainer"]
            bars[f"{name}: tokens/s over the Trainer's"] = harness.at_least(faster, 1.2)
            larger = peaks["ours"] / peaks["Trainer"]
            bars[f"{name}: peak memory over the Trainer's"] = harness.at_most(larger, 1.0)
    return rows, bars


def _checkpoints(quick: bool, folder: Path, ours: list[Run]) -> Measured:
    rows, bars = [], {}
    for family in FAMILIES[:1] if quick else FAMILIES:
        setting = _setting(quick, family, SIZES[0][0] if quick else SIZES[1][0], folder)
        steps = SAVE_EVERY * (SAVES + 1)
        setting = dataclasses.replace(setting, steps=steps, checkpoint_every=SAVE_EVERY)
        run = _run("ours", setting)
        ours.append(run)
        late = {at + i for at in run.saved_before for i in range(DELAYED)}
        usual = statistics.median(
            seconds for at, seconds in enumerate(run.step_seconds) if at not in late
        )
        delay = sum(run.step_seconds[at] - usual for at in late) / len(run.saved_before)
        share = delay / (INTERVAL * usual)
        rows.append(
            _row(setting, "checkpoint", run)
            | {
                "trainer": "ours",
                "tokens_per_second": setting.batch * setting.length / usual,
                "delay_milliseconds": delay * 1e3,
                "delay_of_100_steps": share,
            }
        )
        bars[f"{family}: delay by a checkpoint every {INTERVAL} steps"] = harness.at_most(
            share, 0.02
        )
    return rows, bars


def _waits(ours: list[Run]) -> Measured:
    worst = max(run.waited / run.seconds for run in ours)
    return [], {"longest wait for batches, share of the time": harness.at_most(worst, 0.01)}


def _setting(quick: bool, family: str, vocabulary: int, folder: Path) -> Setting:
    tokens = folder / f"{vocabulary}.npy"
    if not tokens.exists():
        write_tokens(tokens, vocabulary, 2**18 if quick else NUM_TOKENS)
    return Setting(
        family=family,
        layers=1 if quick else LAYERS,
        width=64 if quick else WIDTH,
        vocabulary=vocabulary,
        length=64 if quick else SIZES[0][1],
        batch=2 if quick else SIZES[0][2],
        tokens=str(tokens),
        steps=6,
        warm=1 if quick else WARM,
    )


def _run(who: str, setting: Setting) -> Run:
    program = (
        "import sys; from benchmarks.pretraining_runs import report_run as r; r(*sys.argv[1:])"
    )
    command = [sys.executable, "-c", program, who, json.dumps(asdict(setting))]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return Run(**json.loads(done.stdout.splitlines()[-1]))


def _row(setting: Setting, part: str, run: Run) -> dict[str, Any]:
    return {
        "part": part,
        "family": setting.family,
        "vocabulary": setting.vocabulary,
        "length": setting.length,
        "batch": setting.batch,
        "parameters": run.parameters,
    }


if __name__ == "__main__":
    packages = ("torch", "transformers", "accelerate")
    sys.exit(harness.main("pretraining", run, num_cores=2, packages=packages))
