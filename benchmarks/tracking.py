"""What tracking costs a training loop, and how fast a spool takes metrics and MLflow receives them.

The loop makes real optimiser steps for twenty seconds, a short training, and logs as often, and as
much, as training does, on the one core that it shares with everything else. Tracking is charged
with opening, logging and closing; stages with and without it alternate. To that the bar adds what
a training of ``LIVE_AFTER_SECONDS`` pays, because the courier begins to send beside it: all the
processor time of a process that imports MLflow, creates a database and sends what was logged.

The embedded store is filled in two ways: from a spool that is complete, and for as long as metrics
come in at twice the rate that it has to sustain; there the time counts until the last is stored.
"""

import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch
from torch import nn

from benchmarks import harness
from implicit_models.tracking.mlflow import Sender, deliver
from implicit_models.tracking.opening import open_tracker
from implicit_models.tracking.spool import open_spools
from implicit_models.tracking.sync import LIVE_AFTER_SECONDS
from implicit_models.tracking.tracker import NullTracker, Tracker

LOG_EVERY = 10
SUSTAINED = 1_000  # metrics a second that the embedded store has to take
METRICS = (
    "loss",
    "accuracy",
    "self_iterations",
    "relative_residual",
    "learning_rate",
    "gradient_norm",
    "tokens_per_second",
    "length",
)


def run(quick: bool) -> harness.Report:
    """Measure the stages in alternation, then the spool alone."""
    step = _training_step()
    seconds = harness.measure(step, repeats=50, warmup=5).median
    num_steps = max(LOG_EVERY, round((3 if quick else 20) / seconds))
    pairs = [_pair(step, num_steps) for _ in range(2 if quick else 3)]
    rows = []
    for column, name in enumerate(("without tracking", "with tracking")):
        median = statistics.median(pair[column] for pair in pairs)
        rows.append({"what": f"stage {name}", "steps": num_steps, "seconds": median})
    for column, name in ((2, "opening a tracker"), (3, "closing it")):
        rows.append({"what": name, "seconds": statistics.median(pair[column] for pair in pairs)})
    overhead = statistics.median(pair[1] / pair[0] - 1 for pair in pairs)
    courier = _courier(round(LIVE_AFTER_SECONDS / seconds / LOG_EVERY))
    rows.append({"what": "courier: processor time until it has sent", "seconds": courier})
    spool = _spool(1_000 if quick else 5_000)
    sustained = _sustained(5 if quick else 60)
    rows += [*spool, *sustained]
    return harness.Report(
        rows,
        {
            "overhead_percent": harness.at_most(
                100 * (overhead + courier / LIVE_AFTER_SECONDS), 2.0
            ),
            "spool_metrics_per_second": harness.at_least(spool[0]["metrics_per_second"], 50_000),
            "sustained_metrics_per_second": harness.at_least(
                sustained[0]["metrics_per_second"], 1_000
            ),
        },
    )


def _training_step():
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(8)))
    optimiser = torch.optim.AdamW(model.parameters())
    inputs = torch.randn(512, 256)

    def step() -> None:
        optimiser.zero_grad()
        model(inputs).square().mean().backward()
        optimiser.step()

    return step


def _train(step, num_steps: int, tracker: Tracker) -> float:
    start = time.perf_counter()
    for number in range(num_steps):
        step()
        if number % LOG_EVERY == 0:
            tracker.log_metrics({name: float(number) for name in METRICS}, number)
    return time.perf_counter() - start


def _pair(step, num_steps: int) -> tuple[float, float, float, float]:
    """Seconds of training without and with tracking, and of opening and closing a tracker."""
    without = _train(step, num_steps, NullTracker())
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        root = Path(folder)
        start = time.perf_counter()
        tracker = _open(root, send=True)
        opening = time.perf_counter() - start
        training = _train(step, num_steps, tracker)
        start = time.perf_counter()
        tracker.close()
        closing = time.perf_counter() - start
        deliver(root)  # beside the next measurement it would count there
    return without, opening + training + closing, opening, closing


def _courier(num_calls: int) -> float:
    """Processor seconds of a process that sends so many logged steps into a new SQLite store."""
    with tempfile.TemporaryDirectory() as folder:
        with _open(Path(folder), send=False) as tracker:
            for number in range(num_calls):
                tracker.log_metrics({name: float(number) for name in METRICS}, number)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "implicit_models.tracking.sync", "--root", folder]
        subprocess.run(command, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def _spool(num_calls: int) -> list[dict]:
    """Metrics a second into the spool, and from there into a new SQLite store."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        _open(root, send=False).close()
        sender = Sender(root)
        sender.send(open_spools(root))
        tracker = _open(root, send=False)
        start = time.perf_counter()
        for number in range(num_calls):
            tracker.log_metrics({name: float(number) for name in METRICS}, number)
        writing = time.perf_counter() - start
        tracker.close()
        start = time.perf_counter()
        problems = sender.send(open_spools(root))
        sending = time.perf_counter() - start
        if problems:
            raise RuntimeError(f"cannot send: {problems}")
    num_metrics = num_calls * len(METRICS)
    return [
        {"what": what, "seconds": seconds, "metrics_per_second": num_metrics / seconds}
        for what, seconds in (("spool: write", writing), ("spool: send to SQLite", sending))
    ]


def _sustained(seconds: int) -> list[dict]:
    """Metrics a second into the embedded store, while a stage logs twice what is asked for.

    Each counts once, and is stored twice, for the stage and for its entry.
    """
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        _open(root, send=False).close()
        sender = Sender(root)
        sender.send(open_spools(root))
        tracker = _open(root, send=False)
        num_calls = round(2 * SUSTAINED * seconds / len(METRICS))
        start = time.perf_counter()

        def log() -> None:
            for number in range(num_calls):
                due = start + number * len(METRICS) / (2 * SUSTAINED)
                time.sleep(max(0.0, due - time.perf_counter()))
                tracker.log_metrics({name: float(number) for name in METRICS}, number)
            tracker.close()

        writer = threading.Thread(target=log)
        writer.start()
        while writer.is_alive():
            if sender.send(open_spools(root)):
                raise RuntimeError("cannot send to the embedded store")
        logged = time.perf_counter() - start
        sender.send(open_spools(root))
        took = time.perf_counter() - start
    num_metrics = num_calls * len(METRICS)
    return [
        {
            "what": "spool: sustained into SQLite",
            "seconds": took,
            "metrics_per_second": num_metrics / took,
        },
        {"what": "of which after the last was logged", "seconds": took - logged},
    ]


def _open(root: Path, send: bool) -> Tracker:
    return open_tracker(
        entry="benchmark",
        stage="train_baseline",
        parameters={"metrics": METRICS},
        dataset="none",
        root=root,
        send=send,
    )


if __name__ == "__main__":
    sys.exit(harness.main("tracking", run, num_cores=1, packages=("mlflow", "torch")))
