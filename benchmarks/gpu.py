"""Training steps, searches and kernels on a GPU, beside mamba-ssm's kernels with torchdeq's loop.

Models of the paper's sizes with random weights, 2,048 tokens a text. Parameters are bfloat16, the
residual stream and every sum within a kernel float32: the kernels then read and write bfloat16
alone, and no weight is rounded anew in each iteration. The small models have a row with float32
parameters under autocast as well, as transformers' Trainer does it (``bf16=True``).

- Ceilings: bfloat16 products of large matrices, and a copy (bytes read and written).
- Training steps: forward, loss, backward and AdamW, of the bounded phase (4+1) and the free phase
  (24+4): self-iterations without gradient, then phantom steps. The number of iterations is fixed,
  so that all do the same work. Peak memory is that of tensors, the optimiser's included.
- Evaluations of the cell: each of a search's, and one that keeps activations.
- Steps and searches of Mamba2 once more, with an iteration of the search as a CUDA graph.
- Kernels of a block of mamba2-350m or llama-350m, each beside mamba-ssm's where it has one, its
  twin in PyTorch and torch.compile of that.

The baseline is the same weights with mamba-ssm's unfused kernels and torchdeq's fixed-point
iteration; where either is not installed, the reference kernels or a plain loop, as the rows and the
bars' names say. Where memory runs out at a batch, half of it is tried, and the two sides are
compared at the same. `benchmarks.gpu_counts` says what is counted as work.

Each part runs in a process of its own: an error that leaves the device unusable, or a compilation
without end, costs its own part only. ``--quick`` runs everything at tiny sizes, on the CPU
(IMPLICIT_MODELS_DEVICE=cpu) too, where the fused kernels need TRITON_INTERPRET=1.
"""

import importlib.metadata
import importlib.util
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from benchmarks import harness
from benchmarks.gpu_device import FULL, MODELS, TINY, Row, ceilings, describe, device
from benchmarks.gpu_kernels import measure_kernels
from benchmarks.gpu_steps import BASELINE, CUDA_GRAPHS, OURS_AS_GRAPHS, measure_model
from implicit_models.kernels import cuda_graph

# Seconds that a part may take; what takes long is last: mamba-ssm tunes for a minute and more.
PARTS = {
    "ceilings": 60,
    "llama-350m": 60,
    f"llama-350m, {BASELINE}": 60,
    "llama-130m": 50,
    f"llama-130m, {BASELINE}": 50,
    "mamba2-350m": 100,
    f"mamba2-350m, {CUDA_GRAPHS}": 40,
    "mamba2-130m": 60,
    f"mamba2-130m, {CUDA_GRAPHS}": 40,
    f"mamba2-350m, {BASELINE}": 200,
    f"mamba2-130m, {BASELINE}": 120,
    "kernels": 150,
}
ALL_SECONDS = 510
PACKAGES = ("torch", "triton", "transformers", "torchdeq", "mamba_ssm", "causal_conv1d")
_MARK = "row: "


def run(quick: bool) -> harness.Report:
    """Measure all parts."""
    missing = None if quick else _what_is_missing()
    if missing:
        print(
            f"benchmarks.gpu needs an NVIDIA GPU and Triton, but {missing}; --quick runs all of it "
            "at tiny sizes on a CPU too, and judges nothing.",
            file=sys.stderr,
        )
        sys.exit(2)
    end = time.monotonic() + ALL_SECONDS
    rows: list[Row] = []
    for part, seconds in PARTS.items():
        if quick and "350m" in part:
            continue  # as tiny as the other
        limit = min(seconds, end - time.monotonic())
        if limit < 5:
            rows.append({"part": part, "error": "skipped: no time was left"})
            continue
        start = time.monotonic()
        rows += _in_a_process(part, quick, limit)
        print(f"{part}: {time.monotonic() - start:.0f} s", file=sys.stderr)
    add_shares(rows)
    return harness.Report(rows, {} if quick else bars(rows))


def _what_is_missing() -> str | None:
    if device().type != "cuda":
        return f"torch {torch.__version__} runs on {device().type} here"
    return None if importlib.util.find_spec("triton") else "Triton is not installed"


