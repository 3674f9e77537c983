"""What the report says of the downstream tasks: every seed of a model counts, no search twice."""

import dataclasses

import numpy as np
import pytest
from matplotlib.colors import to_hex

from implicit_models.problems.downstream.parameters import BenchmarkParameters
from implicit_models.problems.downstream.report.benchmarks import BenchmarkResults
from implicit_models.problems.downstream.report.figures import accuracy_by_self_iterations, swept
from implicit_models.problems.downstream.report.tables import downstream_lead
from implicit_models.problems.problem import results_of
from implicit_models.reporting import figures
from implicit_models.reporting.comparison import STEPS_LEFT_OUT
from implicit_models.reporting.illustration import Illustration
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


def scored(model, average, error: float | None = 0.001, tasks="seven", asked=(), **content):
    """Return the result of a model on the tasks."""
    entry = BenchmarkParameters(model=f"models/{model}/final", tasks=tasks, **dict(asked))
    found = {"row": {"average": average}, "standard_errors": {"average": error}}
    found |= {"kind": "implicit", "limit": None, "max_length": 2048}
    return BenchmarkResults(name=f"downstream_{model}", entry=entry, content=found | content)


def test_all_seeds_of_a_model_count(runs):
    implicit = [scored(IMPLICIT[0], 0.5), scored(IMPLICIT[1], 0.3)]
    (told,) = downstream_lead([*implicit, scored(EXPLICIT[0], 0.45)], runs)
    assert f"{IMPLICIT[0]} (implicit) has 40.00 % (mean of 2 seeds, 30.00 % to 50.00 %)" in told
    assert f"it is level with {EXPLICIT[0]} (explicit, 45.00 %)" in told


def test_searches_of_one_model_are_no_seeds_of_it(runs):
    others = [scored(IMPLICIT[0], 0.3, asked={"tolerance": 0.5}), scored(EXPLICIT[0], 0.45)]
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


def searched(model, max_steps, average, error: float | None = 0.001, asked=(), **content):
    """Return the result of a model that was allowed so many steps, as it is recorded."""
    asked = {"window": "whole", "max_steps": max_steps, **dict(asked)}
    used = {"damping": 0.8, "tolerance": 0.05, "patience": None, **asked}
    found = scored(model, average, error, asked=asked, **{"search": used, **content})
    return dataclasses.replace(found, name=f"{model}_{max_steps}")


def explicit(model, average, error: float | None = 0.001, **content):
    return scored(model, average, error, **{"kind": "explicit", "search": None, **content})


def test_of_searches_that_differ_in_their_steps_alone_the_fullest_counts(runs):
    first, second = IMPLICIT
    found = [searched(first, 8, 0.6), searched(first, 32, 0.4), searched(first, 2, 0.3)]
    rival = explicit(EXPLICIT[0], 0.45)
    headline, said = downstream_lead([*found, rival], runs)
    assert f"{first} (implicit) has 40.00 %; it loses to {EXPLICIT[0]}" in headline
    assert said == STEPS_LEFT_OUT
    both = [*found, searched(second, 8, 0.6), searched(second, 32, 0.5), rival]
    headline, _ = downstream_lead(both, runs)
    assert f"{first} (implicit) has 45.00 % (mean of 2 seeds, 40.00 % to 50.00 %)" in headline
    stricter = searched(first, 32, 0.5, asked={"tolerance": 0.01})
    headline, _ = downstream_lead([*found, stricter, rival], runs)
    assert f"{stricter.name} (implicit) has 50.00 %; it is ahead of {EXPLICIT[0]}" in headline
    (headline,) = downstream_lead([found[0], rival], runs)
    assert f"{first} (implicit) has 60.00 %" in headline


