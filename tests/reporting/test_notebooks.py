"""The notebooks on made-up results, and on none; on every preset's own they run in tests/stages."""

import errno
import os
import re
import shutil
from pathlib import Path

import nbformat
import pytest
import yaml
from IPython.core.interactiveshell import InteractiveShell
from IPython.display import Markdown
from matplotlib.figure import Figure
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

from implicit_models.reporting.tables.table import Table
from scripts import store_notebooks
from scripts.store_notebooks import (
    NOTEBOOKS,
    ROOT,
    cells_digest,
    composed,
    notebooks,
    preset_digest,
    preset_of,
    read,
)
from stages.notebooks import open_results
from tests.notebooks import run_notebook
from tests.problems.catbabi.report.synthetic import catbabi_parameters, write_catbabi_results
from tests.reporting.synthetic import parameters, write_results
from tests.reporting.synthetic_text import text_parameters, write_text_results
from tests.repositories import presets

NAMES = sorted(notebooks())
READ_TEXT = {"downstream", "parameters", "text"}  # whose presets read a user's own
NO_MODEL = "No implicit model of a word problem is here, to look into: dvc repro trains them."
NO_MAMBA2 = "No Mamba2 is here, to look into: dvc repro trains them."
WORD_PROBLEMS = {"cost", "jacobian", "layers", "length", "mixtures", "search", "test_time_compute"}


def write(root: Path, content: dict) -> None:
    for entry in content["datasets"].values():
        entry |= {"kind": "word_problem", "seed": 0, "train": {"num_sequences": 8, "length": 16}}
        entry["validation"] = {"num_sequences": 4, "length": 16}
        entry["test"] = {"num_sequences": 4, "lengths": [64]}
    content |= {"report": {}}
    (root / "params.yaml").write_text(yaml.safe_dump(content, sort_keys=False))


@pytest.mark.parametrize(
    ("name", "pictures", "tables", "lines"),
    [
        ("cost", 1, 1, []),
        ("jacobian", 0, 0, [NO_MAMBA2]),
        ("layers", 1, 1, []),
        ("length", 3, 1, []),
        ("mixtures", 2, 1, []),
        ("search", 0, 1, [NO_MODEL]),
        ("test_time_compute", 1, 2, []),
    ],
)
def test_notebooks_of_word_problems(tmp_path, monkeypatch, capsys, name, pictures, tables, lines):
    write(tmp_path, parameters())
    write_results(tmp_path)
    ran = run_notebook(name, tmp_path, monkeypatch, capsys)
    assert (ran.num(Figure), ran.num(Table), ran.printed) == (pictures, tables, lines)
    told = [each.data for each in ran.shown if isinstance(each, Markdown)]
    assert len(ran.shown) == pictures + tables + len(told)
    assert len(told) == (name in {"layers", "length"})
    for conclusion in told:
        assert conclusion.startswith("**a5, accuracy of the last 10 of 128 tokens (8x the length ")
        assert conclusion.endswith("**") and conclusion.count("**") == 2


@pytest.mark.parametrize(
    ("name", "pictures", "tables"),
    [("text", 4, 4), ("parameters", 1, 1), ("downstream", 0, 1), ("bounded_share", 2, 2)],
)
def test_notebooks_of_text(tmp_path, monkeypatch, capsys, name, pictures, tables):
    write(tmp_path, text_parameters())
    write_text_results(tmp_path)
    ran = run_notebook(name, tmp_path, monkeypatch, capsys)
    assert (ran.num(Figure), ran.num(Table), ran.printed) == (pictures, tables, [])


def test_the_notebook_of_catbabi_begins_with_the_conclusion(tmp_path, monkeypatch, capsys):
    content = catbabi_parameters() | {"datasets": {"babi": {"kind": "catbabi"}}}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    write_catbabi_results(tmp_path)
    ran = run_notebook("catbabi", tmp_path, monkeypatch, capsys)
    assert (ran.num(Figure), ran.num(Table), ran.printed) == (2, 1, [])
    assert ran.shown[0].data.startswith("**babi, catbAbI-style, share of right answers: ")


