"""What the set-up promises: pins, cheap parameter modules, ignored files, a lazy bootstrap."""

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from unittest import mock

import pytest
import yaml
from packaging.requirements import Requirement

import implicit_models
from scripts import bootstrap
from tests.locks import flock_of_nfs

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCKED = [
    Requirement(line)
    for line in (ROOT / "requirements.lock").read_text().splitlines()
    if not line.startswith("#")
]
PINS = {pin.name: str(pin.specifier).removeprefix("==") for pin in LOCKED}


def test_version_is_the_same_in_the_package_and_its_metadata():
    assert implicit_models.__version__ == PROJECT["project"]["version"]


def test_lock_names_no_build_of_torch_and_nothing_of_cuda():
    assert all(re.fullmatch(r"[0-9][0-9a-z.]*", version) for version in PINS.values())
    assert not [name for name in PINS if name.startswith(("nvidia", "cuda"))]


def test_lock_pins_everything_once_and_triton_where_it_exists():
    assert len(PINS) == len(LOCKED)
    assert not [pin for pin in LOCKED if [each.operator for each in pin.specifier] != ["=="]]
    (triton,) = (pin for pin in LOCKED if pin.name == "triton")
    assert triton.marker is not None
    assert triton.marker.evaluate({"sys_platform": "linux"})
    assert not triton.marker.evaluate({"sys_platform": "darwin"})


@pytest.mark.parametrize(
    "requirement",
    PROJECT["project"]["dependencies"]
    + PROJECT["project"]["optional-dependencies"]["pipeline"]
    + PROJECT["dependency-groups"]["dev"]
    + PROJECT["tool"]["uv"]["constraint-dependencies"],
)
def test_lock_satisfies(requirement: str):
    wanted = Requirement(requirement)
    if requirement not in PROJECT["tool"]["uv"]["constraint-dependencies"]:
        assert wanted.name in PINS
    assert wanted.name not in PINS or wanted.specifier.contains(PINS[wanted.name])


def test_parameter_modules_import_nothing_heavy():
    files = sorted((ROOT / "implicit_models").glob("**/parameters.py"))
    modules = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files]
    code = (
        f"import importlib, sys; [importlib.import_module(name) for name in {modules}]; "
        "print([name for name in ('torch', 'mlflow', 'transformers') if name in sys.modules])"
    )
    answer = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True)
    assert len(modules) > 1
    assert answer.strip() == "[]"


@pytest.mark.parametrize(
    ("path", "is_ignored"),
    [
        (".venv/bin/python", True),
        ("data/a5/train/inputs.npy", True),
        ("data/.gitignore", True),
        ("models/a5/final/model.safetensors", True),
        ("results/report.html", True),
        ("results/runs/a5/.gitignore", True),
        ("results/runs/a5/evaluation.json", True),
        ("results/runs/a5/test_time_compute.json", True),
        ("results/runs/a5/train_free_history.csv", True),
        ("results/summary.json", False),
        ("results/runs/a5/metrics.json", False),
        ("results/runs/a5/train_free.json", False),
        ("implicit_models/problems/word_problem/data/groups.py", False),
        ("benchmarks/results/word_problems.json", False),
        ("checkpoints/a5/step_100", True),
        ("mlflow.db-journal", True),
        ("dvc.lock", False),
    ],
)
def test_git_ignores_outputs_but_not_metrics(path: str, is_ignored: bool, tmp_path: Path):
    subprocess.check_call(["git", "init", "--quiet", tmp_path])
    shutil.copy(ROOT / ".gitignore", tmp_path)
    answer = subprocess.call(["git", "-C", tmp_path, "check-ignore", "--quiet", path])
    assert answer == (0 if is_ignored else 1)


def test_settings_of_pip_reach_uv():
    listing = """\
:env:.find-links='/wheels https://example.org/wheels'
global.cert='/etc/ssl/with space.pem'
global.extra-index-url='https://b.example.org/simple'
global.find-links='/elsewhere'
global.index-url='https://a.example.org/simple'
"""
    assert bootstrap.translate(listing) == {
        "SSL_CERT_FILE": "/etc/ssl/with space.pem",
        "UV_DEFAULT_INDEX": "https://a.example.org/simple",
        "UV_FIND_LINKS": "/wheels,https://example.org/wheels",
        "UV_INDEX": "https://b.example.org/simple",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
    }


