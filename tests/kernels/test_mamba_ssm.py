"""mamba-ssm's scan behind our signature, where it is installed."""

import dataclasses
import importlib.util
import sys

import pytest
import torch

from implicit_models.kernels import dispatch, mamba_ssm, reference
from tests.kernels.test_reference import scan_inputs
from tests.kernels.twins import DEVICE

NAMES = ("fused", "mamba_ssm")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAMBA_DETERMINISTIC", "1")
    try:
        mamba_ssm.load()
    except ImportError as error:
        pytest.skip(f"mamba-ssm is an extra: {error}")
    if not torch.cuda.is_available():
        pytest.skip("mamba-ssm's kernels ask for a GPU's properties")


@pytest.mark.gpu
@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("length", [1, 7, 300])
def test_it_equals_the_reference(length: int) -> None:
    tensors = {name: x.float().to(DEVICE) for name, x in scan_inputs(length).items()}
    leaves = [x.requires_grad_() for x in tensors.values()]
    found = []
    for scan in (mamba_ssm.state_space_scan, reference.state_space_scan):
        outputs, final = scan(**tensors)
        gradients = torch.autograd.grad(outputs.sum() + final.square().sum(), leaves)
        found.append((outputs, final, *gradients))
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-2, atol=1e-3 * expected.abs().max())


def test_without_it_there_is_an_import_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.delitem(sys.modules, "mamba_ssm", raising=False)
    monkeypatch.delitem(sys.modules, "mamba_ssm.ops.triton.ssd_combined", raising=False)
    with pytest.raises(ImportError, match="mamba_ssm is not installed"):
        mamba_ssm.load()
    assert "mamba_ssm" not in sys.modules


@pytest.mark.parametrize("faster", ["fused", "mamba_ssm"])
def test_the_faster_is_taken_on_a_gpu(faster: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = (dataclasses.replace(dispatch.reference_kernels(), name=name) for name in NAMES)
    monkeypatch.setattr(dispatch, "_launch", lambda kernels: None)
    monkeypatch.setattr(dispatch, "fused_kernels", lambda: ours)
    monkeypatch.setattr(dispatch, "mamba_ssm_kernels", lambda: theirs)
    monkeypatch.setattr(dispatch, "_seconds", lambda kernels: 1.0 + (kernels.name != faster))
    kernels, reason = dispatch._for_cuda()
    assert kernels.name == faster
    assert "fused" in reason and "mamba_ssm" in reason and "1000.00 ms" in reason


def test_whatever_mamba_ssm_raises_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("built for another torch")

    fused = dataclasses.replace(dispatch.reference_kernels(), name="fused")
    monkeypatch.setattr(dispatch, "_launch", lambda kernels: None)
    monkeypatch.setattr(dispatch, "fused_kernels", lambda: fused)
    monkeypatch.setattr(dispatch, "mamba_ssm_kernels", fail)
    kernels, reason = dispatch._for_cuda()
    assert kernels is fused and "built for another torch" in reason


@pytest.mark.parametrize("failing", [("mamba_ssm",), ("fused", "mamba_ssm")])
def test_what_fails_when_it_runs_is_not_taken(
    failing: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(kernels: dispatch.Kernels) -> float:
        if kernels.name in failing:
            raise RuntimeError("no kernel image is available")
        return 1.0

    ours, theirs = (dataclasses.replace(dispatch.reference_kernels(), name=name) for name in NAMES)
    monkeypatch.setattr(dispatch, "_launch", lambda kernels: None)
    monkeypatch.setattr(dispatch, "fused_kernels", lambda: ours)
    monkeypatch.setattr(dispatch, "mamba_ssm_kernels", lambda: theirs)
    monkeypatch.setattr(dispatch, "_seconds", measure)
    kernels, reason = dispatch._for_cuda()
    assert kernels.name == ("fused" if "fused" not in failing else "reference")
    assert reason.count("no kernel image is available") == len(failing)
