"""The library alone: what a wheel brings is enough for its models, and brings no pipeline."""

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.repositories import ROOT

PIPELINE = ("mlflow", "prefect", "dvc", "hydra", "lm_eval", "datasets", "matplotlib", "stages")
LIBRARY = ("backbones", "equilibrium", "families", "kernels", "language_models")

ALONE = """
import importlib, importlib.util, pkgutil

import torch, transformers
import implicit_models

assert not [name for name in PIPELINE if importlib.util.find_spec(name)]
for package in LIBRARY:
    folder = importlib.import_module(f"implicit_models.{package}").__path__
    for module in pkgutil.walk_packages(folder, f"implicit_models.{package}."):
        importlib.import_module(module.name)

text = torch.randint(0, 31, (2, 9))
sizes = {"vocab_size": 31, "hidden_size": 32, "num_hidden_layers": 1}
mamba2 = implicit_models.ImplicitMamba2ForCausalLM(
    implicit_models.ImplicitMamba2Config(**sizes, state_size=8, head_dim=8, chunk_size=4)
)
mamba2(text, labels=text).loss.backward()
mamba2.eval()
assert mamba2.generate(text, max_new_tokens=3, do_sample=False).shape == (2, 12)
mamba2.save_pretrained("saved")
loaded = transformers.AutoModelForCausalLM.from_pretrained("saved")
with torch.no_grad():
    assert torch.equal(loaded(text).logits, mamba2(text).logits)
heads = {"num_attention_heads": 4, "intermediate_size": 48}
theirs = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads))
assert implicit_models.upcycle(theirs)(text).logits.shape == (2, 9, 31)
print("all is well")
"""


def _brought_by(name: str, found: set[str]) -> None:
    """Add what a distribution needs, and what that needs in turn."""
    name = canonicalize_name(name)
    if name in found:
        return
    try:
        needed = importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        return  # for another system
    found.add(name)
    for each in map(Requirement, needed):
        if each.marker is None or each.marker.evaluate({"extra": ""}):
            _brought_by(each.name, found)


@pytest.mark.slow
def test_models_run_with_nothing_but_what_the_wheel_brings(tmp_path: Path):
    brought: set[str] = set()
    _brought_by("implicit-models", brought)
    packages = tmp_path / "packages"
    packages.mkdir()
    (packages / "implicit_models").symlink_to(ROOT / "implicit_models")
    for name in brought:
        installed = importlib.metadata.distribution(name)
        for top in {file.parts[0] for file in installed.files or () if file.parts[0] != ".."}:
            if not (packages / top).exists() and top != "__pycache__":
                (packages / top).symlink_to(installed.locate_file(top))
    code = f"PIPELINE, LIBRARY = {PIPELINE}, {LIBRARY}\n{ALONE}"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],  # without the environment's own packages
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(packages)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "all is well"