def test_a_seed_that_was_tested_further_leaves_no_other_one_out(runs):
    first, second = IMPLICIT
    seeds, rival = [searched(first, 8, 0.4), searched(second, 8, 0.6)], explicit(EXPLICIT[0], 0.45)
    told = f"{first} (implicit) has 50.00 % (mean of 2 seeds, 40.00 % to 60.00 %); it is level"
    (headline,) = downstream_lead([*seeds, rival], runs)
    assert told in headline
    further = searched(first, 32, 0.41)
    headline, said = downstream_lead([further, *seeds, rival], runs)
    assert told in headline and said == STEPS_LEFT_OUT
    headline, said = downstream_lead([further, seeds[1], rival], runs)
    assert f"{first} (implicit) has 41.00 %; it loses to" in headline and said == STEPS_LEFT_OUT


def test_a_patience_that_follows_from_the_steps_makes_no_other_search(runs):
    window = {"window": 8, "patience": 4}
    few = searched(IMPLICIT[0], 2, 0.5, asked={**window, "patience": 2})
    more = searched(IMPLICIT[0], 8, 0.4, asked=window)
    left_out = [
        dataclasses.replace(each, entry=each.entry.replace(patience=None)) for each in (few, more)
    ]
    assert [len(group) for group in swept(left_out)] == [2]
    assert len(downstream_lead(left_out, runs)) == 2
    assert swept([few, more]) == [] and len(downstream_lead([few, more], runs)) == 1


@pytest.fixture
def styles(runs):
    with figures.theme():
        yield figures.run_styles(list(runs.values()))


def points(axis, colour):
    """Return the points of the lines of a colour that have markers."""
    return [
        np.asarray(line.get_xydata()).tolist()
        for line in axis.lines
        if to_hex(line.get_color()) == colour and line.get_marker() == "o"
    ]


def bars(axis, colour):
    """Return the lower and the upper end of each bar of a colour, one after another."""
    return [
        float(height)
        for drawn in axis.collections
        if to_hex(drawn.get_color()[0]) == colour
        for bar in drawn.get_segments()
        if len(bar)  # one that is not known has no ends
        for height in bar[:, 1]
    ]


def levels(axis):
    """Return the heights of the level lines that go all through an axis."""
    return [line.get_ydata()[0] for line in axis.lines if list(line.get_xdata()) == [0, 1]]


def test_accuracy_is_drawn_against_the_self_iterations_with_the_outputs(styles):
    model, rival = IMPLICIT[0], EXPLICIT[0]
    steps = {32: (0.5, 0.01), 1: (0.3, None), 4: (0.4, 0.02)}
    found = [searched(model, each, *score, limit=200) for each, score in steps.items()]
    found += [searched(IMPLICIT[1], 8, 0.2, limit=200), explicit(rival, 0.45, 0.03, limit=200)]
    (group,) = swept(found)
    assert [each.label for each in group] == [model] * 3 + [rival]
    figure = accuracy_by_self_iterations(group, styles)
    (axis,) = figure.axes
    assert points(axis, styles[model].colour) == [[[2, 0.3], [5, 0.4], [33, 0.5]]]
    assert bars(axis, styles[model].colour) == pytest.approx([0.38, 0.42, 0.49, 0.51])
    assert levels(axis) == [0.45]
    assert bars(axis, styles[rival].colour) == pytest.approx([0.42, 0.48])
    assert axis.get_xscale() == "log" and axis.get_xticks().tolist() == [2, 5, 33]
    assert axis.get_xlabel() == "allowed self-iterations, the output's included"
    assert axis.get_ylabel() == "mean of the seven accuracies"
    text = " ".join(each.get_text() for each in axis.texts)
    assert f"{model}  50.00%" in text and f"{rival}  45.00%" in text and IMPLICIT[1] not in text


def test_the_title_tells_ways_of_testing_apart(styles):
    ways = ({}, {"limit": 1200}, {"max_length": 512}, {"tasks": "others", "max_length": None})
    found = [searched(IMPLICIT[0], n, 0.5, **way) for way in ways for n in (1, 2)]
    shown = [accuracy_by_self_iterations(group, styles).axes[0] for group in swept(found)]
    assert [axis.get_title(loc="left").replace("\n", " ") for axis in shown] == [
        "Downstream tasks, seven, max_length 2,048 (bars: standard error)",
        "Downstream tasks, seven, the first 1,200 items of each, max_length 2,048 "
        "(bars: standard error)",
        "Downstream tasks, seven, max_length 512 (bars: standard error)",
        "Downstream tasks, others (bars: standard error)",
    ]


