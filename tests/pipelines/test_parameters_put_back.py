"""When a mistake is found after params.yaml was written: what was there comes back, or may not."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from implicit_models.parameters.composition import compose
from pipelines.dag import UnknownTargetError
from pipelines.presets import parameters_for, parameters_in_use
from tests.repositories import ROOT


@pytest.fixture
def configured(tmp_path: Path) -> Path:
    """Return a folder with our presets, and parameters of a user's own."""
    shutil.copytree(ROOT / "conf", tmp_path / "conf")
    (tmp_path / "params.yaml").write_text(f"# mine\n{compose(ROOT, ['preset=laptop'])}")
    return tmp_path


def mistaken(root: Path, meanwhile: Callable[[], object]) -> None:
    """Write params.yaml from a preset, and find a mistake after something has happened."""

    def check() -> None:
        meanwhile()
        raise UnknownTargetError("no such stage")

    with pytest.raises(UnknownTargetError), parameters_for(root, "quick", check=check):
        pytest.fail("nothing is to be done")


def test_where_nobody_works_with_the_new_parameters_the_old_ones_come_back(configured, capsys):
    before = (configured / "params.yaml").read_text()
    mistaken(configured, lambda: None)
    assert (configured / "params.yaml").read_text() == before
    assert capsys.readouterr().err == ""


def test_parameters_that_another_flow_works_with_by_now_stay(configured, capsys):
    before = (configured / "params.yaml").read_text()
    other = parameters_for(configured, "quick")
    mistaken(configured, other.__enter__)
    assert (configured / "params.yaml").read_text() == compose(ROOT, ["preset=quick"])
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "params.yaml is not put back as it was: another flow works with it by now" in said
    kept = said.split("is kept as ")[1].strip()
    assert (configured / kept).read_text() == before
    other.__exit__(None, None, None)


def test_what_a_user_has_written_meanwhile_stays(configured, capsys):
    path = configured / "params.yaml"
    mistaken(configured, lambda: path.write_text("mine: 2\n"))
    assert path.read_text() == "mine: 2\n"
    assert "another content by now" in capsys.readouterr().err


def test_after_a_mistake_the_parameters_are_free(configured):
    mistaken(configured, lambda: None)
    with parameters_for(configured, "laptop"), parameters_in_use(configured):
        pass
