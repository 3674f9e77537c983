"""What a stretch of work takes: wall time, peak memory, and energy where the machine tells."""

import importlib
import importlib.util
import resource
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from implicit_models.kernels.dispatch import kernels_for

POWER_FOLDER = Path("/sys/class/powercap")
STATUS_FILE = Path("/proc/self/status")

# The counters of CPUs start anew at some 60 to 260 kJ: at 300 W after more than three minutes.
_SECONDS_BETWEEN_LOOKS = 60.0

# Joules counted so far, and at how many the counter starts anew (None: never), by counter.
_Counters = Mapping[str, tuple[float, float | None]]


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What a stretch of work took.

    Attributes
    ----------
    seconds
        Wall time.
    peak_memory_bytes
        The most memory held at once since the process began: what torch held of the GPU where the
        work was on one, else the process's resident memory.
    energy_joules
        What the GPU took where the work was on one, else all CPUs of the machine, whoever else
        used them; None where the machine does not tell.
    """

    seconds: float
    peak_memory_bytes: int
    energy_joules: float | None


class Meter:
    """Measures what is done in its context; afterwards `measurement` holds the result.

    The device's kernels are loaded before the clock starts: they are compiled by whoever comes
    first to a machine, which is no part of the work.

    Parameters
    ----------
    device
        Where the work is done.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._measurement: Measurement | None = None

    def __enter__(self) -> "Meter":
        kernels_for(self._device)
        self._energy = _EnergyMeter(_energy_reader(self._device))
        self._energy.start()
        self._began = time.perf_counter()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        seconds = time.perf_counter() - self._began
        self._measurement = Measurement(
            seconds=seconds,
            peak_memory_bytes=peak_memory(self._device),
            energy_joules=self._energy.stop(),
        )

    @property
    def measurement(self) -> Measurement:
        """What the work took, once it is done.

        Raises
        ------
        ValueError
            Before that.
        """
        if self._measurement is None:
            raise ValueError("the meter is still running; read it after its `with` block")
        return self._measurement


def peak_memory(device: torch.device) -> int:
    """Return the most bytes held at once since the process began; see `Measurement`."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    # Linux's own figure first: that of getrusage is inherited from the process that started this.
    if STATUS_FILE.is_file():
        for line in STATUS_FILE.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


class _EnergyMeter:
    """Adds up counters that start anew now and then, looking at them from a thread."""

    def __init__(self, read: Callable[[], _Counters]) -> None:
        self._read = read
        self._joules = 0.0
        self._last: _Counters = {}
        self._has_all = True
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def start(self) -> None:
        self._last = self._read()
        if any(limit is not None for _, limit in self._last.values()):
            self._thread.start()

    def stop(self) -> float | None:
        """Return the joules since the start; None where there is no counter to read."""
        self._done.set()
        if self._thread.is_alive():
            self._thread.join()
        self._look()
        return self._joules if self._last and self._has_all else None

    def _watch(self) -> None:
        while not self._done.wait(_SECONDS_BETWEEN_LOOKS):
            self._look()

    def _look(self) -> None:
        counters = self._read()
        if counters.keys() != self._last.keys():
            self._has_all = False
            return
        for name, (joules, limit) in counters.items():
            added = joules - self._last[name][0]
            self._joules += added + limit if added < 0 and limit is not None else added
        self._last = counters


def _energy_reader(device: torch.device) -> Callable[[], _Counters]:
    if device.type != "cuda":
        return _cpu_counters
    library, handle = _nvml_device(device)

    def read() -> _Counters:
        if handle is None:
            return {}
        try:
            return {"gpu": (library.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3, None)}
        except library.NVMLError:
            return {}

    return read


def _cpu_counters() -> _Counters:
    """Read the counters of the CPUs' packages (Linux, mostly for root alone)."""
    counters = {}
    for zone in sorted(POWER_FOLDER.glob("intel-rapl:*")):  # AMD's are called so too
        try:
            if (zone / "name").read_text().startswith("package"):
                joules, limit = (
                    int((zone / name).read_text()) / 1e6
                    for name in ("energy_uj", "max_energy_range_uj")
                )
                counters[zone.name] = joules, limit
        except (OSError, ValueError):
            return {}  # some of the packages alone would mislead
    return counters


def _nvml_device(device: torch.device) -> tuple[Any, Any]:
    """Return NVIDIA's library and what it calls a device; None where it is not there."""
    if importlib.util.find_spec("pynvml") is None:
        return None, None
    library = importlib.import_module("pynvml")
    try:
        library.nvmlInit()
        uuid = torch.cuda.get_device_properties(device).uuid
        return library, library.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except library.NVMLError:
        return library, None
