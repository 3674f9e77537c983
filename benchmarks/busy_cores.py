"""A training step beside other work: how often PyTorch's threads look before they sleep.

A step is a bounded one of ``make repro``'s implicit model, in a process of its own: alone, and
beside as many processes that only count as there are cores. What stages choose
(``implicit_models/threads.py``) is compared with what libgomp does by itself.
"""

import contextlib
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping

from benchmarks import harness

OURS, THEIRS = "a thread a core, as stages have it", "a thread a core, as libgomp has it"
CHOICES = {
    "one thread": {"OMP_NUM_THREADS": "1"},
    OURS: {},
    THEIRS: {"GOMP_SPINCOUNT": "300000"},
    "a thread a core, asleep at once": {"OMP_WAIT_POLICY": "passive"},
}

_STEPS = """
import sys, time
from benchmarks.busy_cores import training_step
step = training_step()
step()
start, steps = time.perf_counter(), 0
while time.perf_counter() - start < float(sys.argv[1]):
    step()
    steps += 1
print((time.perf_counter() - start) / steps)
"""


def run(quick: bool) -> harness.Report:
    """Time steps with every choice, alone and beside other work."""
    cores = len(os.sched_getaffinity(0))
    repeats, seconds = (1, 0.5) if quick else (3, 10.0)
    chosen = (OURS, THEIRS) if quick else CHOICES
    found: dict[tuple[str, int], list[float]] = {}
    for _ in range(repeats):
        for beside in (0, cores):
            with _busy(beside):
                for name in chosen:
                    took = _seconds_a_step(CHOICES[name], seconds)
                    found.setdefault((name, beside), []).append(took)
    medians = {key: statistics.median(times) for key, times in found.items()}
    rows = [
        {"threads": name, "busy processes beside": beside, "milliseconds": 1e3 * median}
        for (name, beside), median in medians.items()
    ]
    alone, busy = (medians[OURS, beside] / medians[THEIRS, beside] for beside in (0, cores))
    if cores == 1:  # a single thread waits for none
        return harness.Report(rows)
    bars = {
        "time alone, as a share of libgomp's": harness.at_most(alone, 1.1),
        "time beside other work, as a share of libgomp's": harness.at_most(busy, 0.5),
    }
    return harness.Report(rows, bars)


def training_step() -> Callable[[], None]:
    """Return a bounded training step of an untrained model, on sequences of 6 tokens."""
    import torch

    from benchmarks.trained import WordProblems, read_run, untrained_model
    from implicit_models.equilibrium.phase import bounded_phase

    parameters, group = read_run(), "A5"
    model = untrained_model(group).train()
    batch_size = parameters.optimisation.sequences_a_step(6)
    problems = WordProblems.draw(group, batch_size, 6, seed=0)
    inputs, labels = (torch.from_numpy(x).long() for x in (problems.inputs, problems.labels))
    phase = bounded_phase(parameters.bounded.num_self_iterations)

    def step() -> None:
        model.zero_grad()
        model(inputs, labels=labels, phase=phase).loss.backward()

    return step


def _seconds_a_step(environment: Mapping[str, str], seconds: float) -> float:
    left_out = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    command = [sys.executable, "-c", _STEPS, str(seconds)]
    return float(subprocess.check_output(command, env={**kept, **environment}, text=True))


@contextlib.contextmanager
def _busy(number: int) -> Iterator[None]:
    """Start processes that do nothing but count, and end them after a block."""
    command = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(command) for _ in range(number)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


if __name__ == "__main__":
    sys.exit(harness.main("busy_cores", run, packages=("torch",)))
