"""Figures of the notebooks: what is drawn is what the results say."""

import dataclasses

import numpy as np
import pytest
from matplotlib.colors import to_hex

from implicit_models.problems.word_problem.report import seed_figures
from implicit_models.reporting import figures
from implicit_models.reporting.figures.cost import score_by_cost
from implicit_models.reporting.figures.jacobian import compared_entries, transition_jacobians
from implicit_models.reporting.figures.share import (
    by_share,
    perplexity_by_bounded_share,
    share_sentences,
)
from implicit_models.reporting.results import RunResults

IMPLICIT = "a5_implicit_mamba2"


@pytest.fixture(autouse=True)
def theme():
    with figures.theme():
        yield


@pytest.fixture
def styles(runs):
    return figures.run_styles(runs)


def solid(axis, style):
    """Return the data of the lines of a model's colour that are lines, not points."""
    return [
        line.get_xydata()
        for line in axis.lines
        if to_hex(line.get_color()) == style.colour and line.get_linestyle() != "None"
    ]


def test_a_band_reaches_from_the_lowest_seed_to_the_highest(runs, styles):
    figure = seed_figures.accuracy_of_seeds(runs, styles)
    (axis,) = figure.axes
    seeds = [run for run in runs if run.name.startswith(IMPLICIT)]
    (line,) = solid(axis, styles[IMPLICIT])
    expected = [np.mean([run.accuracy_at_end(n) for run in seeds]) for n in seeds[0].lengths]
    assert line[:, 0].tolist() == seeds[0].lengths
    assert line[:, 1] == pytest.approx(expected)
    (band,) = axis.collections  # of the only model with several seeds
    heights = band.get_paths()[0].vertices[:, 1]
    last = [run.accuracy_at_end(128) for run in seeds]
    assert np.isclose(heights, min(last)).any() and np.isclose(heights, max(last)).any()
    assert heights.min() >= min(run.accuracy_at_end(n) for run in seeds for n in run.lengths) - 1e-9
    assert len(solid(axis, styles["a5_lstm"])) == 1
    text = " ".join(label.get_text() for label in axis.texts)
    assert "a5_implicit_mamba2 (3 seeds)  " in text and "a5_lstm (1 seed)  " in text
    assert "(band: from the lowest seed to the highest)" in axis.get_title(loc="left")


def test_single_seeds_have_no_band(runs, styles):
    figure = seed_figures.accuracy_of_seeds([runs[0], runs[-1]], styles)
    assert not figure.axes[0].collections
    assert figure.axes[0].get_title(loc="left") == "Accuracy by length"


def test_a_model_follows_what_comes_before_its_first_wrong_position(runs):
    run = runs[0]
    rows = [{"length": 64, "position": p, "accuracy": 1.0 - (p > 40)} for p in range(1, 65)]
    rows += [{"length": 16, "position": p, "accuracy": 1.0} for p in range(1, 17)]
    evaluation = {**run.evaluation, "accuracy": {"16": 1.0, "64": 0.6, "128": 0.3}}
    counts = {"16": 256, "64": 256, "128": 4}  # too few for an accuracy at a position
    evaluation["num_sequences"] = counts
    made = dataclasses.replace(run, evaluation=evaluation, position_rows=rows)
    assert made.tracked_at_most == 64 and made.tracked_length(0.9) == 40
    perfect = [row | {"accuracy": 1.0} for row in rows]
    assert dataclasses.replace(made, position_rows=perfect).tracked_length(0.9) == 64


def test_layers_are_drawn_at_the_tokens_that_they_follow(runs, styles):
    figure = seed_figures.layers_by_length(runs, styles)
    (axis,) = figure.axes
    explicit = [run for run in runs if run.kind == "explicit"]
    (line,) = solid(axis, styles["a5_mamba2_1_layer"])
    tracked = {run.num_layers: run.tracked_length(0.9) for run in explicit}
    assert line.tolist() == [[tracked[1], 1], [tracked[4], 4]]
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == [
        "implicit mamba2: 3 runs, trained up to 16",
        "explicit mamba2: 2 runs, trained up to 16",
        "recurrent lstm: 1 run, trained up to 16",
    ]
    arrows = [text for text in axis.texts if getattr(text, "arrow_patch", None)]
    assert len(arrows) == sum(run.tracked_length(0.9) == 128 for run in runs) < len(runs)


