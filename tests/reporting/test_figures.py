import dataclasses
import io
import itertools
import re

import matplotlib as mpl
import numpy as np
import pytest

from implicit_models.problems.word_problem.report import figures as word_problem
from implicit_models.problems.word_problem.report import seed_figures
from implicit_models.problems.word_problem.report.figures import length_title
from implicit_models.reporting import figures
from implicit_models.reporting.figures.axes import spread
from implicit_models.reporting.figures.cost import score_by_cost
from implicit_models.reporting.illustration import illustrate


def test_many_names_below_a_narrow_figure_leave_it_its_room(runs):
    many = [dataclasses.replace(runs[-1], name=f"run_{n}") for n in range(30)]
    heights = []
    for shown in (many[:12], many):
        styles = figures.run_styles(shown)
        with figures.theme(narrow=True):
            figure = word_problem.accuracy_by_length(shown, styles)
            figure.draw_without_rendering()
        heights.append(figure.axes[0].get_window_extent().height)
    assert heights[1] >= heights[0] > 100


def test_figures_for_a_narrow_page_have_names_below_and_titles_in_lines(runs):
    styles = figures.run_styles(runs)
    implicit = [run for run in runs if run.kind == "implicit"]
    with figures.theme(narrow=True):
        lengths = word_problem.accuracy_by_length(runs, styles)
        compute = word_problem.accuracy_by_compute(implicit, styles)
        training = figures.training_curves(runs, styles)
    for figure in (lengths, compute, training):
        assert figure.get_figwidth() == 4.3
        for axis in figure.axes:
            lines = axis.get_title(loc="left").splitlines()
            assert all(len(line) <= 36 for line in lines)
    labels = [text.get_text() for text in lengths.legends[0].get_texts()]
    accuracies = [run.evaluation["accuracy_last_10"]["128"] for run in runs]
    assert labels == [f"{r.name}  {a:.1%}" for r, a in zip(runs, accuracies, strict=True)]
    columns = {axis.get_position().x0 for axis in compute.axes}
    assert len(compute.axes) == 4 and len(columns) == 1
    assert word_problem.accuracy_by_length(runs, styles).get_figwidth() == 8.5


def test_the_cap_of_a_search_is_marked_where_curves_come_to_it(runs):
    axis = figures.training_curves(runs, figures.run_styles(runs)).axes[2]
    assert "16: the most allowed" in [text.get_text() for text in axis.texts]
    axes = figures.training_curves(runs[-1:], figures.run_styles(runs)).axes
    assert not [text for text in axes[2].texts if "allowed" in text.get_text()]
    assert axes[1].get_title().endswith("(sequences grow, to 16 tokens)")


def test_training_curves_hold_the_history_and_mark_the_phase_change(runs):
    axes = figures.training_curves(runs, figures.run_styles(runs)).axes
    lines = {line.get_label(): line for line in axes[0].lines}
    assert {run.name for run in runs} <= set(lines)
    np.testing.assert_array_equal(lines["a5_lstm"].get_ydata(), runs[-1].history["loss"].values)
    assert any(list(line.get_xdata()) == [200, 200] for line in axes[0].lines)


def box_of(figure, artist):
    figure.draw_without_rendering()
    return artist.get_window_extent()


def test_a_phase_change_is_named_within_the_axis_wherever_it_is(runs):
    for change in (200, 900):
        late = [dataclasses.replace(run, phase_change=change) for run in runs[:1]]
        with figures.theme():
            figure = figures.training_curves(late, figures.run_styles(late))
        axis = figure.axes[2]
        (text,) = (t for t in axis.texts if t.get_text() == f"free phase begins at step {change}")
        box, inside = box_of(figure, text), axis.get_window_extent()
        assert box.x0 > inside.x0 and box.x1 < inside.x1