def test_without_the_average_it_is_the_mean_of_what_all_points_have(styles):
    error = {"LAMBADA": 0.03, "PIQA": 0.04}
    some = {"row": {"LAMBADA": 0.2, "PIQA": 0.6}, "standard_errors": error}
    more = {"row": {"LAMBADA": 0.4, "PIQA": 0.6, "ARC-E": 0.9}, "standard_errors": error}
    found = [searched(IMPLICIT[0], 1, None, **more), searched(IMPLICIT[0], 2, None, **some)]
    lacking = {"row": {"LAMBADA": 0.2, "PIQA": None, "average": None}, "standard_errors": error}
    rivals = [explicit(EXPLICIT[0], None, **each) for each in (lacking, some)]
    (group,) = swept([*found, *rivals])
    assert group == [*found, rivals[1]]
    axis = accuracy_by_self_iterations(group, styles).axes[0]
    colour = styles[IMPLICIT[0]].colour
    assert points(axis, colour) == [[[2, 0.5], [3, 0.4]]]
    assert levels(axis) == [0.4]
    assert bars(axis, colour) == pytest.approx([0.475, 0.525, 0.375, 0.425])
    assert axis.get_ylabel() == "accuracy, mean of LAMBADA and PIQA"


def test_what_was_tested_otherwise_or_differs_in_more_is_on_no_line(styles):
    model = IMPLICIT[0]
    found = [searched(model, 1, 0.3), searched(model, 2, 0.4)]
    stricter = [searched(model, n, 0.5, asked={"tolerance": 0.01}) for n in (4, 8)]
    apart = searched(model, 16, 0.6, asked={"damping": 0.5})
    again = dataclasses.replace(found[0], name="again")
    other = [explicit(EXPLICIT[0], 0.4, limit=8), explicit("elsewhere", 0.35)]
    (group,) = swept([*found, *stricter, apart, again, *other])
    axis = accuracy_by_self_iterations(group, styles).axes[0]
    assert points(axis, styles[model].colour) == [
        [[2, 0.3], [3, 0.4]],
        [[5, 0.5], [9, 0.5]],
    ]
    assert levels(axis) == [0.35]
    text = " ".join(each.get_text() for each in axis.texts)
    for name in (found[0].name, stricter[0].name, "elsewhere"):
        assert f"{name}  " in text
    halves = [searched(model, n, 0.5, limit=limit) for n in (1, 2) for limit in (4, None)]
    assert [len(each) for each in swept(halves)] == [2, 2]


def test_nothing_is_drawn_where_no_model_has_two_such_benchmarks(runs):
    few = [searched(name, n, 0.3) for n, name in enumerate(IMPLICIT, start=1)]
    unknown = [searched(IMPLICIT[0], n, None) for n in (1, 2)]
    for found in ([], few, [*few, explicit(EXPLICIT[0], 0.4)], unknown):
        assert swept(found) == []


def test_the_section_shows_it_under_a_name_for_each_way_of_testing(runs, monkeypatch):
    monkeypatch.setattr("implicit_models.reporting.illustration.svg_of", lambda *_: "<svg></svg>")
    rows = {"num_items": {}, "num_parameters": 1, "published": []}
    ways = ({"limit": 4}, {"tasks": "others"}, {"limit": None})
    found = [searched(IMPLICIT[0], n, 0.5, **way, **rows) for way in ways for n in (1, 2)]
    section = BenchmarkResults.section(found, list(runs.values()))
    shown: list[Illustration] = [*section.illustrations]
    assert [each.name for each in shown] == [
        "seven_accuracy_by_self_iterations",
        "others_accuracy_by_self_iterations",
        "seven_accuracy_by_self_iterations_2",
    ]
    assert [list(each.runs) for each in shown] == [
        [each.name for each in found[start : start + 2]] for start in (0, 2, 4)
    ]
    assert BenchmarkResults.section(found[:1], list(runs.values())).illustrations == []