def test_models_that_differ_in_more_than_layers_have_lines_of_their_own(runs, styles):
    first, second = (run for run in runs if run.kind == "explicit")
    other = second.entry.replace(model=second.entry.model.replace(d_model=16))
    figure = seed_figures.layers_by_length(
        [first, dataclasses.replace(second, entry=other)], styles
    )
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    what = "explicit mamba2: 1 run, trained up to 16"
    assert names == [f"{what}, as {run.name}" for run in (first, second)]


def test_runs_that_follow_as_many_tokens_do_not_hide_one_another(runs, styles):
    first = runs[0]
    again = [
        dataclasses.replace(first, name=f"{first.name}_{n}", training_length=length)
        for n, length in enumerate((16, 16, 20))
    ]
    shown = [first, *again]
    (axis,) = seed_figures.layers_by_length(
        shown, dict.fromkeys((run.name for run in shown), styles[first.name])
    ).axes
    places = [line.get_xdata()[0] for line in axis.lines if line.get_marker() == "o"]
    length = first.tracked_length(0.9)
    assert len(set(places)) == 4 and places[0] == length
    assert all(abs(place / length - 1) < 0.15 for place in places)
    assert axis.get_xticks()[-1] == first.tracked_at_most == 128
    (label,) = (text.get_text() for text in axis.figure.legends[0].get_texts())
    assert label == "implicit mamba2: 4 runs, trained up to 16 or 20"


def test_all_seeds_are_thin_and_the_best_is_thick(runs, styles):
    implicit = [run for run in runs if run.kind == "implicit"]
    figure = seed_figures.accuracy_by_iterations(runs, styles)
    widths = [
        line.get_linewidth()
        for line in figure.axes[0].lines
        if to_hex(line.get_color()) == styles[IMPLICIT].colour
    ]
    assert sorted(widths) == [1.0] * len(implicit) + [2.4]


def test_titles_say_whether_there_are_seeds_and_whether_anything_was_swept(runs, styles):
    def title(*shown):
        return seed_figures.accuracy_by_iterations(shown, styles).axes[0].get_title(loc="left")

    assert title(*runs) == "Sequences of 64 tokens: the best seed of each model on them, and all"
    assert title(runs[0]) == "Sequences of 64 tokens: each model"
    assert title(runs[-1]) == "No model here was swept"


def test_scores_stand_at_their_costs(runs, styles):
    scores = {run.name: index / 10 for index, run in enumerate(runs)}
    known = [
        dataclasses.replace(
            run, training={"train": {"training_flops": 10.0 + n, "train_seconds": 1.0 + n}}
        )
        for n, run in enumerate(runs[:-1])
    ]
    unknown = dataclasses.replace(runs[-1], training={"train": {"train_seconds": 9.0}})
    flops, seconds = score_by_cost([*known, unknown], styles, scores, "score").axes

    def points(axis):
        drawn = (line for line in axis.lines if line.get_marker() == "o")
        return sorted(tuple(point) for line in drawn for point in line.get_xydata())

    assert points(flops) == [(10.0 + n, n / 10) for n in range(len(known))]
    assert points(seconds) == [*((1.0 + n, n / 10) for n in range(len(known))), (9.0, 0.5)]
    assert "chance 1.7%" in [text.get_text() for text in flops.texts]