@pytest.mark.parametrize("factor", [1.001, 1.05, 2, 4, 9, 30, 90])
def test_a_logarithmic_axis_has_labels_that_do_not_overlap(runs, factor):
    scores = {run.name: 0.5 for run in runs}
    costs = np.geomspace(3e12, 3e12 * factor, len(runs))
    near = [
        dataclasses.replace(run, training={"t": {"training_flops": cost, "train_seconds": cost}})
        for run, cost in zip(runs, costs, strict=True)
    ]
    for narrow in (False, True):
        with figures.theme(narrow=narrow):
            figure = score_by_cost(near, figures.run_styles(runs), scores, "score")
            figure.draw_without_rendering()
        for axis in figure.axes:
            low, high = axis.get_xlim()
            ticks = [*axis.xaxis.get_major_ticks(), *axis.xaxis.get_minor_ticks()]
            labels = [tick.label1 for tick in ticks if low <= tick.get_loc() <= high]
            boxes = [each.get_window_extent() for each in labels if each.get_text()]
            boxes.sort(key=lambda box: box.x0)
            assert len(boxes) >= 2
            told = [each.get_text() for each in labels]
            assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes)), told
            assert len({*told} - {""}) == len(boxes)


def test_accuracy_by_length_draws_every_run_the_training_length_and_chance(runs):
    axis = word_problem.accuracy_by_length(runs, figures.run_styles(runs)).axes[0]
    heights = [np.round(line.get_ydata(), 12).tolist() for line in axis.lines]
    for run in runs:
        values = run.evaluation["accuracy_last_10"].values()
        assert np.round(list(values), 12).tolist() in heights
    text = " ".join(label.get_text() for label in axis.texts)
    assert "trained up to 16" in text and "chance 1.7%" in text
    assert all(run.name in text for run in runs)


def with_chance(run, at_end):
    known = {"accuracy": dict.fromkeys(at_end, 0.5), "accuracy_last_10": at_end}
    return dataclasses.replace(run, evaluation=run.evaluation | {"chance": known})


def dashed(axis):
    return [line.get_ydata() for line in axis.lines if line.get_linestyle() == "--"]


def test_chance_is_drawn_at_each_length_and_of_what_is_drawn(runs):
    at_end = {"16": 0.25, "32": 0.125, "64": 0.06, "128": 0.03}
    shown = [with_chance(run, at_end) for run in runs]
    styles = figures.run_styles(shown)
    for draw in (word_problem.accuracy_by_length, seed_figures.accuracy_of_seeds):
        axis = draw(shown, styles).axes[0]
        assert list(at_end.values()) in [list(heights) for heights in dashed(axis)]
        assert "chance 3.0% to 25.0%" in [text.get_text() for text in axis.texts]
    axis = word_problem.accuracy_by_position(shown, styles).axes[0]
    assert 0.03 in [heights[0] for heights in dashed(axis)]
    assert "chance, last 10 tokens: 3.0%" in [text.get_text() for text in axis.texts]
    swept = [run for run in shown if run.test_time_compute is not None]
    for axis in (
        word_problem.accuracy_by_compute(swept, styles).axes[0],
        seed_figures.accuracy_by_iterations(swept, styles).axes[0],
    ):
        assert "chance 6.0%" in [text.get_text() for text in axis.texts]  # at 64 tokens
    elsewhere = [with_chance(run, {"16": 0.25, "32": 0.125}) for run in swept]
    axis = word_problem.accuracy_by_compute(elsewhere, styles).axes[0]
    assert not [text for text in axis.texts if "chance" in text.get_text()]


