"""`make figures`: which presets run, which are left out, and what a failure leaves."""

import pytest

from scripts import make_figures
from scripts.store_notebooks import notebooks
from tests.repositories import ROOT


@pytest.fixture
def made(monkeypatch, tmp_path):
    """Nothing is run: presets that would be, and notebooks with the folders they would read."""
    done, taken = [], []

    def reproduce(preset, jobs):
        if preset == "layers":
            raise RuntimeError("a stage has failed")
        done.append((preset, jobs))

    monkeypatch.setattr(make_figures, "FOLDER", tmp_path)
    monkeypatch.setattr(make_figures, "_reproduce", reproduce)
    monkeypatch.setattr(
        make_figures, "store", lambda path, folder: done.append((path.stem, folder.name))
    )
    monkeypatch.setattr(make_figures, "take", lambda preset, folder: taken.append(folder.name))
    monkeypatch.setattr(make_figures, "write_tables", lambda _: taken.append("tables"))
    monkeypatch.setattr(make_figures, "_missing", lambda preset: "")
    yield done
    assert not taken or taken[-1] == "tables"
    assert taken[:-1] == list(
        dict.fromkeys(folder for _, folder in done if isinstance(folder, str))
    )


def test_a_preset_runs_once_for_all_its_notebooks(made):
    assert make_figures.main(["--jobs", "3", "length", "mixtures", "cost"]) == 0
    assert made == [
        *(("laptop", 3), ("length", "laptop"), ("cost", "laptop")),
        *(("mixtures", 3), ("mixtures", "mixtures")),
    ]


def test_all_notebooks_are_made_but_those_whose_preset_fails(made, capsys):
    assert make_figures.main([]) == 1
    stored = {name for name, value in made if not isinstance(value, int)}
    assert stored == set(notebooks()) - {"layers"}
    assert "failed: layers: a stage has failed" in capsys.readouterr().err


def test_a_preset_that_lacks_a_text_is_left_out_and_says_so(made, capsys, monkeypatch):
    line = "missing: corpora.text.source = 'text' is no folder"
    monkeypatch.setattr(
        make_figures, "_missing", lambda preset: line if preset == "text_small" else ""
    )
    assert make_figures.main(["text", "length"]) == 0
    assert [name for name, _ in made] == ["laptop", "length"]
    assert f"text_small is left out, and text with it:\n{line}\n" in capsys.readouterr().out


@pytest.mark.skipif((ROOT / "text").exists(), reason="a text of the user's own is here")
def test_what_is_missing_is_what_the_check_says():
    assert make_figures._missing("quick") == ""
    assert "missing: " in make_figures._missing("text_small")


def test_an_unknown_notebook_is_refused_with_those_there_are(made, capsys):
    with pytest.raises(SystemExit, match="2"):
        make_figures.main(["lenght"])
    error = capsys.readouterr().err
    assert "no such notebook: lenght" in error and "length" in error and not made


def test_the_list_says_what_is_behind_each(made, capsys):
    assert make_figures.main(["--list", "length", "cost", "catbabi"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "laptop: length, cost",
        "catbabi_quick: catbabi",
    ]
    assert not made
