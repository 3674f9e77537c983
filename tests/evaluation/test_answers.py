"""Answers on disk."""

import math
import sqlite3

import pytest

from implicit_models.evaluation.answers import Answer, AnswerFileError, Answers, Continuation

FIRST, SECOND = Continuation((1, 2), (3,)), Continuation((1,), (2, 3))


def test_what_was_added_is_found_again(tmp_path):
    path = tmp_path / "new" / "answers"
    kept = {FIRST: Answer(-1 / 3, True), SECOND: Answer(math.nan, False)}
    with Answers(path, "a") as answers:
        assert answers.find([FIRST, SECOND]) == {}
        answers.add(kept)
    with Answers(path, "a") as answers:
        found = answers.find([SECOND, FIRST, Continuation((9,), (9,))])
    assert found[FIRST] == kept[FIRST]
    assert math.isnan(found[SECOND].log_likelihood) and set(found) == {FIRST, SECOND}


def test_many_answers(tmp_path):
    many = {Continuation((i,), (i,)): Answer(float(-i), i % 2 == 0) for i in range(2000)}
    with Answers(tmp_path / "answers", "") as answers:
        answers.add(many)
        assert answers.find(many) == many


def test_another_identity_begins_anew(tmp_path):
    with Answers(tmp_path / "answers", "a") as answers:
        answers.add({FIRST: Answer(-1.0, True)})
    with Answers(tmp_path / "answers", "b") as answers:
        assert answers.find([FIRST]) == {}
    with Answers(tmp_path / "answers", "a") as answers:
        assert answers.find([FIRST]) == {}


def test_a_batch_is_there_whole_or_not_at_all(tmp_path, monkeypatch):
    class Broken:
        log_likelihood = -1.0

        @property
        def is_greedy(self):
            return object()  # which SQLite does not take

    with Answers(tmp_path / "answers", "") as answers:
        with pytest.raises(sqlite3.Error):
            answers.add({FIRST: Answer(-1.0, True), SECOND: Broken()})  # type: ignore[dict-item]
        assert answers.find([FIRST, SECOND]) == {}


def test_a_file_of_something_else(tmp_path):
    (tmp_path / "answers").write_text(
        "these are no answers, but some text that is long enough " * 9
    )
    with pytest.raises(AnswerFileError, match="delete it to begin anew"):
        Answers(tmp_path / "answers", "")
