"""Models that come from elsewhere: baselines of transformers, and implicit models made of them."""

import importlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from implicit_models.equilibrium.phase import bounded_phase
from implicit_models.families.building import build
from implicit_models.families.parameters import ModelParameters
from implicit_models.language_models.forward import forward, forward_labelled
from implicit_models.language_models.losses import aligned_loss
from implicit_models.language_models.serialisation import load_model, save_model
from implicit_models.language_models.source_names import SourceError, is_folder, is_hub_id
from implicit_models.parameters import read_section
from implicit_models.problems.word_problem.data.writing import write_splits
from implicit_models.problems.word_problem.parameters import WordProblemParameters
from implicit_models.tracking.tracker import NullTracker
from stages.common import run_stage
from stages.training import train_baseline, train_bounded, train_free

ROOT = Path(__file__).parents[2]
GPT2 = ROOT / "conf" / "models" / "gpt2_tiny"
BASELINE, RUN, IMPLICIT = "s3_mamba2", "s3_upcycled_mamba2", "s3_implicit_llama"
TINY = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
FEW_STEPS = {
    "datasets.s3.train.num_sequences": 256,
    f"upcycled.{RUN}.optimisation.warmup_steps": 1,
    f"upcycled.{RUN}.bounded.num_training_steps": 3,
    f"upcycled.{RUN}.bounded.lengths.growth_steps": 3,
    f"upcycled.{RUN}.free.num_training_steps": 2,
    f"upcycled.{RUN}.free.decay_steps": 1,
    f"upcycled.{RUN}.free.lengths.growth_steps": 2,
    f"baselines.{BASELINE}.optimisation.warmup_steps": 1,
    f"baselines.{BASELINE}.training.num_training_steps": 2,
    f"baselines.{BASELINE}.training.decay_steps": 1,
    f"baselines.{BASELINE}.training.lengths.growth_steps": 2,
    "monitoring.log_every": 1,
    "monitoring.validate_every": 1,
}

# stage, entry, key below the entry to change, new value (None: delete the key), the message's words
WRONG_MODELS = [
    ("bounded", IMPLICIT, "family", "lama", ["model.family = 'lama'", "the closest is 'llama'"]),
    ("bounded", IMPLICIT, "num_heads", None, ["num_heads is missing", "family llama needs it"]),
    ("bounded", IMPLICIT, "num_headz", 2, ["model.num_headz = 2", "model.num_heads"]),
    ("bounded", IMPLICIT, "num_heads", 3, ["num_heads is 3", "divide d_model = 64"]),
    ("bounded", IMPLICIT, "num_heads", 0, ["num_heads = 0", "at least 1"]),
    ("bounded", IMPLICIT, "num_key_value_heads", 3, ["num_key_value_heads is 3", "num_heads = 2"]),
    ("bounded", IMPLICIT, "head_dim", 3, ["head_dim", "even"]),
    ("bounded", IMPLICIT, "d_feed_forward", "wide", ["d_feed_forward = 'wide'", "int"]),
    ("bounded", IMPLICIT, "rope_theta", 0.0, ["rope_theta = 0.0", "above 0.0"]),
    ("bounded", IMPLICIT, "pad_window", True, ["pad_window = true", "sliding_window = null"]),
    ("bounded", IMPLICIT, "d_state", 16, ["d_state is 16", "family llama has none"]),
    ("bounded", IMPLICIT, "source", "somewhere", ["source is somewhere", "llama has none"]),
    ("bounded", RUN, "source", None, ["source is missing", "family upcycled needs it"]),
    ("bounded", RUN, "source", "models/s3_mamba/final", ["source = 'models/s3_mamba/final'"]),
    ("bounded", RUN, "implicit", False, ["implicit is false", "family upcycled"]),
    ("bounded", RUN, "num_layers", 2, ["num_layers is 2", "family upcycled has none"]),
    ("bounded", RUN, "family", "huggingface", ["implicit is true", "family huggingface"]),
    ("baseline", BASELINE, "rope_theta", 9.0, ["rope_theta is 9.0", "family mamba2 has none"]),
    ("baseline", BASELINE, "pretrained", True, ["pretrained is True", "family mamba2 has none"]),
    ("baseline", BASELINE, "num_heads", 2, ["num_heads is 2", "family mamba2 has none"]),
]


