"""`make figures`: which presets run, which are left out, and what a failure leaves."""

import contextlib
from pathlib import Path

import pytest

from scripts import make_figures
from scripts.store_notebooks import NotStoredError, notebooks
from tests.repositories import ROOT


@pytest.fixture
def made(monkeypatch, tmp_path):
    """Nothing is run: presets that would be, and notebooks with the folders they would read."""
    done = []

    @contextlib.contextmanager
    def reproduced(folder, preset, *, jobs, cached):
        assert folder == tmp_path / preset and cached
        if preset == "layers":
            raise RuntimeError("a stage has failed")
        done.append((preset, jobs))
        yield

    def store(path, folder, output):
        if path.stem == "cost":
            raise NotStoredError("a cell has failed")
        done.append((path.stem, folder.name if output is None else output.relative_to(tmp_path)))

    monkeypatch.setattr(make_figures, "FOLDER", tmp_path)
    monkeypatch.setattr(make_figures, "reproduced", reproduced)
    monkeypatch.setattr(make_figures, "store", store)
    monkeypatch.setattr(
        make_figures, "take_own_seeds", lambda preset, _: done.append(("take", preset))
    )
    monkeypatch.setattr(make_figures, "write_tables", lambda _: done.append(("tables", "")))
    monkeypatch.setattr(make_figures, "what_is_missing", lambda preset: "")
    return done


def test_a_preset_runs_once_for_all_its_notebooks(made):
    assert make_figures.main(["--jobs", "3", "length", "mixtures", "search"]) == 0
    assert made == [
        *(("laptop", 3), ("take", "laptop"), ("length", "laptop"), ("search", "laptop")),
        *(("mixtures", 3), ("take", "mixtures"), ("mixtures", "mixtures"), ("tables", "")),
    ]


def test_what_fails_keeps_nothing_else_from_being_made(made, capsys):
    assert make_figures.main([]) == 1
    stored = {name for name, folder in made if name in notebooks() and folder != 2}
    assert stored == set(notebooks()) - {"layers", "cost"}
    error = capsys.readouterr().err
    assert "failed: layers: a stage has failed" in error
    assert "failed: cost.ipynb: a cell has failed" in error
    assert made[-1] == ("tables", "")


def test_what_is_shown_of_a_users_own_text_stays_in_the_copy(made):
    assert make_figures.main(["text", "downstream"]) == 0
    assert made == [
        *(("text_small", 2), ("text", Path("text_small/notebooks"))),
        *(("downstream_compute", 2), ("downstream", Path("downstream_compute/notebooks"))),
        ("tables", ""),
    ]


def test_a_preset_that_lacks_a_text_is_left_out_and_says_so(made, capsys, monkeypatch):
    line = "missing: corpora.text.source = 'text' is no folder"
    monkeypatch.setattr(
        make_figures, "what_is_missing", lambda preset: line if preset == "text_small" else ""
    )
    assert make_figures.main(["text", "length"]) == 0
    assert [name for name, _ in made] == ["laptop", "take", "length", "tables"]
    assert f"text_small is left out, and text with it:\n{line}\n" in capsys.readouterr().out


@pytest.mark.skipif((ROOT / "text").exists(), reason="a text of the user's own is here")
def test_what_is_missing_is_what_the_check_says():
    assert make_figures.what_is_missing("quick") == ""
    assert "missing: " in make_figures.what_is_missing("text_small")


def test_an_unknown_notebook_is_refused_with_those_there_are(made, capsys):
    with pytest.raises(SystemExit, match="2"):
        make_figures.main(["lenght"])
    error = capsys.readouterr().err
    assert "no such notebook: lenght" in error and "length" in error and not made


def test_the_list_says_what_is_behind_each(made, capsys):
    assert make_figures.main(["--list", "length", "cost", "catbabi"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "laptop: length, cost",
        "catbabi_seeds: catbabi",
    ]
    assert not made
