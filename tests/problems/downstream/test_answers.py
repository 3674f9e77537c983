"""Answers on disk."""

import contextlib
import math
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from implicit_models.evaluation.score_store import ScoreStore, ScoreStoreError
from implicit_models.problems.downstream.evaluation.answers import (
    Answer,
    Answers,
    Continuation,
    ReadingCost,
)

FIRST, SECOND = Continuation((1, 2), (3,)), Continuation((1,), (2, 3))

COST = ReadingCost(num_texts=2, num_tokens=7, num_scored=3, flops=1e15 / 3, seconds=0.25)


@contextlib.contextmanager
def opened(path: Path, identity: str) -> Iterator[Answers]:
    with ScoreStore(path, identity) as store:
        yield Answers(store)


def test_what_was_added_is_found_again(tmp_path):
    path = tmp_path / "new" / "answers"
    kept = {FIRST: Answer(-1 / 3, True), SECOND: Answer(math.nan, False)}
    with opened(path, "a") as answers:
        assert answers.find([FIRST, SECOND]) == {}
        answers.add(kept, COST)
    with opened(path, "a") as answers:
        found = answers.find([SECOND, FIRST, Continuation((9,), (9,))])
    assert found[FIRST] == kept[FIRST]
    assert math.isnan(found[SECOND].log_likelihood) and set(found) == {FIRST, SECOND}


def test_many_answers(tmp_path):
    many = {Continuation((i,), (i,)): Answer(float(-i), i % 2 == 0) for i in range(2000)}
    with opened(tmp_path / "answers", "") as answers:
        answers.add(many, COST)
        assert answers.find(many) == many


def test_another_identity_begins_anew(tmp_path):
    with opened(tmp_path / "answers", "a") as answers:
        answers.add({FIRST: Answer(-1.0, True)}, COST)
    with opened(tmp_path / "answers", "b") as answers:
        assert answers.find([FIRST]) == {}
    with opened(tmp_path / "answers", "a") as answers:
        assert answers.find([FIRST]) == {}


def test_a_batch_is_there_whole_or_not_at_all(tmp_path):
    class Broken:
        is_greedy = True

        @property
        def log_likelihood(self):
            return object()  # which is no number

    with opened(tmp_path / "answers", "") as answers:
        with pytest.raises(TypeError):
            answers.add({FIRST: Answer(-1.0, True), SECOND: Broken()}, COST)  # type: ignore
        assert answers.find([FIRST, SECOND]) == {}
        with contextlib.closing(sqlite3.connect(tmp_path / "answers")) as database:
            number = database.execute("SELECT COUNT(DISTINCT batch) FROM arrays").fetchone()
        assert number == (0,)


def test_the_cost_of_each_batch_counts_once(tmp_path):
    path, third = tmp_path / "answers", Continuation((5,), (5,))
    with opened(path, "") as answers:
        answers.add({FIRST: Answer(-1.0, True), SECOND: Answer(-2.0, True)}, COST)
        answers.add({third: Answer(-3.0, True)}, ReadingCost(num_texts=1, flops=0.5))
    with opened(path, "") as answers:
        assert answers.cost_of([]) == ReadingCost()
        assert answers.cost_of([FIRST]) == answers.cost_of([FIRST, SECOND]) == COST
        both = answers.cost_of([FIRST, SECOND, third, Continuation((9,), (9,))])
    assert (both.num_texts, both.num_tokens, both.flops) == (3, 7, 1e15 / 3 + 0.5)
    assert isinstance(both.num_tokens, int)


def test_a_file_of_an_older_format_begins_anew(tmp_path):
    path = tmp_path / "answers"
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE identity (name TEXT)")
        database.execute("INSERT INTO identity VALUES ('a')")
        database.execute("CREATE TABLE answers (key BLOB, log_likelihood REAL, is_greedy INTEGER)")
    with opened(path, "a") as answers:
        assert answers.find([FIRST]) == {}
        answers.add({FIRST: Answer(-1.0, True)}, COST)
        assert answers.cost_of([FIRST]) == COST


def test_a_file_of_something_else(tmp_path):
    (tmp_path / "answers").write_text(
        "these are no answers, but some text that is long enough " * 9
    )
    with pytest.raises(ScoreStoreError, match="delete it to begin anew"):
        ScoreStore(tmp_path / "answers", "").__enter__()
