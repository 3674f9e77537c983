"""What accelerators can do at most."""

import pytest
import torch

from implicit_models.cost import devices
from implicit_models.cost.devices import (
    ACCELERATORS,
    VARIABLE,
    DeviceFactsError,
    accelerator,
    find_accelerator,
    peak_flops,
)

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.fixture(autouse=True)
def nothing_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100_pcie"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA A100 80GB PCIe", "a100"),
        ("NVIDIA A100-SXM4-40GB", "a100_40gb"),
        ("NVIDIA A100-PCIE-40GB", "a100_40gb"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA B200", "b200"),
        ("AMD Instinct MI300X", "mi300x"),
        ("AMD Instinct MI325X", "mi325x"),
    ],
)
def test_a_gpu_is_known_by_its_name(name: str, key: str) -> None:
    assert find_accelerator(name) is ACCELERATORS[key] is accelerator(key)


@pytest.mark.parametrize("name", ["NVIDIA H100 NVL", "NVIDIA GeForce RTX 4090", "Tesla V100", ""])
def test_another_gpu_is_taken_for_none(name: str) -> None:
    assert find_accelerator(name) is None


def test_an_unknown_device_names_the_closest() -> None:
    with pytest.raises(DeviceFactsError, match="device = 'H10' .* closest is h100 .*mi300x"):
        accelerator("H10")


def test_the_vendors_figure_is_taken_for_a_known_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    assert peak_flops(GPU, torch.bfloat16) == 989e12
    try:
        for precision, figure in (("ieee", 67e12), ("tf32", 494.5e12)):
            matmul.fp32_precision = precision
            assert peak_flops(GPU, torch.float32) == figure
    finally:
        matmul.fp32_precision = before


def test_an_unknown_gpu_or_dtype_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(devices, "_measured", lambda *what: asked.append(what) or 7.0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA TITAN V")
    assert peak_flops(GPU, torch.bfloat16) == 7.0
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    assert peak_flops(GPU, torch.float64) == 7.0
    assert peak_flops(CPU, torch.float32) == 7.0
    assert asked == [(GPU, torch.bfloat16), (GPU, torch.float64), (CPU, torch.float32)]


def test_the_measurement_is_of_the_product_that_was_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []

    def product(device: torch.device, dtype: torch.dtype, size: int):
        sizes.append(size)
        seconds = iter([3.0, 1.0, 2.0])
        return lambda: next(seconds) * 1e-3 * (size / 512) ** 3

    monkeypatch.setattr(devices, "_product", product)
    # The fastest of three; 512 and 1024 take less than ten milliseconds.
    assert devices._measured.__wrapped__(CPU, torch.float32) == pytest.approx(2 * 512**3 / 1e-3)
    assert sizes == [512, 1024, 2048]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_this_machine_is_measured_once(dtype: torch.dtype) -> None:
    found = peak_flops(CPU, dtype)
    # A core that multiplies once in a microsecond has not been built for fifty years; one that
    # does a petaflop not yet.
    assert 1e6 < found < 1e15
    assert peak_flops(CPU, dtype) == found


def test_the_environment_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "12.5e12")
    assert peak_flops(CPU, torch.float32) == 12.5e12


@pytest.mark.parametrize("value", ["fast", "-1", "0", "nan", "inf"])
def test_nonsense_in_the_environment_is_refused(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, value)
    with pytest.raises(DeviceFactsError, match=f"{VARIABLE} is '{value}'; allowed is a positive"):
        peak_flops(CPU, torch.float32)
