"""Figures on streams of bAbI's tasks."""

import dataclasses

import numpy as np
import pytest
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from implicit_models.problems.catbabi.report import figures as drawn
from implicit_models.problems.catbabi.report import search_figures
from implicit_models.reporting import figures
from stages.entries import MatchedParameters
from tests.problems.catbabi.report.synthetic import (
    DISTANCES,
    EXPLICIT,
    IMPLICIT,
    LSTM,
    NUM_WORDS,
    TASKS,
    WIDE,
    accuracy,
    changed,
    read_catbabi_results,
    write_catbabi_results,
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("synthetic")
    write_catbabi_results(root)
    return read_catbabi_results(root)


@pytest.fixture(scope="module")
def styles(runs):
    return figures.run_styles(list(runs.values()))


def bars_of(axis) -> list[Rectangle]:
    return [bar for container in axis.containers for bar in container.patches]


def labels_of(figure) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def rows_of(axis) -> list[str]:
    return [label.get_text() for label in axis.get_yticklabels()]


def markers_of(axis) -> list[Line2D]:
    return [line for line in axis.lines if line.get_marker() in ("o", "s", "^")]


@pytest.mark.parametrize("narrow", [False, True])
def test_every_task_has_a_marker_of_every_model_and_none_hides_another(runs, styles, narrow):
    with figures.theme(narrow=narrow):
        figure = drawn.accuracy_by_task(list(runs.values()), styles)
    (axis,) = figure.axes
    names = [IMPLICIT[0], WIDE, *EXPLICIT, LSTM]
    assert [line.get_color() for line in markers_of(axis)] == [styles[n].colour for n in names]
    assert [line.get_marker() for line in markers_of(axis)] == [*"oo", *"sss", "^"]
    assert labels_of(figure) == [f"{IMPLICIT[0]} (mean of 3 seeds)", *names[1:]]
    for line, name in zip(markers_of(axis)[1:], names[1:], strict=True):
        np.testing.assert_allclose(line.get_xdata(), [accuracy(name, task) for task in TASKS])
    heights = np.concatenate([line.get_ydata() for line in markers_of(axis)])
    assert len(set(heights.round(6))) == len(heights) == 6 * 20
    assert (np.abs(heights - heights.round()) < 0.5).all()
    assert rows_of(axis)[0] == "1 single supporting fact" and len(rows_of(axis)) == 20
    assert axis.get_ylim()[0] > axis.get_ylim()[1]  # the first at the top
    assert figure.get_size_inches() == pytest.approx((4.3 if narrow else 8.5, 1.7 + 0.32 * 20))


def test_seeds_are_dots_and_single_ones_have_intervals_within_the_axis(runs, styles):
    shown = [runs[name] for name in (*IMPLICIT, EXPLICIT[0])]
    (axis,) = drawn.accuracy_by_task(shown, styles).axes
    dots = [line for line in axis.lines if line.get_marker() == "."]
    np.testing.assert_allclose(dots[1].get_xdata(), [0.896, 0.9, 0.904])
    assert len(dots) == 20 and {line.get_color() for line in dots} == {styles[IMPLICIT[0]].colour}
    lines = [line.get_xdata() for line in axis.lines if line.get_linestyle() == "-"]
    assert len(lines) == 20
    assert lines[1] == pytest.approx([0.5 - 2 * (0.25 / 1000) ** 0.5, 0.5 + 2 * 0.0158], abs=1e-4)
    assert axis.get_title() == (
        "Accuracy by task (faint dots: seeds;\n"
        "lines: 95 % intervals of single seeds, by the questions)"
    )


def test_models_of_one_colour_and_kind_differ_in_their_markers(runs):
    first = runs[EXPLICIT[1]]
    many = [dataclasses.replace(first, name=f"of_{n}", group=f"of_{n}") for n in range(16)]
    (axis,) = drawn.accuracy_by_task(many, figures.run_styles(many)).axes
    looks = [(line.get_color(), line.get_fillstyle()) for line in markers_of(axis)]
    assert len(looks) == len(set(looks)) == 16


def test_a_task_that_is_not_known_is_left_out(runs, styles):
    fewer = {"1": 0.5, "3": 0.25}
    shown = [changed(runs[WIDE], accuracy_by_task=fewer), runs[EXPLICIT[1]]]
    wide, explicit = markers_of(drawn.accuracy_by_task(shown, styles).axes[0])
    np.testing.assert_allclose(wide.get_xydata(), [[0.5, -0.175], [0.25, 1.825]])
    assert len(explicit.get_xdata()) == 20


def test_models_with_the_training_flops_of_a_run_have_a_line_of_their_own(runs, styles):
    deep = runs[EXPLICIT[2]]
    match = {"run": WIDE, "vary": "steps"}
    entry = MatchedParameters(**deep.entry.model_dump(), match=match)
    longer = dataclasses.replace(runs[EXPLICIT[1]], name="longer", group="longer", entry=entry)
    shown = [runs[WIDE], *(runs[name] for name in EXPLICIT), longer]
    (axis,) = drawn.accuracy_by_layers(shown, figures.run_styles(shown)).axes
    text = " ".join(label.get_text() for label in axis.texts)
    assert "explicit, training FLOPs of a run  " in text
    lines = [line.get_xdata() for line in axis.lines if line.get_linewidth() == 2]
    assert [1, 2, 4] in [list(layers) for layers in lines] and len(lines) == 3


def test_accuracy_by_layers_has_a_line_for_each_kind(runs, styles):
    figure = drawn.accuracy_by_layers(list(runs.values()), styles)
    (axis,) = figure.axes
    lines = [
        line for line in axis.lines if line.get_linestyle() == "-" and line.get_linewidth() == 2
    ]
    layers = [list(line.get_xdata()) for line in lines]
    assert layers == [[1, 2], [1, 2, 4], [1]]
    heights = lines[1].get_ydata()
    np.testing.assert_allclose(heights, [runs[name].evaluation["accuracy"] for name in EXPLICIT])
    text = " ".join(label.get_text() for label in axis.texts)
    assert "implicit  93.7%" in text and "explicit  87.0%" in text and "recurrent  85.6%" in text
    assert "most frequent answers 34.0%" in text
    assert axis.get_xticks().tolist() == [1, 2, 4]


def test_accuracy_by_distance_draws_every_model(runs, styles):
    shown = [*runs.values()]
    shown[-1] = changed(
        shown[-1], accuracy_by_distance={">8": {"accuracy": 0.5, "num_questions": 9}}
    )
    figure = drawn.accuracy_by_distance(shown, styles)
    (axis,) = figure.axes
    curves = [container.lines[0] for container in axis.containers]
    assert [list(curve.get_xdata()) for curve in curves] == [[0, 1, 2, 3, 4]] * 5 + [[4]]
    found = runs[WIDE].evaluation["accuracy_by_distance"]
    np.testing.assert_allclose(
        np.array(curves[1].get_ydata(), dtype=float),
        [found[distance]["accuracy"] for distance in DISTANCES],
    )
    assert [label.get_text() for label in axis.get_xticklabels()] == list(DISTANCES)


def test_self_iterations_by_task_draw_the_implicit_models(runs, styles):
    shown = [runs[name] for name in (*IMPLICIT, WIDE)]
    shown[-1] = changed(shown[-1], self_iterations_by_task={"1": 5.0, "2": None, "20": 7.5})
    figure = search_figures.self_iterations_by_task(shown, styles)
    widths = [bar.get_width() for bar in bars_of(figure.axes[0])]
    np.testing.assert_allclose(widths[:20], [5.0 + task / 4 for task in TASKS])
    assert widths[20] == 5.0 and widths[39] == 7.5 and np.isnan(widths[21:39]).all()


def test_accuracy_by_compute_draws_both_sweeps_and_chance(runs, styles):
    shown = [runs[WIDE], runs[IMPLICIT[0]]]
    figure = search_figures.accuracy_by_compute(shown, styles)
    iterations, tolerances, residuals, used = figure.axes
    np.testing.assert_array_equal(iterations.lines[0].get_xdata(), [1, 4, 16])
    np.testing.assert_array_equal(iterations.lines[0].get_ydata(), [0.25, 0.5, 0.625])
    np.testing.assert_array_equal(residuals.lines[0].get_ydata(), [1, 0.25, 0.0625])
    np.testing.assert_array_equal(tolerances.lines[1].get_ydata(), [0.375, 0.75])
    np.testing.assert_array_equal(used.lines[1].get_ydata(), [7.5, 7.5])
    assert iterations.get_title().endswith("stories cut to 200 tokens")
    assert {"most frequent answers 34.0%"} == {text.get_text() for text in iterations.texts}


@pytest.mark.parametrize("narrow", [False, True])
def test_the_words_with_the_most_and_the_fewest_self_iterations(runs, styles, narrow):
    shown = [runs[name] for name in (*IMPLICIT, WIDE)]
    with figures.theme(narrow=narrow):
        figure = search_figures.self_iterations_by_word(shown, styles)
    most, fewest = figure.axes
    assert rows_of(most) == [f"word{n}" for n in range(NUM_WORDS - 1, NUM_WORDS - 13, -1)]
    # word0 has 49 tokens, one too few
    assert rows_of(fewest) == [f"word{n}" for n in range(1, 13)]
    widths = [bar.get_width() for bar in bars_of(fewest)]
    np.testing.assert_allclose(widths, [3.0 + 0.25 * n for n in range(1, 13)])
    assert [text.get_text() for text in fewest.texts][:2] == ["3.25", "3.5"]
    columns = {axis.get_position().x0 for axis in figure.axes}
    assert len(columns) == (1 if narrow else 2)


def test_no_word_is_shown_twice(runs):
    words = {f"w{n}": {"mean": float(n), "num_tokens": 50} for n in range(5)}
    run = changed(runs[WIDE], self_iterations_by_word=words | {"$": {"mean": 9, "num_tokens": 3}})
    model = search_figures.model_of_words([run])
    most, fewest = search_figures.most_and_least(model)
    assert list(most) == ["w4", "w3", "w2"] and list(fewest) == ["w0", "w1"]


def test_words_that_one_seed_does_not_know_are_left_out(runs):
    seeds = [
        changed(runs[name], self_iterations_by_word=words)
        for name, words in zip(
            IMPLICIT[:2],
            (
                {"a": {"mean": 2.0, "num_tokens": 60}, "b": {"mean": 3.0, "num_tokens": 60}},
                {"a": {"mean": 4.0, "num_tokens": 60}, "c": {"mean": 3.0, "num_tokens": 60}},
            ),
            strict=True,
        )
    ]
    model = search_figures.model_of_words(seeds)
    most, fewest = search_figures.most_and_least(model)
    assert (most, fewest) == ({"a": 3.0}, {})


def test_without_words_nothing_is_drawn(runs, styles):
    run = changed(runs[WIDE], self_iterations_by_word=None)
    assert search_figures.model_of_words([run]) is None
    assert search_figures.self_iterations_by_word([run], styles).axes == []