@pytest.mark.parametrize("narrow", [False, True])
def test_what_marks_are_stands_beside_the_axis_and_not_over_lines(runs, narrow):
    styles = figures.run_styles(runs)
    shown = [*runs[:-1], dataclasses.replace(runs[-1], training_length=48)]
    swept = [run for run in runs if run.test_time_compute is not None]
    with figures.theme(narrow=narrow):
        lengths = word_problem.accuracy_by_length(shown, styles)
        compute = word_problem.accuracy_by_compute(swept, styles)
    for figure in (lengths, compute):
        axis = figure.axes[0]
        inside = axis.get_window_extent()
        marks = [t for t in axis.texts if t.get_text().startswith(("chance", "trained", "16"))]
        assert len(marks) == (3 if figure is lengths else 1)
        for mark in marks:
            assert mark.get_bbox_patch() is None
            box = box_of(figure, mark)
            assert box.x0 >= inside.x1 or box.y0 >= inside.y1
            assert figure.bbox.contains(box.x0, box.y0) and figure.bbox.contains(box.x1, box.y1)
    title = box_of(lengths, lengths.axes[0]._left_title)
    (above,) = (t for t in lengths.axes[0].texts if t.get_text() == "trained up to 48")
    assert title.y0 >= box_of(lengths, above).y1


def test_the_title_holds_for_runs_of_different_lengths(runs):
    def title(*shown):
        return length_title(shown).replace("\n", " ")

    first, last = runs[0], runs[-1]
    best = {run.name: f"{run.evaluation['accuracy_last_10']['128']:.1%}" for run in runs}
    assert title(first, last) == (
        "At 128 tokens, 8x the training length, "
        f"the best implicit model has {best[first.name]}, "
        f"the best recurrent model has {best[last.name]}"
    )
    seeds = [run.evaluation["accuracy_last_10"]["128"] for run in runs[:3]]
    mean = f"the best implicit model has {sum(seeds) / 3:.1%} (mean of 3 seeds), the best expl"
    assert mean in title(*runs)
    longer = dataclasses.replace(first, training_length=32)
    assert title(longer, last).startswith("At 128 tokens, 4 to 8x the training length, ")
    shorter = {name: {"16": 0.5} for name in ("accuracy", "accuracy_last_10")}
    shorter = dataclasses.replace(first, evaluation=first.evaluation | shorter)
    at_16 = f"{last.evaluation['accuracy_last_10']['16']:.1%}"
    assert title(shorter, last) == (
        "At 16 tokens, 1x the training length, the best implicit model has 50.0%, "
        f"the best recurrent model has {at_16}"
    )
    axis = word_problem.accuracy_by_position([shorter, last], figures.run_styles(runs)).axes[0]
    assert [len(line.get_xdata()) for line in axis.lines[:2]] == [16, 128]
    assert axis.get_title().startswith("Where in sequences of 16 or 128 tokens")


def test_accuracy_by_position_draws_the_longest_length(runs):
    axis = word_problem.accuracy_by_position(runs, figures.run_styles(runs)).axes[0]
    np.testing.assert_array_equal(axis.lines[0].get_ydata(), runs[0].by_position[128])


def test_accuracy_by_compute_draws_both_sweeps(runs):
    axes = word_problem.accuracy_by_compute(runs, figures.run_styles(runs)).axes
    assert axes[0].lines[0].get_xdata().tolist() == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert axes[1].lines[0].get_xdata().tolist() == [0.3, 0.1, 0.03, 0.01, 0.003]


def test_a_sweep_of_one_self_iteration_whose_residual_is_not_known_is_drawn(runs):
    def shortened(run):
        first = dict(run.test_time_compute["self_iterations"][0], relative_residual=None)
        sweep = run.test_time_compute | {"self_iterations": [first]}
        return dataclasses.replace(run, test_time_compute=sweep)

    short = [shortened(run) for run in runs if run.test_time_compute is not None]
    figure = word_problem.accuracy_by_compute(short, figures.run_styles(short))
    figure.savefig(io.BytesIO(), format="svg")
    assert {axis.get_yscale() for axis in figure.axes} == {"linear"}


def numbered(svg: str) -> str:
    """Return a picture whose ids are numbers; matplotlib's depend on what they are of."""
    numbers: dict[str, int] = {}
    return re.sub(
        r"\b[mpC]?[0-9a-f_]{10,}\b", lambda i: f"i{numbers.setdefault(i[0], len(numbers))}", svg
    )


