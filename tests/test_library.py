"""The library as a wheel: all of its files, enough for its models, and no pipeline."""

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable
from importlib.metadata import Distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import implicit_models
from implicit_models import equilibrium
from implicit_models.lazy_names import places_of_names
from tests.repositories import ROOT, sources

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PIPELINE = ("mlflow", "prefect", "dvc", "hydra", "lm_eval", "datasets", "matplotlib", "stages")
LIBRARY = (
    *("backbones", "cost", "data", "equilibrium", "evaluation", "families", "kernels"),
    *("language_models", "parameters", "planning", "tracking", "training"),
)

ALONE = """
import importlib, importlib.util, pkgutil

import torch, transformers
import implicit_models

assert not [name for name in PIPELINE if importlib.util.find_spec(name)]
assert "packages" in implicit_models.__file__, implicit_models.__file__
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


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what a wheel of the repository's files unpacks to."""
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert uv is not None, "uv, which builds the wheel, is not here; `make install` brings it"
    folder = tmp_path_factory.mktemp("wheel")
    for name in sources():
        (folder / "clone" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / "clone" / name)
    command = [uv, "build", "--wheel", "--offline", "--out-dir", str(folder / "dist")]
    done = subprocess.run(command, cwd=folder / "clone", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (built,) = (folder / "dist").glob("*.whl")
    zipfile.ZipFile(built).extractall(folder / "unpacked")
    return folder / "unpacked"


def _metadata(wheel: Path) -> Distribution:
    (folder,) = wheel.glob("*.dist-info")
    return Distribution.at(folder)


def test_the_wheel_has_the_files_of_the_library_and_no_others(wheel: Path):
    library = {name for name in sources() if name.startswith("implicit_models/")}
    files = {str(path.relative_to(wheel)) for path in wheel.rglob("*") if path.is_file()}
    assert {name for name in files if ".dist-info/" not in name} == library
    marker = "implicit_models/py.typed"  # PEP 561: type checkers believe the annotations
    assert marker in library
    assert {Path(name).suffix for name in library - {marker}} == {".py", ".c", ".j2"}


def test_the_wheel_says_of_itself_what_pyproject_says(wheel: Path):
    found = _metadata(wheel)
    about = found.metadata
    assert (about["Name"], about["Version"]) == (PROJECT["name"], PROJECT["version"])
    assert about["Requires-Python"] == PROJECT["requires-python"]
    assert about["Description-Content-Type"] == "text/markdown"
    needed = {Requirement(each) for each in found.requires or []}
    extras = set(PROJECT["optional-dependencies"])
    assert set(about.get_all("Provides-Extra") or []) == extras
    plain = {each for each in needed if "extra ==" not in str(each.marker)}
    assert plain == set(map(Requirement, PROJECT["dependencies"]))
    scripts = {each.name: each.value for each in found.entry_points.select(group="console_scripts")}
    assert scripts == PROJECT["scripts"]
    assert about["License-Expression"] == PROJECT["license"]
    assert about.get_all("License-File") == PROJECT["license-files"] == ["LICENSE"]
    assert found.read_text("licenses/LICENSE") == (ROOT / "LICENSE").read_text()


def _brought_by(requirements: Iterable[str], found: set[str]) -> set[str]:
    """Add the distributions that are required, and what these require in turn."""
    for each in map(Requirement, requirements):
        name = canonicalize_name(each.name)
        if name in found or not (each.marker is None or each.marker.evaluate({"extra": ""})):
            continue
        try:
            needed = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # for another system
        found.add(name)
        _brought_by(needed, found)
    return found


@pytest.fixture(scope="module")
def packages(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and what its metadata requires, for PYTHONPATH."""
    folder = tmp_path_factory.mktemp("packages")
    for part in wheel.iterdir():
        (folder / part.name).symlink_to(part)
    for name in _brought_by(_metadata(wheel).requires or [], set()):
        installed = importlib.metadata.distribution(name)
        for top in {file.parts[0] for file in installed.files or () if file.parts[0] != ".."}:
            if not (folder / top).exists() and top != "__pycache__":
                (folder / top).symlink_to(installed.locate_file(top))
    return folder


def _run_alone(code: str, packages: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run Python without the environment's own packages."""
    return subprocess.run(
        [sys.executable, "-S", "-c", code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(packages)},
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
def test_type_checkers_know_the_names_and_types_of_the_wheel(wheel: Path, tmp_path: Path):
    packages = (implicit_models, equilibrium)
    lines = [
        f"from {package.__name__} import {name}"
        for package in packages
        for name in places_of_names(str(package.__file__))
    ]
    lines += ["reveal_type(from_size('llama-130m'))", "Picard(damping='one')"]
    (tmp_path / "user.py").write_text("\n".join(lines))
    done = subprocess.run(
        ["pyright", "--outputjson", "--pythonpath", sys.executable],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(wheel)},
        capture_output=True,
        text=True,
    )
    told = json.loads(done.stdout)["generalDiagnostics"]
    assert [(each["severity"], each.get("rule")) for each in told] == [
        ("information", None),
        ("error", "reportArgumentType"),
    ], told
    assert 'is "ImplicitConfig"' in told[0]["message"]


@pytest.mark.slow
def test_models_run_with_nothing_but_what_the_wheel_brings(packages: Path, tmp_path: Path):
    code = f"PIPELINE, LIBRARY = {PIPELINE}, {LIBRARY}\n{ALONE}"
    done = _run_alone(code, packages, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "all is well"


def test_the_wheels_command_says_that_its_work_is_in_the_repository(packages: Path, tmp_path: Path):
    module, function = PROJECT["scripts"]["implicit-models"].split(":")
    code = f"from {module} import {function}; {function}()"
    done = _run_alone(code, packages, tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: implicit-models is installed as a library, which has no")
