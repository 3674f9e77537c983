"""Tables of README.md and docs/results.md are what was measured."""

import json

import pytest

from scripts import results_tables

RUN = {"kind": "implicit", "data": "word_problem", "num_parameters": 1234, "train_seconds": 61.4}
RUN |= {"training_flops": 9.74e12, "accuracy_last_10": {"160": 0.5, "20": 1.0}}


@pytest.mark.parametrize("page", results_tables.PAGES, ids=lambda page: page.name)
def test_a_page_has_what_was_measured(page):
    text = page.read_text()
    wanted = "python scripts/results_tables.py writes it"
    assert results_tables.written(text) == text, wanted
    assert text.count("<!-- table: ") == text.count("<!-- end of table -->") > 0


def test_every_measurement_is_in_a_table():
    text = "".join(page.read_text() for page in results_tables.PAGES)
    for path in results_tables.MEASURED.glob("*.json"):
        assert f"<!-- table: {path.stem} -->" in text


def test_a_number_by_hand_does_not_stay():
    page = results_tables.PAGES[1].read_text()
    damaged = page.replace("| 100.0 % |", "| 99.9 % |")
    assert damaged != page and results_tables.written(damaged) != damaged


def test_rows_are_named_by_what_they_are_and_columns_by_their_length():
    runs = {
        "a5_lstm": RUN | {"accuracy_last_10": {"20": 0.25}},
        "a5_mamba2_4_layers": RUN,
        "a5_mamba2_1_layer": RUN,
        "a5_implicit_mamba2_seed_1": RUN,
        "a5_implicit_mamba2": RUN,
    }
    lines = results_tables.table(runs).splitlines()
    assert lines[0] == "|  | parameters | 20 tokens | 160 tokens | training | training FLOPs |"
    assert [line.split(" | ")[0] for line in lines[2:]] == [
        "| implicit Mamba2, 1 layer, seed 0",
        "| implicit Mamba2, 1 layer, seed 1",
        "| LSTM, 1 layer",
        "| explicit Mamba2, 1 layer",
        "| explicit Mamba2, 4 layers",
    ]
    assert lines[2].endswith("| 1,234 | 100.0 % | 50.0 % | 61 s | 9.7e12 |")
    assert lines[4].endswith("| 1,234 | 25.0 % |  | 61 s | 9.7e12 |")
    assert "FLOPs" not in results_tables.table(runs, short=True)


def test_several_kinds_of_data_have_a_column():
    found = {"data": "formal_language", "accuracy": {"test": 0.5, "validation": 1.0}}
    runs = {"parity_implicit_mamba2": RUN | found, "cycle_mamba2_neg_eigval": RUN | found}
    lines = results_tables.table(runs).splitlines()
    assert lines[0].startswith("|  | data | parameters | validation | test | ")
    assert lines[2].startswith("| explicit Mamba2, eigenvalues in [-1, 1] | cycle | ")
    assert lines[3].startswith("| implicit Mamba2, 1 layer, seed 0 | parity | 1,234 | 100.0 % | ")


def test_what_is_kept_of_a_summary_is_what_tables_need(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(results_tables, "MEASURED", tmp_path / "measured")
    monkeypatch.setattr(results_tables, "PAGES", (tmp_path / "page.md",))
    page = "before\n<!-- table: mine -->\nold\n<!-- end of table -->\nafter\n"
    (tmp_path / "page.md").write_text(page)
    clone = tmp_path / "clone"
    assert results_tables.main(["--measured", f"mine={clone}"]) == 2
    assert "summary.json does not exist; dvc repro writes it" in capsys.readouterr().err
    assert (tmp_path / "page.md").read_text() == page
    (clone / "results").mkdir(parents=True)
    runs = {"a5_lstm": RUN | {"mlflow_run_id": "abc", "energy_joules": None}}
    summary = {"runs": runs, "success": {}, "readings": {}}
    (clone / "results" / "summary.json").write_text(json.dumps(summary))
    assert results_tables.main(["--measured", f"mine={clone}"]) == 0
    kept = json.loads((tmp_path / "measured" / "mine.json").read_text())
    assert kept == {"runs": {"a5_lstm": RUN}, "success": {}}
    lines = (tmp_path / "page.md").read_text().splitlines()
    assert lines[0] == "before" and lines[-1] == "after" and "LSTM" in lines[4]
