"""The script that compares generated stories with real ones, and its table in the docs."""

from pathlib import Path

import pytest

from implicit_models.problems.catbabi.generator.families import generate
from scripts import catbabi_statistics as statistics
from tests.problems.catbabi.test_real_stories import FULL, REAL

PAGE = Path(__file__).parents[3] / "docs" / "catbabi.md"


def row(table: str, task: int) -> list[str]:
    (found,) = [line for line in table.splitlines() if line.startswith(f"| {task} ")]
    return found.split(" | ")


def test_table_of_our_own_stories():
    table = statistics.table(None, [1, 17], 40, 10)
    assert len(table.splitlines()) == 4
    assert row(table, 1)[1:4] == ["15.0 (15 to 15)", "5.00", "87"]
    assert "/" not in row(table, 17)[-1]


def test_no_answer_is_given_away():
    """Chance is one half, and the words without their order tell no more."""
    for task in (6, 17, 18):
        stories = statistics.generated(task, 200, 200)
        assert statistics.bag_of_words_accuracy(stories) < 0.6


def test_the_baseline_learns_what_words_tell():
    """Who is hungry goes to the kitchen, in whatever order it is said."""
    stories = statistics.Stories(generate(20, 60, 0), generate(20, 20, 0, "test"))
    assert statistics.bag_of_words_accuracy(stories) > 0.8


@pytest.mark.skipif(not REAL.is_dir(), reason="the real stories of ../shared/data are not there")
@pytest.mark.parametrize("task", [3, 17])
def test_the_table_of_the_docs(task):
    """All but the last column, whose sums depend on the machine."""
    table = statistics.table(
        REAL / FULL, [task], statistics.TRAINING_STORIES, statistics.TEST_STORIES
    )
    assert row(table, task)[:-1] == row(PAGE.read_text(), task)[:-1]
    assert table.splitlines()[0] in PAGE.read_text()


def test_a_missing_folder_is_named(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("sys.argv", ["catbabi_statistics.py", "--real", str(tmp_path / "en")])
    with pytest.raises(SystemExit):
        statistics.main()
    assert "en: no such folder" in capsys.readouterr().err