@pytest.mark.parametrize("name", NAMES)
def test_where_nothing_is_reproduced_it_says_what_does(tmp_path, monkeypatch, capsys, name):
    content = parameters() if name in WORD_PROBLEMS else text_parameters()
    write(tmp_path, content)
    ran = run_notebook(name, tmp_path, monkeypatch, capsys)
    assert not ran.shown
    if name in WORD_PROBLEMS | READ_TEXT | {"bounded_share"}:
        trained = [
            each for table in ("runs", "baselines", "matched") for each in content.get(table, ())
        ]
        for entry in trained:
            assert any(
                line.startswith(f"{entry} lacks results; `dvc repro ") for line in ran.printed
            )
    else:
        preset = preset_of(NOTEBOOKS / f"{name}.ipynb")
        assert f"`implicit-models run {preset}` has some." in ran.printed[0]


@pytest.mark.parametrize("name", NAMES)
def test_where_there_is_no_such_problem_it_names_a_preset_that_has_one(
    tmp_path, monkeypatch, capsys, name
):
    write(tmp_path, {"datasets": {}, "runs": {}, "baselines": {}})
    ran = run_notebook(name, tmp_path, monkeypatch, capsys)
    assert not ran.shown
    preset = preset_of(NOTEBOOKS / f"{name}.ipynb")
    assert preset in presets()
    assert f"`implicit-models run {preset}` has some." in ran.printed[0]


def test_entries_without_results_are_named_and_the_others_drawn(tmp_path, monkeypatch, capsys):
    write(tmp_path, parameters())
    write_results(tmp_path)
    for file in (tmp_path / "results" / "runs" / "a5_lstm").iterdir():
        file.unlink()
    ran = run_notebook("length", tmp_path, monkeypatch, capsys)
    assert ran.num(Figure) == 3
    assert [line.split(" ")[0] for line in ran.printed] == ["a5_lstm"]
    (table,) = (each for each in ran.shown if isinstance(each, Table))
    assert "a5_lstm" not in {row[0] for row in table.rows}


def test_a_table_is_shown_as_markdown(tmp_path, monkeypatch, capsys):
    write(tmp_path, parameters())
    write_results(tmp_path)
    ran = run_notebook("length", tmp_path, monkeypatch, capsys)
    (table,) = (each for each in ran.shown if isinstance(each, Table))
    text = InteractiveShell().display_formatter.format(table)[0]["text/markdown"]
    lines = text.splitlines()
    assert lines[0] == f"**{table.title}**" and lines[2] == table.note
    assert lines[5].count("--:") == len(table.columns) - table.num_text_columns
    assert len(lines) == 6 + len(table.rows)
    assert all(line.count("|") == len(table.columns) + 1 for line in lines[4:])


@pytest.mark.parametrize("name", NAMES)
def test_stored_outputs_are_those_of_its_cells(name):
    notebook = read(NOTEBOOKS / f"{name}.ipynb")
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    wanted = f"make figures ONLY={name} stores them"
    if name in READ_TEXT:
        wanted = f"scripts/store_notebooks.py --results FOLDER {name} stores them"
    assert notebook.metadata.get("stored_for") == cells_digest(notebook), wanted
    assert notebook.metadata["parameters"] == preset_digest(notebook.metadata["preset"]), wanted
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1)), wanted
    outputs = [output for cell in cells for output in cell.outputs]
    assert {each.output_type for each in outputs} <= {"display_data", "stream"}
    assert any(each.get("data", {}).keys() & {"image/png", "text/markdown"} for each in outputs)


@pytest.mark.parametrize("name", NAMES)
def test_it_is_small_defines_nothing_and_names_no_machine(name):
    path = NOTEBOOKS / f"{name}.ipynb"
    text = path.read_text(encoding="utf-8")
    assert len(text) < 400_000
    for place in (str(ROOT), str(Path.home()), "/tmp/", "site-packages", "stderr"):
        assert place not in text
    notebook = read(path)
    assert notebook.metadata.kernelspec.name == "python3"
    first = notebook.cells[0].source
    assert "the preset `" + preset_of(path) in first and "the stages" in first
    assert ("of other texts they are others" in first) == (name in READ_TEXT)
    for cell in notebook.cells:
        assert "def " not in cell.source and "class " not in cell.source