def test_torch_comes_from_find_links_only_if_it_fits_this_python(tmp_path: Path, monkeypatch):
    monkeypatch.delenv("UV_FIND_LINKS", raising=False)
    (tmp_path / "torch-2.13.0+cpu-cp39-cp39-linux_x86_64.whl").touch()
    assert bootstrap.default_backend(str(tmp_path)) in ("cpu", "auto")
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    (tmp_path / f"torch-2.13.0+cpu-{tag}-{tag}-linux_x86_64.whl").touch()
    assert bootstrap.default_backend(str(tmp_path)) == ""


def test_stamp_counts_only_for_a_complete_environment_in_its_place(tmp_path: Path, monkeypatch):
    python = tmp_path / "bin" / "python"
    stamp = tmp_path / "installed.json"
    monkeypatch.setattr(bootstrap, "ENVIRONMENT", tmp_path)
    monkeypatch.setattr(bootstrap, "PYTHON", python)
    content = {"environment": str(tmp_path), "lock": "x", "backend": "cpu"}
    assert bootstrap.read_stamp(stamp) == {}  # nothing there
    stamp.write_text(json.dumps(content))
    assert bootstrap.read_stamp(stamp) == {}  # its Python is gone
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    assert bootstrap.read_stamp(stamp) == {}  # its Python is another version now
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (tmp_path / "lib" / version / "site-packages").mkdir(parents=True)
    assert bootstrap.read_stamp(stamp) == content
    stamp.write_text(json.dumps(content | {"environment": "/moved/from/here"}))
    assert bootstrap.read_stamp(stamp) == {}


@pytest.fixture
def environment(tmp_path: Path, monkeypatch) -> Path:
    """Return an environment whose uv writes what it is told, and fails where `offline` exists."""
    venv = tmp_path / ".venv"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (venv / "lib" / version / "site-packages").mkdir(parents=True)
    (venv / "bin").mkdir()
    (venv / "bin" / "python").symlink_to(sys.executable)
    (venv / "bin" / "uv").write_text(
        f'#!/bin/sh\n[ "$1" = --version ] || echo "$@" >> "{tmp_path}/told"\n'
        f'[ "$1" = --version ] || [ ! -e "{tmp_path}/offline" ]\n'
    )
    (venv / "bin" / "uv").chmod(0o755)
    monkeypatch.setattr(bootstrap, "ENVIRONMENT", venv)
    monkeypatch.setattr(bootstrap, "PYTHON", venv / "bin" / "python")
    monkeypatch.setattr(bootstrap, "STAMP", venv / "installed.json")
    monkeypatch.setattr(bootstrap, "UNFINISHED", venv / "unfinished.json", raising=False)
    monkeypatch.setattr(bootstrap, "create_environment", lambda: pytest.fail("it is made afresh"))
    for name in ("TORCH_BACKEND", "UV_TORCH_BACKEND"):
        monkeypatch.delenv(name, raising=False)
    (venv / "installed.json").write_text(json.dumps({"environment": str(venv), "backend": "cpu"}))
    return venv


def test_after_a_failed_installation_the_environment_is_gone_on_with(environment, monkeypatch):
    told, offline = (environment.with_name(name) for name in ("told", "offline"))
    offline.touch()
    monkeypatch.setenv("TORCH_BACKEND", "cu130")
    for _ in range(2):
        with pytest.raises(SystemExit, match="uv pip install failed"):
            bootstrap.install()
        assert not bootstrap.STAMP.exists()
    both = told.read_text().splitlines()
    assert all("cu130" in line and "--reinstall-package torch" in line for line in both)
    offline.unlink()
    # What was chosen before counts again, and the torch that came in between does not stay.
    monkeypatch.delenv("TORCH_BACKEND")
    bootstrap.install()
    last = told.read_text().splitlines()[-1]
    assert "--torch-backend cpu" in last and "--reinstall-package torch" in last
    assert bootstrap.read_stamp(bootstrap.STAMP)["backend"] == "cpu"
    assert not bootstrap.UNFINISHED.exists()
    bootstrap.install()
    assert len(told.read_text().splitlines()) == 3


def test_an_environment_whose_uv_does_not_work_is_made_afresh(environment):
    (environment / "bin" / "uv").write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(pytest.fail.Exception, match="made afresh"):
        bootstrap.install()
    (environment / "bin" / "uv").chmod(0o644)
    with pytest.raises(pytest.fail.Exception, match="made afresh"):
        bootstrap.install()


def test_an_environment_that_is_a_link_is_not_emptied(tmp_path: Path, monkeypatch):
    other = tmp_path / "other"
    (other / "bin").mkdir(parents=True)
    link = tmp_path / ".venv"
    link.symlink_to(other)
    monkeypatch.setattr(bootstrap, "ENVIRONMENT", link)
    with pytest.raises(SystemExit, match=f"{link} is a link to {other}"):
        bootstrap.create_environment()
    assert (other / "bin").is_dir()