def _in_a_process(part: str, quick: bool, limit: float) -> list[Row]:
    """Run a part, and collect its rows as they come: they stay where it does not end well."""
    program = "import sys; from benchmarks.gpu import measure_part as m; m(*sys.argv[1:])"
    graphs = {cuda_graph.VARIABLE: str(int(part.endswith(CUDA_GRAPHS)))}
    process = subprocess.Popen(
        [sys.executable, "-c", program, part, "quick" if quick else "full"],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"TRITON_CACHE_AUTOTUNING": "1"} | graphs,
        start_new_session=True,
    )
    timed_out = threading.Event()

    def stop() -> None:
        timed_out.set()
        os.killpg(process.pid, signal.SIGKILL)

    timer = threading.Timer(limit, stop)
    timer.start()
    rows: list[Row] = []
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if line.startswith(_MARK):
                rows.append(json.loads(line.removeprefix(_MARK)))
            print(line, end="", file=sys.stderr, flush=True)
        code = process.wait()
    finally:
        timer.cancel()
        if process.returncode is None:  # Ctrl-C reaches no session but this one
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        process.stdout.close()
    if timed_out.is_set():
        rows.append({"part": part, "error": f"stopped after {limit:.0f} s"})
    elif code:
        rows.append({"part": part, "error": f"ended with exit code {code}"})
    return rows


def measure_part(part: str, how: str) -> None:
    """Print the rows of one part, each as soon as it is there."""
    scale = TINY if how == "quick" else FULL
    try:
        found: Iterator[Row]
        if part == "ceilings":
            found = ceilings(scale)
        else:
            found = measure_kernels(scale) if part == "kernels" else measure_model(part, scale)
        for row in found:
            print(_MARK + json.dumps({name: _plain(x) for name, x in row.items()}), flush=True)
    except Exception as error:  # what no case's own attempt has caught
        print(_MARK + json.dumps({"part": part, "error": describe(error)}), flush=True)


def _plain(value: Any) -> Any:
    """Return a value that JSON can hold: infinity becomes a string."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def add_shares(rows: Sequence[Row]) -> None:
    """Set what was reached in proportion to the measured ceilings."""
    for rate in ("teraflops", "gigabytes_per_second"):
        found = [row[rate] for row in rows if row["part"] == "ceiling" and rate in row]
        if not found:
            continue
        for row in rows:
            if rate in row and row["part"] != "ceiling":
                row[f"share_of_{rate}"] = row[rate] / max(found)


def bars(rows: Sequence[Row]) -> dict[str, harness.Bar]:
    """Judge the free phase and the search; what was not measured does not hold."""
    judged: dict[str, harness.Bar] = {}
    free = f"({FULL.phases[-1][0]}+{FULL.phases[-1][1]})"
    for model in MODELS:
        steps = [
            row
            for row in rows
            if (row["part"], row.get("model"), row.get("phase")) == ("training step", model, free)
            and row.get("parameters") == "bfloat16"
            and row["loop"] != OURS_AS_GRAPHS
            and "seconds" in row
        ]
        base = next((row for row in steps if row["side"] == "baseline"), None)
        batch = base and base["batch"]
        ours = next((r for r in steps if r["side"] == "ours" and r["batch"] == batch), None)
        against = "the baseline"
        if base:
            against = f"{base['kernels']} kernels with {base['loop']} loop"
        name = f"{model}, {free}, ours to {against}"
        is_known = bool(base and ours)
        speed = ours["tokens_per_second"] / base["tokens_per_second"] if base and ours else 0.0
        judged[f"{name}: tokens a second"] = harness.at_least(speed, 1.5)
        memory = ours["peak_memory_gib"] / base["peak_memory_gib"] if base and ours else 0.0
        judged[f"{name}: peak memory"] = harness.Bar(memory, 1.0, is_known and memory <= 1.0)

        seconds = {
            row["what"]: row["seconds"]
            for row in rows
            if (row["part"], row.get("model")) == ("cell evaluation", model)
            and row["side"] == "ours"
            and row["loop"] != OURS_AS_GRAPHS
            and "seconds" in row
        }
        searching = seconds.get("search only")
        ratio = seconds.get("keeping activations", 0.0) / searching if searching else 0.0
        judged[f"{model}: an evaluation that keeps activations to one of a search"] = (
            harness.at_least(ratio, 2.5)
        )
    return judged


if __name__ == "__main__":
    present = {found.metadata["Name"] for found in importlib.metadata.distributions()}
    sys.exit(harness.main("gpu", run, packages=[name for name in PACKAGES if name in present]))
