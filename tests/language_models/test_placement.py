"""Where models live."""

from pathlib import Path

import pytest
import torch

from implicit_models.language_models.placement import DeviceError, default_device
from implicit_models.language_models.serialisation import load_model, save_model
from implicit_models.training.checkpoints import CheckpointFolder
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


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_training_saving_and_loading_on_a_gpu(tmp_path: Path) -> None:
    model, optimiser, _, _ = setup_training.run(tmp_path, device=torch.device("cuda"), stop_after=8)
    assert next(model.parameters()).is_cuda
    assert CheckpointFolder(tmp_path, "identity").resume(model, optimiser) is not None
    model, *_ = setup_training.run(tmp_path, device=torch.device("cuda"))
    save_model(model, tmp_path / "model")
    on_gpu = load_model(tmp_path / "model", torch.device("cuda"))
    on_cpu = load_model(tmp_path / "model")
    phase = setup_training.FREE.phase
    tokens = torch.zeros(1, 4, dtype=torch.int64)
    torch.testing.assert_close(
        on_gpu(tokens.cuda(), phase=phase).logits.cpu(),
        on_cpu(tokens, phase=phase).logits,
        rtol=1e-3,
        atol=1e-3,
    )


def test_models_load_where_they_are_wanted(tmp_path: Path) -> None:
    save_model(small_model(IMPLICIT).float(), tmp_path)
    model = load_model(tmp_path, torch.device("meta"))
    assert all(parameter.is_meta for parameter in model.parameters())
