"""What the report says of the downstream tasks: every seed of a model counts."""

import pytest

from implicit_models.problems.downstream.parameters import BenchmarkParameters
from implicit_models.problems.downstream.report.benchmarks import BenchmarkResults
from implicit_models.problems.downstream.report.tables import downstream_lead
from implicit_models.problems.problem import results_of
from implicit_models.reporting.results import read_results
from tests.reporting.synthetic import tables
from tests.reporting.synthetic_text import (
    EXPLICIT,
    IMPLICIT,
    text_parameters,
    write_text_results,
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The runs that the models are of, by name."""
    root = tmp_path_factory.mktemp("synthetic")
    write_text_results(root)
    found = read_results(root / "results" / "runs", tables(text_parameters()), results_of)
    return {run.name: run for run in found}


def scored(model, average, error: float | None = 0.001, tasks="seven", search=(), **content):
    """Return the result of a model on the tasks."""
    entry = BenchmarkParameters(model=f"models/{model}/final", tasks=tasks, **dict(search))
    found = {"row": {"average": average}, "standard_errors": {"average": error}}
    found |= {"kind": "implicit", "limit": None, "max_length": 2048}
    return BenchmarkResults(name=f"downstream_{model}", entry=entry, content=found | content)


def test_all_seeds_of_a_model_count(runs):
    implicit = [scored(IMPLICIT[0], 0.5), scored(IMPLICIT[1], 0.3)]
    (told,) = downstream_lead([*implicit, scored(EXPLICIT[0], 0.45)], runs)
    assert f"{IMPLICIT[0]} (implicit) has 40.00 % (mean of 2 seeds, 30.00 % to 50.00 %)" in told
    assert f"it is level with {EXPLICIT[0]} (explicit, 45.00 %)" in told


def test_searches_of_one_model_are_no_seeds_of_it(runs):
    others = [scored(IMPLICIT[0], 0.3, search={"tolerance": 0.5}), scored(EXPLICIT[0], 0.45)]
    (told,) = downstream_lead([scored(IMPLICIT[0], 0.5), *others], runs)
    assert f"downstream_{IMPLICIT[0]} (implicit) has 50.00 %; it is ahead of {EXPLICIT[0]}" in told


def test_an_error_that_is_not_known_is_not_zero(runs):
    (told,) = downstream_lead([scored(IMPLICIT[0], 0.5), scored(EXPLICIT[0], 0.45, None)], runs)
    assert "it is level with" in told
    (told,) = downstream_lead([scored(IMPLICIT[0], 0.5), scored(EXPLICIT[0], 0.45)], runs)
    assert "it is ahead of" in told


@pytest.mark.parametrize("other", [{"limit": 8}, {"max_length": 8}, {"tasks": "others"}])
def test_models_that_were_tested_otherwise_do_not_compare(runs, other):
    (told,) = downstream_lead([scored(IMPLICIT[0], 0.5), scored(EXPLICIT[0], 0.4, **other)], runs)
    assert told == (
        "Downstream tasks, zero-shot: models were tested with other tasks, another limit or "
        "another max_length: no comparison can be made."
    )


def test_a_model_without_the_average_is_in_no_comparison(runs):
    assert downstream_lead([scored(IMPLICIT[0], None)], runs) == []
    lead = downstream_lead([scored(IMPLICIT[0], 0.5), scored(EXPLICIT[0], None, limit=8)], runs)
    assert len(lead) == 1 and "no other kind of model here" in lead[0]