@pytest.mark.parametrize("draw", [word_problem.accuracy_by_length, figures.training_curves])
def test_a_picture_is_on_either_ground_what_drawing_it_there_gives(runs, draw):
    styles = figures.run_styles(runs)
    found = illustrate(draw, runs, styles, "")
    pictures = (found.light, found.dark, found.narrow, found.narrow_dark)
    pages = itertools.product((False, True), ("light", "dark"))
    for (narrow, ground), picture in zip(pages, pictures, strict=True):
        drawn = io.StringIO()
        with figures.theme(ground, narrow=narrow), mpl.rc_context({"svg.hashsalt": ""}):
            draw(runs, styles).savefig(drawn, format="svg", metadata={"Date": None})
        assert numbered(picture) == numbered(drawn.getvalue())


def test_settled_steps_is_where_a_token_stays_below():
    residuals = np.array([[0.5, 0.001, 0.5], [0.001, 0.5, 0.5], [0.001, 0.001, 0.5]])
    found = figures.settled_steps(residuals, 0.01)
    np.testing.assert_array_equal(found, [2.0, 3.0, np.nan])
    assert figures.settled_steps(residuals[1:, :1], 0.01).tolist() == [1.0]


def front_of(residuals, *arguments):
    with figures.theme():
        return figures.residual_front(residuals, *arguments).axes


def test_residual_front_says_what_settled():
    residuals = np.array([[0.5, 0.5], [0.001, 0.5], [0.0, 0.001]])
    whole, part = (front_of(r, 0.01)[0] for r in (residuals, residuals[:2]))
    assert whole.get_title(loc="left") == (
        "All tokens at once, tolerance 0.01:\n"
        "the converged front (red) moves through all 2 tokens in 3 self-iterations"
    )
    expected = "All tokens at once, tolerance 0.01:\n1 of 2 tokens settle (red)"
    assert part.get_title(loc="left") == expected


def test_residual_front_leaves_blank_what_the_window_has_not_reached_or_has_left():
    nan = np.nan
    residuals = np.array(
        [[0.5, nan, nan], [0.001, 0.5, nan], [0.001, 0.001, 0.002], [0.001, 0.0005, 0.002]]
    )
    axis = front_of(residuals, 0.01, 2)[0]
    picture = axis.images[0].get_array()
    is_left = np.array([[0, 0, 0], [0, 0, 0], [1, 0, 0], [1, 0, 1]], dtype=bool)
    np.testing.assert_array_equal(np.ma.getmaskarray(picture), np.isnan(residuals) | is_left)
    assert picture[2, 2] == pytest.approx(np.log10(0.002))
    assert axis.get_title(loc="left") == (
        "A window of 2 tokens, tolerance 0.01:\n"
        "the converged front (red) moves through all 3 tokens in 3 self-iterations"
    )
    whole = front_of(residuals, 0.01)[0].images[0].get_array()
    np.testing.assert_array_equal(np.ma.getmaskarray(whole), np.isnan(residuals))


@pytest.mark.parametrize(
    ("first", "last", "extend"),
    [(0.5, 0.1, "neither"), (2.0, 0.1, "max"), (0.5, 1e-6, "min"), (2.0, 1e-6, "both")],
)
def test_the_scale_of_residuals_says_where_it_is_cut(first, last, extend):
    picture = front_of(np.array([[first], [last]]), 0.01)[0].images[0]
    assert picture.colorbar.extend == extend


@pytest.mark.parametrize("values", [[0.1, 0.1, 0.1], [0.99, 1.0, 0.98], [0.0, 0.5, 1.0], [], [0.5]])
def test_spread_keeps_order_bounds_and_distance(values):
    placed = spread(values, 0.1, 0.0, 1.0)
    assert np.argsort(placed).tolist() == np.argsort(values, kind="stable").tolist()
    assert all(-1e-9 <= value <= 1 + 1e-9 for value in placed)
    assert all(np.diff(sorted(placed)) >= 0.1 - 1e-9)