@pytest.fixture
def made(tmp_path: Path, monkeypatch) -> Path:
    """Return where an environment is to be made, really; uv is not installed into it."""
    venv = tmp_path / ".venv"
    for name, path in (
        ("ENVIRONMENT", venv),
        ("PYTHON", venv / "bin" / "python"),
        ("STAMP", venv / "installed.json"),
        ("UNFINISHED", venv / "unfinished.json"),
    ):
        monkeypatch.setattr(bootstrap, name, path)
    run = bootstrap.run

    def without_network(command, *rest):
        if "pip" not in command:
            run([*command, "--without-pip"] if "venv" in command else command, *rest)

    monkeypatch.setattr(bootstrap, "run", without_network)
    return venv


def test_somebody_elses_environment_is_not_emptied_and_our_own_is(made: Path):
    bootstrap.create_environment()  # where there is none
    bootstrap.create_environment()  # one that was cut off
    packages = next(made.glob("lib/python*/site-packages"))
    theirs = packages / "requests-2.0.dist-info"
    theirs.mkdir()
    with pytest.raises(SystemExit, match="made for something else"):
        bootstrap.create_environment()
    assert theirs.is_dir()
    (made / "installed.json").write_text("{")  # ours, damaged
    bootstrap.create_environment()
    assert not theirs.exists() and (made / "bin" / "python").exists()


def test_an_environment_is_made_anew_by_its_own_python(made: Path):
    bootstrap.create_environment()
    code = (
        "import runpy, pathlib, sys; sys.argv = ['bootstrap.py', '--help']; "
        f"b = runpy.run_path({str(ROOT / 'scripts' / 'bootstrap.py')!r}); "
        "b['run']([sys.executable, '-m', 'venv', '--without-pip', '--clear', sys.prefix])"
    )
    subprocess.run([made / "bin" / "python", "-c", code], check=True)
    assert subprocess.run([made / "bin" / "python", "-c", ""]).returncode == 0


def test_the_lock_is_taken_as_nfs_wants_it_and_where_nobody_can(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(bootstrap, "LOCK", tmp_path / "requirements.lock")
    bootstrap.LOCK.write_text("")
    with flock_of_nfs() as taken, bootstrap.one_at_a_time():
        assert taken == [fcntl.LOCK_EX]
    monkeypatch.setattr(bootstrap.fcntl, "flock", mock.Mock(side_effect=OSError(38, "none")))
    with bootstrap.one_at_a_time():
        pass


def test_an_environment_without_the_command_is_refreshed(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(bootstrap, "ROOT", tmp_path)
    project = tmp_path / "pyproject.toml"
    digests = set()
    for text in (
        "[project]\nname = 'x'\n\n[tool.ruff]\nline-length = 100\n",
        "[project]\nname = 'x'\n\n[tool.ruff]\nline-length = 80\n",  # not installed
        "[project]\nname = 'x'\n[project.scripts]\nx = 'x:main'\n\n[tool.ruff]\n",
    ):
        project.write_text(text)
        digests.add(bootstrap.project_digest())
    assert len(digests) == 2


def test_the_command_is_installed_and_setting_up_names_it():
    scripts = PROJECT["project"]["scripts"]
    assert scripts == {"implicit-models": "implicit_models.command:main"}
    assert "implicit-models run quick" in bootstrap.NEXT


def test_citation_names_this_version_and_the_paper():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == PROJECT["project"]["version"]
    assert cited["license"] == PROJECT["project"]["license"]
    (paper,) = cited["references"]
    assert len(paper["authors"]) == 6 and paper["year"] == 2025


def test_forms_of_issues_are_read_by_their_host():
    forms = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
    for form in forms:
        content = yaml.safe_load(form.read_text())
        if form.stem != "config":
            assert {"name", "description", "body"} <= content.keys()
            assert all(part["attributes"]["label"] for part in content["body"])
    assert len(forms) == 4


@pytest.mark.parametrize(
    ("given", "preset"), [([], "laptop"), (["PRESET=quick"], "quick")], ids=["default", "another"]
)
def test_make_repro_reproduces_a_preset_whatever_ran_before(given: list[str], preset: str) -> None:
    command = ["make", "--dry-run", "--no-print-directory", "-o", "install", "repro", *given]
    of_make = {"MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS", "JOBS"}
    environment = {name: value for name, value in os.environ.items() if name not in of_make}
    environment["PRESET"] = "of_the_environment"
    made = subprocess.run(
        command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True
    )
    assert f"-m pipelines.reproduce --preset {preset} --jobs 2" in made.stdout