@pytest.mark.parametrize("name", NAMES)
def test_it_names_the_stages_that_make_what_it_reads(name):
    cells = read(NOTEBOOKS / f"{name}.ipynb").cells
    code = "".join(cell.source for cell in cells if cell.cell_type == "code")
    named = re.findall(r"`(\w+)`", cells[0].source.split("the stages ")[1].split(" have left")[0])
    assert set(named) <= set(yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"])
    assert ("prepare" in named) == ("open_splits(" in code)
    assert ("train_free" in named) == ("open_results(" in code)
    assert ("evaluate_downstream" in named) == ("open_benchmarks(" in code)


def test_results_of_another_preset_are_not_stored_in_place(tmp_path, capsys):
    before = (NOTEBOOKS / "length.ipynb").read_bytes()
    (tmp_path / "params.yaml").write_text(composed("quick"))
    assert store_notebooks.main(["--results", str(tmp_path), "length"]) == 1
    error = capsys.readouterr().err
    assert f"length.ipynb: {tmp_path}/params.yaml is not that of the preset laptop: " in error
    assert (NOTEBOOKS / "length.ipynb").read_bytes() == before


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (None, "shows nothing of "),
        (CellExecutionError("traceback", "KeyError", "no such thing"), "no such thing"),
        (CellTimeoutError("timed out after 600 seconds"), "timed out after 600 seconds"),
        (DeadKernelError("Kernel died"), "Kernel died"),
    ],
    ids=["nothing", "failed", "slow", "dead"],
)
def test_a_notebook_that_fails_or_shows_nothing_is_not_stored(
    tmp_path, monkeypatch, error, message
):
    def execute(notebook, results):
        if error is not None:
            raise error

    monkeypatch.setattr(store_notebooks, "execute", execute)
    path = write_notebook(tmp_path)
    before = path.read_bytes()
    with pytest.raises(store_notebooks.NotStoredError, match=message):
        store_notebooks.store(path, tmp_path)
    assert path.read_bytes() == before


def write_notebook(folder: Path) -> Path:
    """Write a notebook of the preset ``quick``, and the parameters that it wants beside it."""
    path = folder / "mine.ipynb"
    cell = nbformat.v4.new_code_cell("1")
    notebook = nbformat.v4.new_notebook(cells=[cell], metadata={"preset": "quick"})
    nbformat.write(notebook, path)
    (folder / "params.yaml").write_text(composed("quick"))
    return path


def show(notebook, results=None):
    """Put an output into a notebook, as running it does."""
    shown = nbformat.v4.new_output("display_data", {"text/plain": "a figure"})
    notebook.cells[0].outputs = [shown]


def test_a_notebook_that_was_saved_while_it_ran_stays_as_it_is(tmp_path, monkeypatch):
    path = write_notebook(tmp_path)

    def saved_meanwhile(notebook, results):
        show(notebook)
        changed = read(path)
        changed.cells[0].source = "2"
        nbformat.write(changed, path)

    monkeypatch.setattr(store_notebooks, "execute", saved_meanwhile)
    with pytest.raises(store_notebooks.NotStoredError, match="changed while it ran; run this ag"):
        store_notebooks.store(path, tmp_path)
    assert read(path).cells[0].source == "2" and not read(path).cells[0].outputs
    store_notebooks.store(path, tmp_path, tmp_path / "elsewhere")
    assert read(tmp_path / "elsewhere" / "mine.ipynb").cells[0].outputs
    monkeypatch.setattr(store_notebooks, "execute", show)
    store_notebooks.store(path, tmp_path)
    assert read(path).cells[0].outputs


def test_a_full_disk_leaves_a_notebook_as_it_is(tmp_path, monkeypatch):
    def full(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = write_notebook(tmp_path)
    before = path.read_bytes()
    monkeypatch.setattr(store_notebooks, "execute", show)
    monkeypatch.setattr("implicit_models.files.sync", full)
    with pytest.raises(OSError, match="No space left"):
        store_notebooks.store(path, tmp_path)
    assert path.read_bytes() == before


def test_notebooks_of_ones_own_are_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(store_notebooks, "NOTEBOOKS", tmp_path)
    path = write_notebook(tmp_path)
    nbformat.write(nbformat.v4.new_notebook(), tmp_path / "Untitled.ipynb")
    (tmp_path / "empty.ipynb").write_text("")
    assert notebooks() == {"mine": path}


def test_a_model_has_one_colour_on_all_data_sets(tmp_path):
    content = parameters()
    content["datasets"]["s5"] = content["datasets"]["a5"]
    for table in ("runs", "baselines"):
        anew = {
            f"s5{name[2:]}": {**entry, "dataset": "s5"} for name, entry in content[table].items()
        }
        content[table] |= anew
    write(tmp_path, content)
    write_results(tmp_path)
    runs = tmp_path / "results" / "runs"
    for folder in list(runs.iterdir()):
        shutil.copytree(folder, runs / f"s5{folder.name[2:]}")
    first, second = open_results("word_problem", "laptop", tmp_path)
    assert len(first.styles) == 6
    assert [*first.styles.values()] == [*second.styles.values()]
