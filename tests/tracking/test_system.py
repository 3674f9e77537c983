import importlib.util
import re
import sys
import threading
import time
import types
from pathlib import Path

import pytest

from implicit_models.tracking.recording import SpoolTracker
from implicit_models.tracking.spool import Spool, line_of
from implicit_models.tracking.system import SystemMonitor, sampler

NAMES = ("cpu", "disk", "network")


def samples(spool):
    """Return (step, level, values) of every sample in a spool."""
    events = [event for event, _ in spool.events() if event["event"] == "metrics"]
    return [
        (event["step"], event["level"], event["values"])
        for event in events
        if any(name.startswith("system/") for name in event["values"])
    ]


def test_the_names_are_those_of_mlflows_monitor(tmp_path):
    """Read from its sources, for importing it costs seconds."""
    spec = importlib.util.find_spec("mlflow")
    assert spec is not None and spec.origin is not None
    folder = Path(spec.origin).parent / "system_metrics" / "metrics"
    sources = "".join((folder / f"{name}_monitor.py").read_text() for name in NAMES)
    expected = {f"system/{name}" for name in re.findall(r'_metrics\["(\w+)"\]', sources)}
    assert set(sampler(tmp_path)()) == expected


def test_samples_are_plausible(tmp_path):
    sample = sampler(tmp_path)
    end = time.process_time() + 0.05
    while time.process_time() < end:
        pass
    found = sample()
    for name in ("cpu_utilization", "system_memory_usage", "disk_usage"):
        assert 0 < found[f"system/{name}_percentage"] <= 100
    used, free = found["system/disk_usage_megabytes"], found["system/disk_available_megabytes"]
    assert 100 * used / (used + free) == pytest.approx(found["system/disk_usage_percentage"], abs=1)


def test_a_stage_is_sampled_while_it_runs_and_once_more_at_its_end(tmp_path):
    spool = Spool.new(tmp_path, "entry", "stage")
    with SpoolTracker(spool, {}, monitor=SystemMonitor(tmp_path, interval=0.01)):
        while len(samples(spool)) < 2:
            threading.Event().wait(0.01)
    count = len(samples(spool))
    short = Spool.new(tmp_path, "entry", "short")
    with SpoolTracker(short, {}, monitor=SystemMonitor(tmp_path, interval=3600.0)):
        pass
    assert len(samples(short)) == 1
    assert len(samples(spool)) == count  # it has stopped
    assert {level for _, level, _ in samples(spool)} == {"stage"}
    *_, (last, _) = spool.events()
    assert last["event"] == "end"


def test_a_resumed_run_goes_on_from_its_samples(tmp_path):
    spool = Spool.new(tmp_path, "entry", "stage")
    with SpoolTracker(spool, {}, monitor=SystemMonitor(tmp_path)):
        pass
    (start, *rest) = (event for event, _ in spool.events())
    start["time"] -= 60_000
    spool.path.write_bytes(b"".join(map(line_of, (start, *rest))))
    with SpoolTracker(spool, {}, monitor=SystemMonitor(tmp_path)):
        pass
    first, second = (step for step, _, _ in samples(spool))
    assert first < 60 <= second


def test_what_cannot_be_measured_stops_the_samples_alone(tmp_path, monkeypatch):
    import psutil

    def refuse(_):
        raise PermissionError("no such thing here")

    monkeypatch.setattr(psutil, "disk_usage", refuse)
    spool = Spool.new(tmp_path, "entry", "stage")
    with SpoolTracker(spool, {}, monitor=SystemMonitor(tmp_path)) as tracker:
        tracker.log_metrics({"loss": 1.0}, 1)
    assert [event["event"] for event, _ in spool.events()] == ["start", "metrics", "end"]


@pytest.mark.parametrize(
    ("enabled", "interval", "expected"),
    [(None, None, 10.0), ("true", "2.5", 2.5), ("false", None, None), (None, "often", 10.0)],
)
def test_mlflows_own_variables_decide(tmp_path, monkeypatch, enabled, interval, expected):
    for name, value in (
        ("MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING", enabled),
        ("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", interval),
    ):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    monitor = SystemMonitor.from_environment(tmp_path)
    assert (monitor and monitor._interval) == expected


class FakeNvml(types.ModuleType):
    """NVIDIA's library with three GPUs, the last of which tells no power."""

    class NVMLError(Exception):
        pass

    def nvmlInit(self):  # noqa: N802
        pass

    def nvmlDeviceGetCount(self):  # noqa: N802
        return 3

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        return index

    def nvmlDeviceGetHandleByUUID(self, name):  # noqa: N802
        return int(name[-1])

    def nvmlDeviceGetMemoryInfo(self, gpu):  # noqa: N802
        return types.SimpleNamespace(used=gpu * 1e6, total=4e6)

    def nvmlDeviceGetUtilizationRates(self, gpu):  # noqa: N802
        return types.SimpleNamespace(gpu=10 * gpu)

    def nvmlDeviceGetPowerUsage(self, gpu):  # noqa: N802
        if gpu == 2:
            raise self.NVMLError
        return 50_000

    def nvmlDeviceGetEnforcedPowerLimit(self, gpu):  # noqa: N802
        return 200_000


@pytest.mark.parametrize(
    ("visible", "expected"),
    [(None, [0, 1, 2]), ("2,1", [2, 1]), ("GPU-1", [1]), ("", [])],
)
def test_the_gpus_of_this_process_are_sampled(tmp_path, monkeypatch, visible, expected):
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml("pynvml"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = sampler(tmp_path)()
    loads = [found.get(f"system/gpu_{i}_utilization_percentage") for i in range(len(expected) + 1)]
    assert loads == [*(10.0 * gpu for gpu in expected), None]
    for number, gpu in enumerate(expected):
        assert found[f"system/gpu_{number}_memory_usage_percentage"] == 25.0 * gpu
        assert found.get(f"system/gpu_{number}_power_usage_percentage") == (
            25.0 if gpu < 2 else None
        )