@pytest.fixture
def shared(runs, monkeypatch):
    """Runs of two shares, one of them with two seeds, and two other models, with perplexities."""
    implicit = [run for run in runs if run.kind == "implicit"]
    found = [
        dataclasses.replace(run, training={"train": {"num_training_steps": steps}})
        for run, steps in zip(implicit, (400, 400, 250), strict=True)
    ]
    assert {run.phase_change for run in found} == {200}
    found += [runs[-1], runs[-2]]
    perplexities = dict(zip((run.name for run in found), (2.0, 4.0, 9.0, 5.0, None), strict=True))
    known = property(lambda run: perplexities[run.name])
    monkeypatch.setattr(RunResults, "test_perplexity", known)
    return found


def test_the_line_of_shares_goes_through_their_means_and_others_are_level(shared, styles):
    (axis,) = perplexity_by_bounded_share(shared, styles).axes
    (line,) = solid(axis, styles[shared[0].name])
    assert line == pytest.approx(np.array([[0.5, 3.0], [0.8, 9.0]]))
    points = [each for each in axis.lines if each.get_marker() == "o"]
    assert sum(len(each.get_xdata()) for each in points) == 3
    (level,) = solid(axis, styles["a5_lstm"])
    assert level[:, 1].tolist() == [5.0, 5.0]
    ends = sorted(text.get_text() for text in axis.texts)
    assert ends == ["a5_implicit_mamba2  9", "a5_lstm  5"]
    assert axis.get_ylabel() == "test perplexity"


def test_it_is_said_whether_shares_differ_by_more_than_seeds(shared, monkeypatch):
    (sentence,) = share_sentences(shared)
    assert sentence == (
        "a5_implicit_mamba2: perplexity is lowest with 50 % of the steps bounded "
        "(50 % 3.000 (mean of 2 seeds, 2.000 to 4.000), 80 % 9.000); "
        "with one seed of a share it may be the seed."
    )
    again = dataclasses.replace(shared[2], name="again")
    for other, verdict in ((9.01, "80 % worse by more"), (20.0, "80 % within what")):
        values = {shared[0].name: 3.0, shared[1].name: 3.01, shared[2].name: 9.0, "again": other}
        known = property(lambda run, values=values: values[run.name])
        monkeypatch.setattr(RunResults, "test_perplexity", known)
        (sentence,) = share_sentences([*shared[:3], again])
        assert verdict in sentence and "(95 % intervals by the seeds)" in sentence
    assert share_sentences(shared[:2]) == []


def test_models_of_other_self_iterations_are_no_seeds_of_one(shared):
    first, second, *_ = shared
    fewer = second.entry.replace(free=second.entry.free.replace(max_steps=4))
    found = by_share([first, dataclasses.replace(second, entry=fewer)])
    assert found == {first.name: {0.5: [2.0]}, second.name: {0.5: [4.0]}}


def test_a_jacobian_tells_what_is_off_its_diagonal():
    off = np.array([[1.0, 0.0], [0.5, 1.0]])
    shares = {"implicit": 0.25 / 2.25, "explicit": 0.0}
    figure = transition_jacobians({"implicit": off, "explicit": np.eye(2)}, shares)
    titles = [axis.get_title(loc="left") for axis in figure.axes]
    assert "implicit\noff the diagonal: 1.1e-01\nof the squared norm" in titles
    assert "explicit\noff the diagonal: nothing" in titles
    pictures = [image.get_array() for axis in figure.axes for image in axis.images]
    assert pictures[0].tolist() == [[1.0, 1e-8], [0.5, 1.0]]


def test_two_jacobians_are_compared_entry_by_entry():
    first = np.array([[1.0, -0.2], [0.0, 4.0]])
    (axis,) = compared_entries(first, first + np.array([[0.5, -0.1], [0.0, 0.0]])).axes
    assert axis.get_title(loc="left") == (
        "The same Jacobian in two ways\n"
        "(off the diagonal at most 5.0e-01 of the largest entry apart)"
    )
    points = {line.get_label(): line.get_xydata() for line in axis.lines}
    assert points["on it"].tolist() == [[1.0, 1.5], [4.0, 4.0]]
    assert points["off the diagonal"] == pytest.approx(np.array([[0.2, 0.3]]))
    assert {axis.get_xscale(), axis.get_yscale()} == {"log"}
