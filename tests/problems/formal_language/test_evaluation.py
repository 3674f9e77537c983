"""A model of flip-flops from its folder to the section of the report."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from implicit_models.families.building import build
from implicit_models.language_models.serialisation import save_model
from implicit_models.problems.answers import Evaluated
from implicit_models.problems.formal_language.data import interface
from implicit_models.problems.formal_language.evaluation.interface import evaluate, sweep
from implicit_models.problems.formal_language.parameters import (
    FormalLanguageEvaluationParameters,
    FormalLanguageSweepParameters,
)
from implicit_models.problems.formal_language.report.figures import accuracy_by_length
from implicit_models.problems.formal_language.report.lead import (
    formal_language_lead,
    split_words,
)
from implicit_models.problems.formal_language.report.results import FormalLanguageResults
from implicit_models.problems.formal_language.report.section import swept_tables
from implicit_models.problems.formal_language.report.tables import (
    accuracy_table,
    published_tables,
)
from implicit_models.reporting.comparison import Candidate
from implicit_models.reporting.figures.style import RunStyle
from tests.language_models.models import EXPLICIT, IMPLICIT
from tests.problems.formal_language.test_strings import SIZES, language

DATA = language(
    "flip_flop",
    test=SIZES["test"] | {"shortest": 10, "longest": 10, "ignore_probabilities": [0.98, 0.125]},
)
NAMES = ["validation", "test_ignoring_98_percent", "test_ignoring_12.5_percent"]
SEARCH: dict[str, Any] = {"window": 8, "patience": 2, "max_steps": 50}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("flips")
    interface.prepare(DATA, path / "data", path)
    for name, sizes in (("implicit", IMPLICIT), ("explicit", EXPLICIT)):
        save_model(build(sizes, 5, seed=0, label_alignment="next_token"), path / name)
    return path


def evaluated(folder: Path, name: str) -> Evaluated:
    parameters = FormalLanguageEvaluationParameters(**SEARCH, tolerance=0.01)
    return evaluate(folder / name, folder / "data", parameters)


def results(folder: Path, name: str, **changes: Any) -> FormalLanguageResults:
    found = evaluated(folder, name)
    values: dict[str, Any] = {
        "name": f"flips_{name}",
        "kind": name,
        "problem": "formal_language",
        "entry": None,
        "group": f"of_{name}",
        "dataset": "flips",
        "training_length": 8,
        "phase_change": None,
        "evaluation": found.metrics,
        "test_time_compute": None,
        "training": {},
        "history": {},
        "position_rows": [
            {key: str(value) for key, value in row.items()}
            for row in found.files["evaluation_by_position.csv"]
        ],
    }
    return FormalLanguageResults(**values | changes)


def test_splits_stand_in_the_order_of_the_parameters(folder: Path) -> None:
    found = evaluated(folder, "implicit")
    assert found.metrics["splits"] == NAMES
    assert found.headline["accuracy"] == found.metrics["accuracy"]
    assert list(found.headline["accuracy"]) == NAMES
    first = found.metrics["accuracy"][NAMES[1]]
    assert found.score == (f"accuracy.{NAMES[1]}", first, True)
    assert found.headline["evaluations_per_token"][NAMES[1]] > 1
    assert results(folder, "implicit").tests == NAMES[1:]


def test_every_accuracy_that_is_shown_has_its_error_and_chance(folder: Path) -> None:
    shown = evaluated(folder, "implicit").headline["accuracy"]
    scores = results(folder, "implicit").scores()
    for beside in (scores["standard_errors"], scores["chance"]):
        assert shown.keys() == beside["accuracy"].keys()


def test_chance_is_the_most_frequent_answer_of_each_split(folder: Path) -> None:
    from implicit_models.problems.formal_language.data.splits import open_splits

    chance = evaluated(folder, "explicit").metrics["chance"]["accuracy"]
    assert list(chance) == NAMES
    for name, share in chance.items():
        labels = open_splits(folder / "data").splits[name].labels
        counts = [int((labels == bit).sum()) for bit in (0, 1)]
        assert share == pytest.approx(max(counts) / sum(counts))
    run = results(folder, "explicit")
    assert (run.scores()["chance"], run.ranked_chance) == ({"accuracy": chance}, chance[NAMES[1]])


def test_a_sweep_says_how_long_its_strings_are_in_tokens(folder: Path) -> None:
    parameters = FormalLanguageSweepParameters(
        length=1000, num_sequences=20, self_iterations=(1, 2), tolerances=(0.1,), **SEARCH
    )
    found = sweep(folder / "implicit", folder / "data", parameters)
    assert found.result.length == 8 and found.result.num_sequences == 20
    swept = dataclasses.replace(
        results(folder, "implicit"), test_time_compute=found.result.metrics()
    )
    notes = [table.note for table in swept_tables([swept])]
    assert notes and all(note.startswith("Strings of at most 8 tokens.") for note in notes)
    with pytest.raises(ValueError, match=r"num_sequences = 99 is not allowed; allowed is at most"):
        sweep(folder / "implicit", folder / "data", parameters.replace(num_sequences=99))


def test_the_report_says_what_was_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from implicit_models.problems.formal_language.report import lead

    monkeypatch.setattr(lead, "cost_sentences", lambda best, runs: [])
    monkeypatch.setattr(
        lead,
        "candidates",
        lambda runs, score: [
            Candidate(name=r.name, kind=r.kind, runs=[r], values=[score(r)[0]]) for r in runs
        ],
    )
    monkeypatch.setattr(lead, "compared", lambda runs: "two models")
    runs = [results(folder, name) for name in ("implicit", "explicit")]
    headline, what, *learned, noise = formal_language_lead(runs, DATA, 0.0)
    assert headline.startswith(
        "flips, share of right answers to strings of length 10, 98 % to be ignored: "
    )
    assert "trained on lengths of 4 to 9, on the answers alone; always giving" in what
    assert [sentence.split(" are right")[0] for sentence in learned] == [
        "0 % or more of the answers to strings of length 4 to 9, 80 % to be ignored",
        "0 % or more of the answers to strings of length 10, 98 % to be ignored",
        "0 % or more of the answers to strings of length 10, 12.5 % to be ignored",
    ]
    assert "with 1 of 1 seed of flips_implicit and 1 of 1 seed of flips_explicit." in learned[0]
    assert "seed" in noise
    cut = [dataclasses.replace(run, training_length=6) for run in runs]
    assert "on the answers alone, cut to 6 tokens at most;" in formal_language_lead(cut, DATA, 0)[1]


def test_the_table_has_a_row_for_each_split(folder: Path) -> None:
    run = results(folder, "explicit")
    table = accuracy_table([run], DATA)
    assert [row[2] for row in table.rows] == [split_words(name, DATA) for name in NAMES]
    assert [row[6] for row in table.rows] == [
        f"{run.evaluation['num_answers'][name]:,}" for name in NAMES
    ]
    assert published_tables(DATA) == []
    (published,) = published_tables(language("modular_arithmetic"))
    assert ["LSTM", published.rows[1][1], "100", ""] in published.rows
    assert published_tables(language("modular_arithmetic", size=3)) == []


def test_accuracy_by_length_has_errors_the_training_length_and_the_most_frequent_answer(folder):
    rows = [
        {"split": split, "shortest": n // 2, "longest": n, "accuracy": right, "num_answers": 98}
        for split, n, right in [("validation", 4, 1.0), ("validation", 8, 0.5), (NAMES[1], 64, 0.5)]
    ]
    run = results(folder, "implicit", position_rows=rows, training_length=40)
    styles = {run.name: RunStyle(colour="#123456", dash="-")}
    (axis,) = accuracy_by_length([run], styles).axes
    (bars,) = (each.get_segments() for each in axis.collections)
    assert [bar[:, 0].tolist() for bar in bars] == [[4, 4], [8, 8], [64, 64]]
    assert bars[1][:, 1] == pytest.approx([0.45, 0.55], abs=1e-3)
    assert axis.get_xscale() == "log" and axis.get_xticks().tolist() == [4, 8, 16, 32, 64]
    assert axis.get_xlabel() == "longest strings of the bin (symbols)"
    text = " ".join(label.get_text() for label in axis.texts)
    assert "trained up to 8" in text and "most frequent answer " in text