@pytest.fixture(autouse=True)
def repository(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("stages.training.segment.open_run", lambda *_, **__: NullTracker())


@pytest.fixture(scope="module")
def upcycled(tmp_path_factory):
    path = tmp_path_factory.mktemp("upcycled") / "params.yaml"
    command = [sys.executable, "scripts/compose.py", "upcycled", "--output", path]
    subprocess.run(command, cwd=ROOT, check=True)
    return OmegaConf.load(path)


@pytest.fixture
def parameters(upcycled):
    return upcycled.copy()


@pytest.fixture
def refuse(parameters, monkeypatch, capsys):
    """Run a stage on the parameters; returns its one line about what is wrong."""

    def refuse(stage, name):
        OmegaConf.save(parameters, "params.yaml")
        monkeypatch.setattr(sys, "argv", [stage, name])
        with pytest.raises(SystemExit) as stop:
            run_stage(importlib.import_module(f"stages.training.train_{stage}").main, "table")
        assert stop.value.code == 2
        message = capsys.readouterr().err
        assert message.startswith("error: ")
        assert message.count("\n") == 1
        return message

    return refuse


@pytest.fixture
def few_steps(parameters):
    """Write parameters that train for a moment, and the data."""
    for key, value in FEW_STEPS.items():
        OmegaConf.update(parameters, key, value)
    OmegaConf.save(parameters, "params.yaml")
    write_splits(read_section("datasets.s3", WordProblemParameters), Path("data/s3"))


def write_config(folder: str, **config) -> str:
    Path(folder).mkdir(parents=True)
    Path(folder, "config.json").write_text(json.dumps(config))
    return folder


def outside(source, **changes) -> ModelParameters:
    return ModelParameters(family="huggingface", source=str(source), **changes)


@pytest.mark.parametrize(("stage", "name", "key", "value", "words"), WRONG_MODELS)
def test_wrong_models(refuse, parameters, stage, name, key, value, words):
    table = {BASELINE: "baselines", RUN: "upcycled", IMPLICIT: "runs"}[name]
    if value is None:
        del parameters[table][name].model[key]
    else:
        OmegaConf.update(parameters, f"{table}.{name}.model.{key}", value, force_add=True)
    message = refuse(stage, name)
    for word in (f"{table}.{name}.model.", *words):
        assert word in message


def test_the_tables_say_what_belongs_to_the_other(refuse, parameters):
    Path("models/s3_mamba2/final").mkdir(parents=True)
    upcycled, implicit = parameters.upcycled[RUN], parameters.runs[IMPLICIT]
    parameters.runs[RUN] = upcycled
    del parameters.upcycled[RUN]
    assert "with a folder this is an entry of upcycled" in refuse("bounded", RUN)
    parameters.upcycled[IMPLICIT] = implicit
    message = refuse("bounded", IMPLICIT)
    assert f"upcycled.{IMPLICIT}.model.family = 'llama'" in message
    assert "entries of runs" in message


def test_a_source_is_a_folder_or_a_hub_id(tmp_path):
    (tmp_path / "models").mkdir()
    assert is_folder("models")
    for source in ("gpt2", "openai-community/gpt2", "Owner_1/a.b-c"):
        assert is_hub_id(source)
    for source in ("", "models", "models/none", "no/such/folder", "./gpt2", "/gpt2", "~/gpt2"):
        assert not is_hub_id(source)
    assert not is_folder("")


def test_a_source_that_fits_no_baseline_is_one_line(refuse, parameters, few_steps):
    wrong = {
        "nowhere/at/all": "allowed is a folder, and there is none of this name",
        write_config("vision", model_type="vit"): "ViTConfig",
        write_config("unknown", model_type="anything"): "model type `anything`",
        write_config("both_ways", model_type="t5"): "T5Config",
        write_config("uneven", model_type="gpt2", n_embd=8, n_head=3): "`embed_dim`: 8",
        write_config("sees_all", model_type="bert", intermediate_size=8, **TINY): "still to come",
        write_config("short", model_type="gpt2", n_embd=8, n_head=2, n_positions=5): "5 positions",
    }
    for source, words in wrong.items():
        parameters.baselines[BASELINE].model = {"family": "huggingface", "source": source}
        message = refuse("baseline", BASELINE)
        assert source in message or source == "short"
        assert words in message


def test_a_hub_id_that_cannot_be_had_is_named(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(SourceError, match="no model can be read from nobody/nothing: "):
        build(outside("nobody/nothing"), 6, seed=0)


def test_a_baseline_is_the_configuration_over_our_vocabulary():
    first, same, other = (build(outside(GPT2), 6, seed) for seed in (0, 0, 1))
    assert type(first).__name__ == "GPT2LMHeadModel"
    assert (first.config.n_embd, first.config.n_positions, first.config.vocab_size) == (32, 128, 6)
    assert first.config.eos_token_id is first.config.bos_token_id is None
    assert first.dtype == torch.float32
    states = [model.state_dict() for model in (first, same, other)]
    name = "transformer.wte.weight"
    assert states[0][name].shape == (6, 32)
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    assert not torch.equal(states[0][name], states[2][name])


def test_a_pretrained_baseline_keeps_its_weights_but_the_vocabulary(tmp_path):
    config = AutoConfig.from_pretrained(GPT2)
    source = AutoModelForCausalLM.from_config(config)
    source.generation_config.eos_token_id = 2
    save_model(source, tmp_path / "pretrained")
    model = build(outside(tmp_path / "pretrained", pretrained=True), 6, seed=0)
    assert model.config.vocab_size == model.get_input_embeddings().num_embeddings == 6
    assert model.config.eos_token_id is model.generation_config.eos_token_id is None
    assert model.generate(torch.zeros(1, 1, dtype=int), max_new_tokens=20).shape == (1, 21)
    tokens = torch.arange(6)[None]
    assert forward(model, tokens, None).logits.shape == (1, 6, 6)
    for name, weight in model.state_dict().items():
        if name not in ("transformer.wte.weight", "lm_head.weight"):
            assert torch.equal(weight, source.state_dict()[name]), name
    shutil.rmtree(tmp_path / "pretrained")
    write_config("weightless", model_type="gpt2", n_embd=8, n_head=2)
    with pytest.raises(SourceError, match="weightless: .*model.safetensors"):
        build(outside("weightless", pretrained=True), 6, seed=0)


def test_training_an_outside_model_again_leaves_the_same_files(parameters, few_steps):
    shutil.copytree(GPT2, "gpt2")
    config = json.loads(Path("gpt2/config.json").read_text())
    Path("gpt2/config.json").write_text(json.dumps(config | {"resid_pdrop": 0.1}))
    parameters.baselines[BASELINE].model = {"family": "huggingface", "source": "gpt2"}
    OmegaConf.save(parameters, "params.yaml")
    found = []
    for _ in range(2):
        train_baseline.main(BASELINE)
        folder = Path("models", BASELINE, "final")
        found.append({path.name: path.read_bytes() for path in folder.iterdir()})
        shutil.rmtree("checkpoints")
        shutil.rmtree("models")
    assert found[0] == found[1]
    card = found[0]["README.md"].decode()
    assert "GPT2LMHeadModel, explicit" in card
    assert "| source | gpt2 |" in card
    assert f"| entry | baselines.{BASELINE} |" in card


def test_a_changed_source_is_another_training(parameters, few_steps):
    shutil.copytree(GPT2, "gpt2")
    parameters.baselines[BASELINE].model = {"family": "huggingface", "source": "gpt2"}
    OmegaConf.save(parameters, "params.yaml")
    train_baseline.main(BASELINE)
    config = json.loads(Path("gpt2/config.json").read_text())
    Path("gpt2/config.json").write_text(json.dumps(config | {"n_embd": 16}))
    train_baseline.main(BASELINE)
    assert load_model(Path("models", BASELINE, "final")).config.n_embd == 16
    assert len(list(Path("checkpoints", BASELINE, "train_baseline").iterdir())) == 2


def test_upcycled_phases_need_the_source_but_once(few_steps):
    train_baseline.main(BASELINE)
    train_bounded.main(RUN)
    source = Path("models", BASELINE, "final", "model.safetensors")
    source.unlink()
    train_free.main(RUN)
    bounded, final = (load_model(Path("models", RUN, phase)) for phase in ("bounded", "final"))
    assert bounded.config.implicit and final.config.implicit
    assert bounded.config.start == final.config.start == "embeddings"
    assert (bounded.config.training_phase, final.config.training_phase) == ("bounded", "free")
    assert final.config.training_max_self_iterations == 12
    weights = "model.embed_tokens.weight"
    assert not torch.equal(bounded.state_dict()[weights], final.state_dict()[weights])


def test_a_source_that_cannot_be_upcycled_is_one_line(refuse, parameters, few_steps):
    train_baseline.main(BASELINE)
    train_bounded.main(RUN)
    explicit = Path("models", BASELINE, "final")
    shutil.copytree(explicit, "cut")
    weights = Path("cut", "model.safetensors")
    weights.write_bytes(weights.read_bytes()[:-50])
    shutil.copytree("cut", "damaged")
    Path("cut", "checksums.json").unlink()
    shutil.copytree(explicit, "elsewhere")
    for name in ("config.json", "checksums.json"):
        Path("elsewhere", name).unlink()
    sizes = {"intermediate_size": 8, **TINY}
    save_model(LlamaForCausalLM(LlamaConfig(vocab_size=5, **sizes)), Path("smaller"))
    save_model(build(outside(GPT2), 6, seed=0), Path("gpt2"))
    wrong = {
        f"models/{RUN}/bounded": "the model is implicit already",
        "cut": "cannot be read",
        "damaged": "damaged/model.safetensors has",
        "elsewhere": "config.json",
        "smaller": "has 5 tokens, the data set 6; an upcycled model keeps",
        "gpt2": "the model is a GPT2LMHeadModel; it must be",
    }
    for source, words in wrong.items():
        parameters.upcycled[RUN].model.source = source
        message = refuse("bounded", RUN)
        assert source in message
        assert words in message


@pytest.mark.parametrize("tied", [False, True])
def test_rows_that_fill_up_a_sources_vocabulary_are_cut_off(tied):
    torch.manual_seed(0)
    sizes = {"vocab_size": 16, "intermediate_size": 8, "tie_word_embeddings": tied, **TINY}
    source = LlamaForCausalLM(LlamaConfig(**sizes)).eval()
    save_model(source, Path("padded"))
    chosen = ModelParameters(family="upcycled", implicit=True, source="padded")
    model = build(chosen, 11, seed=0)
    assert model.config.vocab_size == model.get_input_embeddings().num_embeddings == 11
    tokens = torch.arange(11)[None]
    expected = source(input_ids=tokens).logits[..., :11].detach()
    torch.testing.assert_close(forward(model, tokens, bounded_phase(1)).logits, expected)
    loss = forward_labelled(model, tokens, tokens, bounded_phase(1)).loss
    torch.testing.assert_close(loss.detach(), aligned_loss(expected, tokens))
    save_model(LlamaForCausalLM(LlamaConfig(**sizes | {"vocab_size": 1100})), Path("other"))
    with pytest.raises(SourceError, match="has 1100 tokens, the data set 11; an upcycled model"):
        build(ModelParameters(family="upcycled", implicit=True, source="other"), 11, seed=0)


@pytest.mark.slow
def test_an_upcycled_model_learns_what_its_source_cannot(parameters):
    OmegaConf.save(parameters, "params.yaml")
    write_splits(read_section("datasets.s3", WordProblemParameters), Path("data/s3"))
    train_baseline.main(BASELINE)
    train_bounded.main(RUN)
    train_free.main(RUN)
    source, run = (
        json.loads(Path("results", "runs", name, f"train_{stage}.json").read_text())
        for name, stage in ((BASELINE, "baseline"), (RUN, "free"))
    )
    assert run["validation_accuracy"] > source["validation_accuracy"] + 0.25
