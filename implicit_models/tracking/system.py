"""Samples of processor, memory, disk, network and GPUs while a stage runs.

MLflow's own monitor does the same, and imports MLflow, which costs a training seconds. The names
are MLflow's, so that its page of system metrics shows them.
"""

import contextlib
import importlib
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

INTERVAL_SECONDS = 10.0
PREFIX = "system/"

_MEGABYTE = 1e6
_PATIENCE_SECONDS = 5.0  # for a disk of the network that does not answer

_logger = logging.getLogger(__name__)

Report = Callable[[Mapping[str, float]], None]


class SystemMonitor:
    """Reports samples from a thread of its own, and a last one when it is stopped.

    Parameters
    ----------
    folder
        Where the disk is measured.
    interval
        Seconds between samples.
    """

    def __init__(self, folder: Path, interval: float = INTERVAL_SECONDS) -> None:
        self._folder = folder.absolute()
        self._interval = interval
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    @classmethod
    def from_environment(cls, folder: Path) -> "SystemMonitor | None":
        """Return one as MLflow's own variables of the environment say; it is on by default."""
        wanted = os.environ.get("MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING", "true")
        if wanted.lower() in ("false", "0"):
            return None
        try:
            seconds = float(os.environ["MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL"])
        except (KeyError, ValueError):
            return cls(folder)
        return cls(folder, max(seconds, 0.1))

    def start(self, report: Report) -> None:
        """Begin to report samples."""
        self._thread = threading.Thread(
            target=self._run, args=(report,), name="system metrics", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Report a last sample, and return when it is reported, or is long in coming."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(_PATIENCE_SECONDS)

    def _run(self, report: Report) -> None:
        try:
            sample = sampler(self._folder)
            while not self._stopped.wait(self._interval):
                report(sample())
            report(sample())
        except Exception as error:  # of the system's own, which differs from machine to machine
            _logger.info("tracking: no system metrics from here on: %s", error)


def sampler(folder: Path) -> Callable[[], dict[str, float]]:
    """Return what takes one sample; load and traffic are counted from here on."""
    import psutil

    psutil.cpu_percent()
    before = psutil.net_io_counters()
    nvml, gpus = _gpus()

    def sample() -> dict[str, float]:
        memory, disk = psutil.virtual_memory(), psutil.disk_usage(str(folder))
        found = {
            "cpu_utilization_percentage": psutil.cpu_percent(),
            "system_memory_usage_megabytes": memory.used / _MEGABYTE,
            "system_memory_usage_percentage": 100 * memory.used / memory.total,
            "disk_usage_percentage": disk.percent,
            "disk_usage_megabytes": disk.used / _MEGABYTE,
            "disk_available_megabytes": disk.free / _MEGABYTE,
        }
        now = psutil.net_io_counters()
        if now is not None and before is not None:
            received, sent = now.bytes_recv - before.bytes_recv, now.bytes_sent - before.bytes_sent
            found["network_receive_megabytes"] = received / _MEGABYTE
            found["network_transmit_megabytes"] = sent / _MEGABYTE
        for number, gpu in enumerate(gpus):
            found |= {f"gpu_{number}_{name}": value for name, value in _load(nvml, gpu).items()}
        return {PREFIX + name: float(value) for name, value in found.items()}

    return sample


def _gpus() -> tuple[Any, Sequence[Any]]:
    """Return NVIDIA's library and the GPUs of ``CUDA_VISIBLE_DEVICES``, or all; none without it."""
    try:
        nvml: Any = importlib.import_module("pynvml")
        nvml.nvmlInit()
        chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
        if chosen is None:
            chosen = ",".join(map(str, range(nvml.nvmlDeviceGetCount())))
        names = (name.strip() for name in chosen.split(",") if name.strip())
        return nvml, [
            nvml.nvmlDeviceGetHandleByIndex(int(name))
            if name.isdigit()
            else nvml.nvmlDeviceGetHandleByUUID(name)
            for name in names
        ]
    except Exception:  # not installed, no driver, or no such device
        return None, []


def _load(nvml: Any, gpu: Any) -> dict[str, float]:
    """Read a GPU's load; what a device cannot tell is left out."""
    found: dict[str, float] = {}
    with contextlib.suppress(nvml.NVMLError):
        memory = nvml.nvmlDeviceGetMemoryInfo(gpu)
        found["memory_usage_percentage"] = 100 * memory.used / memory.total
        found["memory_usage_megabytes"] = memory.used / _MEGABYTE
        found["utilization_percentage"] = nvml.nvmlDeviceGetUtilizationRates(gpu).gpu
        watts = nvml.nvmlDeviceGetPowerUsage(gpu) / 1000
        found["power_usage_watts"] = watts
        limit = nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1000
        found["power_usage_percentage"] = 100 * watts / limit
    return found
