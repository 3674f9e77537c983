"""What tracking costs a training loop, and how fast a spool takes metrics and MLflow receives them.

The loop makes real optimiser steps, and logs as often, and as much, as the training of an implicit
model does, on the one core that it shares with everything else. Blocks of steps with and without
logging alternate, so that a processor which slows down slows both; the share is the median over the
pairs of neighbours. To it come the seconds of opening and closing, and all the processor time of
two others: of the thread that samples the machine's load, and of the courier, which looks for what
is new and sends it.

Tracking is charged to a training of ten minutes, during which a new courier imports MLflow, creates
a database and begins to send, and to one without end, where the courier rests a hundred times as
long as it works: with all the processor time that it takes. What a training really loses to it is
less, since it runs at the lowest priority: blocks beside a courier that imports MLflow and sends,
and beside one that is halted, alternate.

The embedded store is filled in two ways: from a spool that is complete, and for as long as metrics
come in at twice the rate that it has to sustain; there the time counts until the last is stored.
"""

import contextlib
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import torch
from torch import nn

from benchmarks import harness
from implicit_models.tracking.courier import LIVE_SEND_SECONDS, Pace, serve
from implicit_models.tracking.mlflow import Sender, deliver
from implicit_models.tracking.opening import open_tracker
from implicit_models.tracking.recording import SpoolTracker
from implicit_models.tracking.spool import open_spools
from implicit_models.tracking.system import INTERVAL_SECONDS, sampler
from implicit_models.tracking.tracker import NullTracker, Tracker

LOG_EVERY = 10
LONG_SECONDS = 600.0
MANY_CALLS = 20_000
SEND = f"""
import sys
from pathlib import Path
from implicit_models.tracking.courier import LIVE_SEND_SECONDS, Pace, serve
from implicit_models.tracking.mlflow import Sender
from implicit_models.tracking.spool import open_spools
root = Path(sys.argv[1])
sys.exit("\\n".join(Sender(root).send(open_spools(root), {LIVE_SEND_SECONDS}).values()) or None)
"""
SUSTAINED = 1_000  # metrics a second that the embedded store has to take
METRICS = (  # those of the free phase
    *("loss", "accuracy", "accuracy_last_10", "learning_rate", "gradient_norm", "sequence_length"),
    *("batch_tokens", "self_iterations", "token_evaluations", "share_not_converged", "residual"),
    *("residual_p50", "residual_p95", "residual_max", "tokens_per_second", "tokens"),
    *("model_flop_utilisation", "training_flops", "seconds", "sequences", "skipped_steps"),
    *("epoch", "peak_memory_bytes"),
)


