"""Wall time, peak memory and energy."""

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from implicit_models.cost import meter
from implicit_models.cost.meter import Meter, peak_memory
from implicit_models.kernels import dispatch

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def no_counters(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Point the meter to a folder without energy counters, and return it."""
    monkeypatch.setattr(meter, "POWER_FOLDER", tmp_path)
    return tmp_path


def write_zone(folder: Path, zone: str, name: str, joules: float, limit: float = 1000.0) -> None:
    (folder / zone).mkdir(exist_ok=True)
    (folder / zone / "name").write_text(f"{name}\n")
    (folder / zone / "energy_uj").write_text(f"{round(joules * 1e6)}\n")
    (folder / zone / "max_energy_range_uj").write_text(f"{round(limit * 1e6)}\n")


def test_time_and_memory_are_measured() -> None:
    with Meter(CPU) as measuring:
        held = np.ones(32 << 20, dtype=np.uint8)
    measured = measuring.measurement
    assert 0.0 < measured.seconds < math.inf
    assert held.nbytes < measured.peak_memory_bytes <= peak_memory(CPU)
    assert measured.energy_joules is None


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_peak_memory_grows_with_what_is_held() -> None:
    Path("/proc/self/clear_refs").write_text("5")  # the peak is what is held now
    before = peak_memory(CPU)
    held = np.ones(64 << 20, dtype=np.uint8)
    grown = peak_memory(CPU)
    assert before + (48 << 20) < grown < before + (80 << 20)
    del held
    assert peak_memory(CPU) > grown - (4 << 20)  # Linux counts by and by


def test_peak_memory_where_there_is_no_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    there = peak_memory(CPU)
    monkeypatch.setattr(meter, "STATUS_FILE", Path("/nowhere"))
    if sys.platform == "linux":
        assert peak_memory(CPU) >= there // 2  # the same figure, counted a little differently


@pytest.fixture
def slow_to_compile(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels that are not compiled yet, which takes a minute of a clock that else stands."""
    clock = [100.0]

    def compile_them() -> tuple[dispatch.Kernels, str]:
        clock[0] += 60.0
        return dispatch.reference_kernels(), "they had to be compiled"

    monkeypatch.delenv(dispatch.VARIABLE, raising=False)
    monkeypatch.setitem(dispatch._FASTEST, "cpu", compile_them)
    monkeypatch.setattr(meter.time, "perf_counter", lambda: clock[0])
    dispatch._chosen.cache_clear()
    yield
    dispatch._chosen.cache_clear()


@pytest.mark.usefixtures("slow_to_compile")
def test_kernels_are_compiled_before_the_clock_starts() -> None:
    with Meter(CPU) as measuring:
        dispatch.kernels_for(CPU)
    assert measuring.measurement.seconds == 0.0


def test_a_meter_is_read_after_its_work() -> None:
    measuring = Meter(CPU)
    with measuring, pytest.raises(ValueError, match="still running"):
        _ = measuring.measurement
    assert measuring.measurement.seconds >= 0.0


def test_a_meter_measures_work_that_fails() -> None:
    measuring = Meter(CPU)
    with pytest.raises(KeyError), measuring:
        raise KeyError
    assert measuring.measurement.seconds > 0.0


def test_energy_of_all_packages_over_the_end_of_a_counter(no_counters: Path) -> None:
    write_zone(no_counters, "intel-rapl:0", "package-0", 990.0)
    write_zone(no_counters, "intel-rapl:1", "package-1", 5.0)
    write_zone(no_counters, "intel-rapl:0:0", "core", 7.0)  # a part of package 0
    write_zone(no_counters, "intel-rapl:2", "psys", 7.0)  # all of the machine
    with Meter(CPU) as measuring:
        write_zone(no_counters, "intel-rapl:0", "package-0", 20.0)
        write_zone(no_counters, "intel-rapl:1", "package-1", 12.5)
        write_zone(no_counters, "intel-rapl:2", "psys", 100.0)
    assert measuring.measurement.energy_joules == pytest.approx(30.0 + 7.5)


def test_energy_is_looked_at_before_a_counter_has_gone_round(
    no_counters: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meter, "_SECONDS_BETWEEN_LOOKS", 1e-3)
    counted = iter([990.0, *range(0, 3000, 30)])  # goes round three times and is read often
    looks = []

    def read() -> dict[str, tuple[float, float | None]]:
        looks.append(next(counted))
        return {"package": (float(looks[-1]) % 1000.0, 1000.0)}

    monkeypatch.setattr(meter, "_cpu_counters", read)
    with Meter(CPU) as measuring:
        while len(looks) < 80:
            pass
    assert measuring.measurement.energy_joules == pytest.approx(looks[-1] + 10.0)


@pytest.mark.parametrize("content", ["", "no number"])
def test_a_counter_that_cannot_be_read_leaves_the_energy_unknown(
    no_counters: Path, content: str
) -> None:
    write_zone(no_counters, "intel-rapl:0", "package-0", 1.0)
    write_zone(no_counters, "intel-rapl:1", "package-1", 1.0)
    with Meter(CPU) as measuring:
        (no_counters / "intel-rapl:1" / "energy_uj").write_text(content)
    assert measuring.measurement.energy_joules is None


class NVMLError(Exception):
    pass


@pytest.mark.parametrize("fails_after", [0, 1, None])
def test_energy_of_a_gpu(monkeypatch: pytest.MonkeyPatch, fails_after: int | None) -> None:
    millijoules = iter([5_000, 12_500])
    reads = []

    def read(handle: str) -> int:
        assert handle == "handle of GPU-12ab"
        if len(reads) == fails_after:
            raise NVMLError
        reads.append(handle)
        return next(millijoules)

    library = SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: f"handle of {uuid}",
        nvmlDeviceGetTotalEnergyConsumption=read,
        __spec__=SimpleNamespace(),
    )
    monkeypatch.setitem(sys.modules, "pynvml", library)
    properties = SimpleNamespace(uuid="12ab")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 77)
    with Meter(torch.device("cuda", 0)) as measuring:
        pass
    assert measuring.measurement.peak_memory_bytes == 77
    assert measuring.measurement.energy_joules == (7.5 if fails_after is None else None)


def test_energy_of_a_gpu_whose_library_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 77)
    with Meter(torch.device("cuda", 0)) as measuring:
        pass
    assert measuring.measurement.energy_joules is None
