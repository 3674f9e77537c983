"""transformers' Auto classes know our models, whatever is imported first."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

import implicit_models
from implicit_models.families.registration import register_models, registered
from tests.language_models.kinds import KINDS, model_of

ORDERS = {
    "the package first": """
import implicit_models
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
""",
    "transformers first": """
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
AutoModelForCausalLM, AutoModel
import implicit_models
""",
    "one of its modules first": """
import implicit_models.families.lstm.model
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
""",
}
KNOWN = """
for name, kind in (("implicit_mamba2", "Mamba2"), ("implicit_llama", "Llama")):
    config = AutoConfig.from_pretrained(sys.argv[1] + "/" + name)
    assert type(config).__name__ == f"Implicit{kind}Config"
    for auto, part in ((AutoModel, "Model"), (AutoModelForCausalLM, "ForCausalLM")):
        model = auto.from_pretrained(sys.argv[1] + "/" + name)
        assert type(model).__name__ == f"Implicit{kind}{part}"
import implicit_models
"""
LIGHT = """
import sys
import implicit_models
loaded = {name.partition(".")[0] for name in sys.modules}
assert not loaded & {"torch", "transformers", "numpy", "safetensors"}, loaded
"""
# A fork for each order, of a process that has what is the same in all of them.
EACH = f"""
import os, sys, traceback
import scipy.optimize, tokenizers, torch._dynamo, torch.distributed.tensor
assert not {{"implicit_models", "transformers"}} & sys.modules.keys()
for name, order in {ORDERS!r}.items():
    if os.fork() == 0:
        try:
            exec(order + {KNOWN!r}, {{"sys": sys}})
        except BaseException:
            print(name, file=sys.stderr)
            traceback.print_exc()
            os._exit(1)
        print(name, "is known", flush=True)
        os._exit(0)
    os.wait()
"""


def test_every_order_of_import(tmp_path: Path) -> None:
    for kind in ("mamba2-implicit", "llama-explicit"):
        model = model_of(kind)
        model.save_pretrained(tmp_path / model.config.model_type)
    found = subprocess.run(
        [sys.executable, "-W", "error", "-c", EACH, str(tmp_path)], capture_output=True, text=True
    )
    assert found.stdout.splitlines() == [f"{name} is known" for name in ORDERS], found.stderr


def test_the_package_imports_nothing_heavy() -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", LIGHT], check=True)


def test_registering_again_is_harmless() -> None:
    for _ in range(2):
        importlib.reload(implicit_models)
        for kind in KINDS:
            model = model_of(kind)
            registered(type(model.config))
            register_models(type(model.config), type(model), type(model.model))
    for kind in KINDS:
        model = model_of(kind)
        assert type(AutoModelForCausalLM.from_config(model.config)) is type(model)
        assert type(AutoModel.from_config(model.config)) is type(model.model)
        assert type(AutoConfig.for_model(model.config.model_type)) is type(model.config)


@pytest.mark.parametrize("kind", KINDS)
def test_the_file_names_the_class(kind: str, tmp_path: Path) -> None:
    model = model_of(kind)
    model.save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    assert settings["architectures"] == [type(model).__name__]
    family = "mamba2" if kind.startswith("mamba2") else "llama"
    assert settings["model_type"] == f"implicit_{family}"
    assert "auto_map" not in settings  # no code travels with the weights
