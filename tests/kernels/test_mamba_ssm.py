"""mamba-ssm's scan behind our signature, where it is installed."""

import importlib.util
import sys

import pytest
import torch

from implicit_models.kernels import mamba_ssm, reference
from tests.kernels.test_reference import scan_inputs
from tests.kernels.twins import DEVICE


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
@pytest.mark.filterwarnings("ignore:Deterministic mode:UserWarning")  # mamba-ssm's: no tuning
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
        torch.testing.assert_close(
            ours, expected, rtol=1e-2, atol=1e-3 * expected.abs().max().item()
        )


def test_without_it_there_is_an_import_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.delitem(sys.modules, "mamba_ssm", raising=False)
    monkeypatch.delitem(sys.modules, "mamba_ssm.ops.triton.ssd_combined", raising=False)
    with pytest.raises(ImportError, match="mamba_ssm is not installed"):
        mamba_ssm.load()
    assert "mamba_ssm" not in sys.modules