def run(quick: bool) -> harness.Report:
    """Measure the parts of what a stage pays, then the spool alone."""
    step = _training_step()
    seconds = harness.measure(step, repeats=50, warmup=5).median
    logging = _logging(step, 3 if quick else 120)
    opening, closing = _opening_and_closing(3 if quick else 9)
    sampling, looking = _sampling(), _looking(3 if quick else 30)
    pace = Pace()
    first = _first_sending(round(pace.first / seconds / LOG_EVERY))
    beside = _beside_a_courier(step, 3 if quick else 60)
    running = logging + sampling + looking
    rest_of_it = max(0.0, LONG_SECONDS - pace.first - pace.rest * first) / pace.rest
    whole = opening + closing + first + rest_of_it
    percent = {
        f"a training of {LONG_SECONDS:g} s, with a new courier": 100
        * (running + whole / LONG_SECONDS),
        "a training without end": 100 * (running + 1 / pace.rest),
    }
    spool = _spool(1_000 if quick else 5_000)
    sustained = _sustained(5 if quick else 60)
    rows = [
        {"what": "step", "seconds": seconds},
        {
            "what": f"logging {len(METRICS)} metrics every {LOG_EVERY} steps",
            "percent": 100 * logging,
        },
        {"what": "sampling the machine's load", "percent": 100 * sampling},
        {"what": "courier: looking for what is new", "percent": 100 * looking},
        {"what": "what a courier at work takes from a training", "percent": 100 * beside},
        {"what": "opening a tracker", "seconds": opening},
        {"what": "closing it", "seconds": closing},
        {"what": "new courier: processor time of its first sending", "seconds": first},
        *({"what": what, "percent": value} for what, value in percent.items()),
        *spool,
        *sustained,
    ]
    return harness.Report(
        rows,
        {
            "overhead_percent": harness.at_most(max(percent.values()), 2.0),
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


def _logging(step, seconds: float) -> float:
    """Share of the time of training that logging adds: the median over pairs of blocks."""
    ratios = []
    with _repository() as root, _open(root) as tracker:
        deadline = time.perf_counter() + seconds
        while time.perf_counter() < deadline:
            trackers: list[Tracker] = [NullTracker(), tracker]
            if len(ratios) % 2:
                trackers.reverse()
            taken = {each is tracker: _block(step, each, len(ratios)) for each in trackers}
            ratios.append(taken[True] / taken[False])
    return statistics.median(ratios) - 1


def _block(step, tracker: Tracker, number: int) -> float:
    start = time.perf_counter()
    for _ in range(LOG_EVERY):
        step()
    tracker.log_metrics({name: float(number) for name in METRICS}, number)
    return time.perf_counter() - start


def _opening_and_closing(repeats: int) -> tuple[float, float]:
    """Measure the median seconds of each, the start of a courier included."""
    seconds = []
    for _ in range(repeats):
        with _repository() as root:
            start = time.perf_counter()
            tracker = _open(root, send=True)
            opened = time.perf_counter()
            tracker.log_metrics(dict.fromkeys(METRICS, 0.0), 0)
            logged = time.perf_counter()
            tracker.close()
            seconds.append((opened - start, time.perf_counter() - logged))
            deliver(root)  # beside the next measurement it would count there
    opening, closing = (statistics.median(column) for column in zip(*seconds, strict=True))
    return opening, closing


def _sampling(repeats: int = 100) -> float:
    """Share of a core that samples of the machine's load take."""
    with _repository() as root:
        sample = sampler(root)
        start = time.process_time()
        for _ in range(repeats):
            sample()
        return (time.process_time() - start) / repeats / INTERVAL_SECONDS


def _looking(seconds: float) -> float:
    """Share of a core that a courier takes while there is nothing that it has to send yet."""
    with _repository() as root:
        tracker = _open(root)
        arguments = (root, lambda *_: {}, Pace(linger=0.0))
        courier = threading.Thread(target=serve, args=arguments)
        start = time.process_time()
        courier.start()
        time.sleep(seconds)
        taken = time.process_time() - start
        tracker.close()
        courier.join()
    return taken / seconds


def _first_sending(num_calls: int) -> float:
    """Measure the processor seconds of a process that sends so many steps into a new database."""
    with _repository() as root, _log(root, num_calls):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", SEND, str(root)], check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def _beside_a_courier(step, seconds: float) -> float:
    """Share of the time of training that a courier adds which has much to send."""
    ratios = []
    with _repository() as root:
        _log(root, MANY_CALLS).close()
        _open(root, send=True).close()
        (courier,) = (
            process
            for process in psutil.process_iter(["cmdline"])
            if str(root) in (process.info["cmdline"] or ())
        )
        try:
            deadline = time.perf_counter() + seconds
            while time.perf_counter() < deadline:
                switches = [courier.suspend, courier.resume]
                if len(ratios) % 2:
                    switches.reverse()
                taken = {}
                for switch in switches:
                    switch()
                    taken[switch] = _block(step, NullTracker(), len(ratios))
                ratios.append(taken[courier.resume] / taken[courier.suspend])
            if not courier.is_running():
                raise RuntimeError("the courier had too little to send")
        finally:
            courier.kill()
    return statistics.median(ratios) - 1


def _spool(num_calls: int) -> list[dict]:
    """Measure the metrics a second into the spool, and from there into a new SQLite store."""
    with _repository() as root:
        sender = _sender(root)
        start = time.perf_counter()
        tracker = _log(root, num_calls)
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
    """Measure the metrics a second into the embedded store, while a stage logs twice the target.

    Each counts once, and is stored twice, for the stage and for its entry.
    """
    with _repository() as root:
        sender = _sender(root)
        tracker = _open(root)
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


def _sender(root: Path) -> Sender:
    """Return a sender that has sent a run, so that MLflow is imported and the store exists."""
    _open(root).close()
    sender = Sender(root)
    if problems := sender.send(open_spools(root)):
        raise RuntimeError(f"cannot send: {problems}")
    return sender


def _log(root: Path, num_calls: int) -> Tracker:
    tracker = _open(root)
    for number in range(num_calls):
        tracker.log_metrics({name: float(number) for name in METRICS}, number)
    return tracker


def _open(root: Path, send: bool = False) -> SpoolTracker:
    tracker = open_tracker(
        entry="benchmark",
        stage="train_baseline",
        parameters={"metrics": METRICS},
        dataset="none",
        root=root,
        send=send,
    )
    assert isinstance(tracker, SpoolTracker)
    return tracker


@contextlib.contextmanager
def _repository() -> Iterator[Path]:
    author = ["-c", "user.name=benchmark", "-c", "user.email=benchmark@localhost"]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for command in (["init", "-q"], [*author, "commit", "-q", "--allow-empty", "-m", "begun"]):
            subprocess.run(["git", *command], cwd=folder, check=True)
        yield Path(folder)


if __name__ == "__main__":
    sys.exit(harness.main("tracking", run, num_cores=1, packages=("mlflow", "torch")))
