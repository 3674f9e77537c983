"""A line of the table of problems that is wrong, or a package that lacks something of it."""

import importlib
import sys
from pathlib import Path

import pytest

from implicit_models.code_imports import submodules
from implicit_models.parameters import ParameterError
from implicit_models.problems.problem import check_kinds, data_of, parameters_of
from implicit_models.problems.table import KINDS
from stages import check
from tests.repositories import ROOT

TABLE = "implicit_models/problems/table.py"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Return a copy of a problem's package, the kind ``votes``, which is to be damaged."""
    for file in (ROOT / "tests" / "problems" / "parity").rglob("*.py"):
        copy = tmp_path / "votes" / file.relative_to(ROOT / "tests" / "problems" / "parity")
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(file.read_text().replace("tests.problems.parity", "votes"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(KINDS, "votes", "votes")
    monkeypatch.setattr(
        "implicit_models.problems.problem.submodules",
        lambda name: [name] if name == "votes" else submodules(name),
    )
    importlib.invalidate_caches()
    yield tmp_path / "votes"
    for name in [each for each in sys.modules if each.partition(".")[0] == "votes"]:
        del sys.modules[name]


def edit(file: Path, before: str, after: str) -> None:
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after))


def test_all_kinds_have_what_is_asked_of_them():
    check_kinds()
    for kind in KINDS:
        data_of(kind)


def test_a_package_that_is_complete_passes(package):
    check_kinds()


@pytest.mark.parametrize(
    "wrong", ["implicit_models.problems.majorty", "implicit_models/problems/text", "nowhere.votes"]
)
def test_a_package_that_is_none_is_named(monkeypatch, wrong):
    monkeypatch.setitem(KINDS, "vote", wrong)
    with pytest.raises(ParameterError) as caught:
        parameters_of("vote")
    assert str(caught.value).startswith(f"{TABLE}: KINDS has 'vote' as {wrong!r}, which is no pack")
    with pytest.raises(ParameterError, match=f"{TABLE}: KINDS has 'vote' as '{wrong}'"):
        check_kinds()


def test_the_check_of_any_preset_says_it_in_a_line(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    monkeypatch.setitem(KINDS, "vote", "implicit_models.problems.majorty")
    assert check.main(["quick"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith(f"error: {TABLE}: KINDS has 'vote' as ")
    assert lines[1:] == ["1 mistake; nothing was run and nothing written"]


def test_a_module_that_is_left_out_is_named(package):
    (package / "checks.py").unlink()
    match = f"{TABLE}: KINDS has 'votes' as 'votes', which lacks the module checks.py; .*problem.py"
    with pytest.raises(ParameterError, match=match):
        check_kinds()


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("parameters.py", "check_carry"),
        ("checks.py", "same_tokens"),
        ("parameters.py", "IS_TEXT"),
        ("data/interface.py", "open_training"),
    ],
)
def test_what_a_module_lacks_is_named(package, file, name):
    edit(package / file, name, f"{name}_")
    match = f"'votes' as 'votes', whose {file} lacks {name}; .*Problem.* of .*problems/problem.py"
    with pytest.raises(ParameterError, match=match):
        check_kinds()
        data_of("votes")


@pytest.mark.parametrize(
    ("mistyped", "error"),
    [
        ("import numpyy", ModuleNotFoundError),
        ("import votes.parametres", ModuleNotFoundError),
        ("from votes.parameters import Paritty", ImportError),
    ],
)
def test_a_mistyped_import_in_a_package_keeps_its_file_and_line(package, mistyped, error):
    """It is no mistake of the table."""
    edit(package / "checks.py", "from votes.parameters import ParityParameters", mistyped)
    with pytest.raises(error) as caught:
        check_kinds()
    frames = [(entry.path, entry.lineno + 1) for entry in caught.traceback]
    text = (package / "checks.py").read_text().splitlines()
    assert (package / "checks.py", text.index(mistyped) + 1) in frames


def test_a_package_that_lies_elsewhere_is_refused(package, monkeypatch):
    monkeypatch.setattr("implicit_models.problems.problem.submodules", submodules)
    with pytest.raises(ParameterError, match="'votes', which is no folder of this repository"):
        check_kinds()
