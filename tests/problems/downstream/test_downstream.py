"""The summary row."""

import math

import pytest

from implicit_models.problems.downstream.evaluation.downstream import summarise
from implicit_models.problems.downstream.tasks import ACCURACIES, AVERAGE, COLUMNS


def results():
    """All seven tasks; the two accuracies of a task are told apart by their values."""
    found = {}
    for place, (task, metric) in enumerate(ACCURACIES.values()):
        other = {"acc": "acc_norm", "acc_norm": "acc"}[metric]
        found[task] = {f"{other},none": 9.0, f"{other}_stderr,none": 9.0}
        found[task] |= {f"{metric},none": place / 10, f"{metric}_stderr,none": 0.01}
    found["lambada_openai"] |= {"perplexity,none": 5.0, "perplexity_stderr,none": 0.2}
    return found


def test_columns():
    summary = summarise(results())
    assert set(summary.scores) == set(summary.standard_errors) == set(COLUMNS)
    assert summary.scores["LAMBADA ppl"] == 5.0
    assert [summary.scores[column] for column in ACCURACIES] == [
        place / 10 for place in range(len(ACCURACIES))
    ]
    assert summary.scores[AVERAGE] == pytest.approx(0.3)
    # Of independent errors: the root of the sum of their squares, over their number.
    assert summary.standard_errors[AVERAGE] == pytest.approx(0.01 * math.sqrt(7) / 7)
    assert summary.standard_errors["LAMBADA ppl"] == 0.2


def test_a_missing_task_leaves_no_average():
    found = results()
    del found["piqa"]
    summary = summarise(found)
    assert summary.scores["PIQA"] is None and summary.standard_errors["PIQA"] is None
    assert summary.scores[AVERAGE] is None and summary.standard_errors[AVERAGE] is None
    assert summary.scores["ARC-E"] == 0.3


def test_a_score_that_is_no_number():
    found = results()
    found["lambada_openai"]["perplexity,none"] = math.nan
    assert summarise(found).scores["LAMBADA ppl"] is None


def test_an_error_that_the_harness_could_not_make():
    found = results()
    found["piqa"]["acc_stderr,none"] = "N/A"
    summary = summarise(found)
    assert summary.standard_errors["PIQA"] is None
    assert summary.standard_errors[AVERAGE] is None
    assert summary.scores[AVERAGE] == pytest.approx(0.3)


def test_without_any_of_the_papers_tasks_there_is_no_average():
    summary = summarise({"sciq": {"acc_norm,none": 0.5, "acc_norm_stderr,none": 0.1}})
    assert summary.scores[AVERAGE] is None and summary.standard_errors[AVERAGE] is None
