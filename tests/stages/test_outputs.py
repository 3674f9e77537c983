"""What a training leaves of a model: it stops where the texts that it learned end."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from implicit_models import LSTMConfig, LSTMLanguageModel
from implicit_models.training.progress import Progress
from stages.training.outputs import EarlierStage, write_model
from tests.language_models.kinds import VOCABULARY, model_of

PROMPT, NEW = torch.tensor([[3, 1, 4]]), 6


def gpt2() -> GPT2LMHeadModel:
    config = GPT2Config(
        vocab_size=VOCABULARY, n_embd=8, n_layer=1, n_head=1, bos_token_id=None, eos_token_id=None
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return GPT2LMHeadModel(config).eval()


MADE = {
    "implicit": lambda: model_of("mamba2-implicit", dtype=torch.float32),
    "explicit": lambda: model_of("llama-explicit", dtype=torch.float32),
    "of transformers": gpt2,
}


def write(model: Any, folder: Path, end_of_text: int | None) -> None:
    write_model(
        model,
        folder,
        entry="runs.mine",
        parameters={"model": SimpleNamespace(source=None)},
        progress=Progress(0),
        digest=None,
        save_beside=lambda _: None,
        end_of_text=end_of_text,
        state=None,
    )


def continued(folder: Path) -> list[int]:
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    made = model.generate(PROMPT, max_new_tokens=NEW, do_sample=False)
    return made[0, PROMPT.shape[1] :].tolist()


@pytest.mark.parametrize("kind", MADE)
def test_a_model_stops_at_the_end_of_a_text(kind: str, tmp_path: Path) -> None:
    write(MADE[kind](), tmp_path / "endless", None)
    config = json.loads((tmp_path / "endless" / "config.json").read_text())
    assert config.get("eos_token_id") is None
    whole = continued(tmp_path / "endless")
    assert len(whole) == NEW
    end = whole[2]
    write(MADE[kind](), tmp_path / "ending", end)
    config = json.loads((tmp_path / "ending" / "config.json").read_text())
    assert config["eos_token_id"] == end
    assert continued(tmp_path / "ending") == whole[: whole.index(end) + 1]
    weights = [tmp_path / each / "model.safetensors" for each in ("endless", "ending")]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_a_model_that_writes_nothing_has_no_end(tmp_path: Path) -> None:
    config = LSTMConfig(vocab_size=VOCABULARY, hidden_size=8, num_hidden_layers=1)
    for name, end in (("without", None), ("with", 3)):
        write(LSTMLanguageModel(config), tmp_path / name, end)
    configurations = [tmp_path / name / "config.json" for name in ("without", "with")]
    assert configurations[0].read_text() == configurations[1].read_text()


BOUNDED = {
    **{"num_training_steps": 100, "num_tokens": 1000, "training_flops": 1e9, "train_seconds": 50.0},
    **{"num_skipped_steps": 7, "peak_memory_bytes": 900, "energy_joules": 5000.0, "loss": 2.0},
}
FREE = {
    **{"num_training_steps": 50, "num_tokens": 600, "training_flops": 3e9, "train_seconds": 30.0},
    **{"num_skipped_steps": 1, "peak_memory_bytes": 400, "energy_joules": 3000.0, "loss": 1.0},
    **{"num_parameters": 12, "tokens_per_second": 20.0},
}


def test_what_an_entry_has_taken_is_what_both_its_phases_have() -> None:
    assert EarlierStage(BOUNDED, []).added_to(FREE) == {
        **{"num_training_steps": 150, "num_tokens": 1600, "training_flops": 4e9},
        **{"train_seconds": 80.0, "tokens_per_second": 20.0, "num_skipped_steps": 8},
        **{"peak_memory_bytes": 900, "energy_joules": 8000.0, "loss": 1.0, "num_parameters": 12},
    }


def test_what_a_phase_has_taken_and_nobody_knows_is_not_an_entrys() -> None:
    unmeasured: dict[str, Any] = {**BOUNDED, "energy_joules": None}
    assert "energy_joules" not in EarlierStage(unmeasured, []).added_to(FREE)
    assert EarlierStage({}, []).added_to(FREE) == {"loss": 1.0, "num_parameters": 12}
