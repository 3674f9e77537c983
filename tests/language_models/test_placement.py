"""Where models live."""

from pathlib import Path

import pytest
import torch

from implicit_models.language_models.placement import DeviceError, default_device
from implicit_models.language_models.serialisation import load_model, save_model
from tests.language_models.models import IMPLICIT, small_model
from tests.training import setup_training


def test_the_environment_names_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IMPLICIT_MODELS_DEVICE", "cpu")
    assert default_device() == torch.device("cpu")
    monkeypatch.setenv("IMPLICIT_MODELS_DEVICE", "abacus")
    with pytest.raises(DeviceError, match="IMPLICIT_MODELS_DEVICE is 'abacus'"):
        default_device()
    monkeypatch.delenv("IMPLICIT_MODELS_DEVICE")
    assert default_device().type == ("cuda" if torch.cuda.is_available() else "cpu")


GPU = pytest.param(
    "cuda",
    marks=[
        pytest.mark.gpu,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
    ],
)


@pytest.mark.parametrize("device", ["cpu", GPU])
def test_training_saving_and_loading_on_a_device(device: str, tmp_path: Path) -> None:
    there = torch.device(device)
    *_, interrupted = setup_training.run(tmp_path, device=there, stop_after=8)
    model, *_, resumed = setup_training.run(tmp_path, device=there)
    assert next(model.parameters()).device.type == device
    assert max(interrupted.rows) == min(resumed.rows) == 8  # from the checkpoint of step 6
    save_model(model, tmp_path / "model")
    on_device = load_model(tmp_path / "model", there)
    on_cpu = load_model(tmp_path / "model", torch.device("cpu"))
    phase = setup_training.FREE.phase
    tokens = torch.zeros(1, 4, dtype=torch.int64)
    torch.testing.assert_close(
        on_device(tokens.to(there), phase=phase).logits.cpu(),
        on_cpu(tokens, phase=phase).logits,
        rtol=1e-3,
        atol=1e-3,
    )


def test_models_load_where_they_are_wanted(tmp_path: Path) -> None:
    save_model(small_model(IMPLICIT).float(), tmp_path)
    model = load_model(tmp_path, torch.device("meta"))
    assert all(parameter.is_meta for parameter in model.parameters())
