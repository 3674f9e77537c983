"""The GPU benchmark, as far as it can be tested without one."""

import signal
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks import gpu, gpu_counts, gpu_steps
from benchmarks.gpu_device import FULL, MODELS, TINY
from implicit_models.families.sizes import count_parameters


def step(side: str, batch: int, speed: float, memory: float) -> dict[str, Any]:
    return {
        "part": "training step",
        "model": "mamba2-130m",
        "phase": "(24+4)",
        "side": side,
        "kernels": "mamba-ssm",
        "loop": "torchdeq",
        "parameters": "bfloat16",
        "batch": batch,
        "seconds": 1.0,
        "tokens_per_second": speed,
        "peak_memory_gib": memory,
    }


def evaluation(what: str, seconds: float, loop: str = "ours") -> dict[str, Any]:
    row = {"part": "cell evaluation", "model": "mamba2-130m", "side": "ours", "loop": loop}
    return row | {"what": what, "seconds": seconds}


def test_bars_compare_equal_batches_and_do_not_hold_without_figures():
    rows = [step("ours", 8, 900.0, 40.0), step("ours", 4, 800.0, 20.0)]
    rows += [{"part": "training step", "model": "mamba2-130m", "side": "baseline", "error": "no"}]
    rows += [step("baseline", 4, 400.0, 20.0)]
    rows += [evaluation("search only", 2.0), evaluation("keeping activations", 6.0)]
    rows += [evaluation("search only", 1.0, gpu_steps.OURS_AS_GRAPHS)]
    bars = gpu.bars(rows)
    own = {name: bar for name, bar in bars.items() if name.startswith("mamba2-130m")}
    assert [bar.value for bar in own.values()] == [2.0, 1.0, 3.0]
    assert all(bar.holds for bar in own.values())
    assert len(bars) == 3 * len(MODELS)
    assert not any(bar.holds for name, bar in bars.items() if name not in own)


@pytest.mark.parametrize("model", MODELS)
def test_operations_are_twice_the_weights_and_attention(model: str):
    config = FULL.config(model)
    matrices = config.num_hidden_layers * gpu_counts.block_weights(config)
    assert 0.97 < matrices / count_parameters(config).stack <= 1.0
    products = gpu_counts.cell_operations(config, 1, 0)
    assert products == 2 * matrices
    assert (gpu_counts.cell_operations(config, 1, 2048) > products) == model.startswith("llama")
    assert gpu_counts.cell_bytes(config, 0, 2) == 2 * matrices


def test_a_part_is_killed_where_the_benchmark_is_stopped(monkeypatch: pytest.MonkeyPatch):
    popen, started = subprocess.Popen, []

    def start(command: Any, **keywords: Any) -> Any:
        program = "import time; print('row: {}', flush=True); time.sleep(60)"
        started.append(popen([sys.executable, "-c", program], **keywords))
        return started[0]

    def stopped(line: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setattr(gpu, "json", SimpleNamespace(loads=stopped))
    before = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt):
        gpu._in_a_process("kernels", True, 60.0)
    assert started[0].poll() == -signal.SIGKILL
    for timer in set(threading.enumerate()) - before:
        timer.join(5.0)
        assert not timer.is_alive()


def test_a_step_that_does_not_fit_is_measured_at_half_the_batch(monkeypatch: pytest.MonkeyPatch):
    def measured(contender: Any, model: str, scale: Any, phase: Any, batch: int) -> dict[str, Any]:
        if batch > 2:
            raise torch.OutOfMemoryError("no memory for\nthis")
        if phase == (1, 1):
            raise RuntimeError("no kernel")
        return {"seconds": 1.0}

    monkeypatch.setattr(gpu_steps, "_step", measured)
    ours, _ = gpu_steps.contenders("llama")
    rows = list(gpu_steps._steps(ours, "llama-130m", TINY, (2, 1), 8))
    assert [(row["batch"], row.get("error")) for row in rows] == [
        (8, "OutOfMemoryError: no memory for"),
        (4, "OutOfMemoryError: no memory for"),
        (2, None),
    ]
    (row,) = gpu_steps._steps(ours, "llama-130m", TINY, (1, 1), 2)
    assert row["error"] == "RuntimeError: no kernel" and "seconds" not in row
