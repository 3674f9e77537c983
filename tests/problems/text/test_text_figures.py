import dataclasses

import numpy as np
import pytest

from implicit_models.problems.problem import results_of
from implicit_models.problems.text.report import figures as text_figures
from implicit_models.problems.text.report.cost_figures import (
    alike_but_size,
    perplexity_by_cost,
    perplexity_by_parameters,
)
from implicit_models.problems.text.report.hard_tokens import LINE_WIDTH, flow, hard_tokens, visible
from implicit_models.problems.text.report.tables import extrapolation_tables
from implicit_models.problems.text.report.training_figure import text_training_curves
from implicit_models.reporting import figures
from implicit_models.reporting.figures.style import RunStyle
from implicit_models.reporting.results import read_results
from tests.reporting.synthetic import tables
from tests.reporting.synthetic_text import LENGTHS, text_parameters, write_text_results


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("synthetic")
    write_text_results(root)
    return read_results(root / "results" / "runs", tables(text_parameters()), results_of)


def test_perplexity_by_length_draws_every_run_and_the_training_length(runs):
    axis = text_figures.perplexity_by_length(runs, figures.run_styles(runs)).axes[0]
    lines = [list(line.get_ydata()) for line in axis.lines]
    for run in runs:
        found = run.evaluation["length_extrapolation"]
        assert [found[str(length)]["perplexity"] for length in LENGTHS] in lines
    text = " ".join(label.get_text() for label in axis.texts)
    assert "trained up to 256" in text
    assert all(run.name in text for run in runs)


def test_perplexity_by_position_draws_the_longest_length(runs):
    axis = text_figures.perplexity_by_position(runs, figures.run_styles(runs)).axes[0]
    curve = runs[0].perplexity_by_position[2048]
    np.testing.assert_array_equal(axis.lines[0].get_xdata(), curve.positions)
    np.testing.assert_array_equal(axis.lines[0].get_ydata(), curve.perplexity)
    assert axis.get_yscale() == "log"


def test_a_perplexity_that_is_no_number_leaves_a_gap(runs):
    found = runs[0].evaluation["length_extrapolation"]
    gap = {"perplexity": None, "standard_error": None, "perplexity_last": None}
    broken = runs[0].evaluation | {"length_extrapolation": found | {"2048": gap}}
    run = dataclasses.replace(runs[0], evaluation=broken)
    figure = text_figures.perplexity_by_length([run], figures.run_styles(runs))
    heights = np.array(figure.axes[0].lines[0].get_ydata(), dtype=float)
    assert np.isnan(heights).tolist() == [False] * 3 + [True]
    assert figure.axes[0].texts[-1].get_text() == "trained up to 256"


def test_perplexity_by_compute_draws_the_three_modes(runs):
    axes = text_figures.perplexity_by_compute(runs, figures.run_styles(runs)).axes
    assert axes[0].lines[0].get_xdata().tolist() == [1, 2, 4, 8, 16, 32]
    assert len(axes[0].lines) == 2
    assert axes[0].get_ylim() == axes[1].get_ylim()
    tolerances = [line.get_xdata() for line in axes[1].lines if len(line.get_xdata())]
    assert [list(values) for values in tolerances] == [[0.3, 0.1, 0.05, 0.01]] * 6
    assert [label.get_text() for label in axes[1].get_legend().get_texts()] == [
        "window",
        "simultaneous",
        "sequential",
    ]


def test_training_is_drawn_over_tokens_and_over_flops(runs):
    axes = text_training_curves(runs, figures.run_styles(runs)).axes
    titles = [axis.get_title() for axis in axes[:2]]
    assert titles[0].endswith("(thin: batches; marked: held out)")
    assert titles[1].endswith("(dotted line: the free phase begins)")
    marked = {line.get_label(): line for line in axes[0].lines}
    assert marked[runs[0].name].get_xdata()[-1] == runs[0].num_training_tokens
    over_flops = {line.get_label(): line for line in axes[1].lines}
    for run in runs:
        assert over_flops[run.name].get_xdata()[-1] == pytest.approx(run.training_flops)
        losses = run.history["validation_loss"].values
        np.testing.assert_array_equal(over_flops[run.name].get_ydata(), losses)
    phase_changes = [line.get_xdata()[0] for line in axes[1].lines if line.get_linestyle() == ":"]
    np.testing.assert_allclose(phase_changes, 2e14)


def test_hard_tokens_writes_the_text_and_colours_it(runs):
    with figures.theme():
        figure = hard_tokens(runs[:1], figures.run_styles(runs))
    panels = [axis for axis in figure.axes if axis.texts]
    titles = [axis.get_title(loc="left").split(", ")[0] for axis in panels]
    assert titles == [f"{runs[0].name}: {name} per token" for name in ("self-iterations", "nats")]
    written = "".join(label.get_text() for label in panels[0].texts)
    assert written.startswith('It was the best of times, it was "the worst"')
    assert "of $times$:\u2190\u21b5\u21e5the age of wisdom \u25af\u25af\u25af. It" in written
    hardest = int(np.argmax([token.self_iterations for token in runs[0].shown_tokens]))
    assert panels[0].patches[hardest].get_facecolor()[:2] > (0.98, 0.9)


def test_a_text_without_numbers_is_drawn_without_panels(runs):
    nothing = [{"text": "a", "nats": None, "self_iterations": None}]
    run = dataclasses.replace(runs[0], evaluation={"tokens": nothing})
    assert hard_tokens([run], {}).axes == []
    some = [*nothing, {"text": "b", "nats": 1.0, "self_iterations": None}]
    run = dataclasses.replace(runs[0], evaluation={"tokens": some})
    assert len([axis for axis in hard_tokens([run], {}).axes if axis.texts]) == 1


@pytest.mark.parametrize("widths", [[1] * 200, [7] * 40, [80, 1, 79, 2, 80], [100, 3]])
def test_flow_keeps_the_order_and_breaks_lines_between_tokens(widths):
    places = flow(widths, LINE_WIDTH)
    assert places[0] == (0, 0)
    assert places == sorted(places)
    for (line, column), (after, start), width in zip(places, places[1:], widths, strict=False):
        same = after == line and start == column + width
        assert same or (after == line + 1 and start == 0)
    fits = [column + width <= LINE_WIDTH for (_, column), width in zip(places, widths, strict=True)]
    assert all(fit or width > LINE_WIDTH for fit, width in zip(fits, widths, strict=True))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a", "a"),
        (" the", " the"),
        ("\n\r\t", "\u21b5\u2190\u21e5"),
        ("\u4e16\x00", "\u25af\u25af"),
        ("\ufffd", "\u25af"),
        ("", "\u25af"),
        ("<|endoftext|>", "<|endoftext|>"),
        ("\u00e9$\\alpha$", "\u00e9$\\alpha$"),
        (30 * "x", 15 * "x" + "\u2026"),
    ],
)
def test_visible_shows_what_the_font_has(text, shown):
    assert visible(text) == shown


def _of_size(run, name, factor, perplexity):
    """A run of more parameters, and of another perplexity."""
    found = run.evaluation["perplexity"] | {"perplexity": perplexity, "standard_error": 0.1}
    changed = {"num_parameters": run.num_parameters * factor, "perplexity": found}
    return dataclasses.replace(run, name=name, evaluation=run.evaluation | changed)


def test_perplexity_by_parameters_has_a_line_for_models_that_have_read_as_much(runs):
    implicit = next(run for run in runs if run.kind == "implicit")
    larger = _of_size(implicit, "larger", 4, 3.5)
    half = {name: each | {"num_tokens": 1} for name, each in larger.training.items()}
    shorter = dataclasses.replace(_of_size(larger, "shorter", 2, 3.0), training=half)
    shown = [larger, implicit, shorter]
    family = implicit.entry.model.family
    groups = alike_but_size(shown)
    assert [[run.name for run in group] for group in groups.values()] == [
        [implicit.name, "larger"],
        ["shorter"],
    ]
    assert all(label.startswith(f"implicit {family}, ") for label in groups)
    assert list(alike_but_size([larger])) == [f"implicit {family}"]
    axis = perplexity_by_parameters(shown, figures.run_styles(shown)).axes[0]
    line = axis.lines[0]
    assert line.get_xdata().tolist() == [implicit.num_parameters, 4 * implicit.num_parameters]
    assert line.get_ydata().tolist() == [implicit.evaluation["perplexity"]["perplexity"], 3.5]
    assert axis.get_xscale() == "log"
    assert axis.containers[0].has_yerr


def test_perplexity_by_parameters_tells_more_self_iterations_apart(runs):
    implicit = next(run for run in runs if run.kind == "implicit")
    fewer = implicit.entry.model_copy(
        update={"free": implicit.entry.free.model_copy(update={"max_steps": 4, "phantom_steps": 1})}
    )
    four_and_one = dataclasses.replace(_of_size(implicit, "four_and_one", 1, 4.0), entry=fewer)
    groups = alike_but_size([implicit, four_and_one])
    what = f"implicit {implicit.entry.model.family}, up to"
    assert {label: [run.name for run in alike] for label, alike in groups.items()} == {
        f"{what} {implicit.entry.iteration_cap} self-iterations": [implicit.name],
        f"{what} 5 self-iterations": ["four_and_one"],
    }
    one_colour = dict.fromkeys((implicit.name, "four_and_one"), RunStyle(colour="k", dash="-"))
    axis = perplexity_by_parameters([implicit, four_and_one], one_colour).axes[0]
    first, second = (container.lines[0] for container in axis.containers)
    assert first.get_linestyle() != second.get_linestyle()


def test_perplexity_by_cost_has_a_point_for_each_model(runs):
    left, right = perplexity_by_cost(runs, figures.run_styles(runs)).axes
    for axis, cost in ((left, "flops_with_source"), (right, "train_seconds")):
        points = {point for line in axis.lines for point in zip(*line.get_data(), strict=True)}
        assert points == {
            (getattr(run, cost), run.evaluation["perplexity"]["perplexity"]) for run in runs
        }
    assert left.get_ylabel() == "test perplexity"


def test_a_model_that_has_diverged_has_no_point_by_cost(runs):
    diverged = _of_size(runs[0], runs[0].name, 1, None)
    axis = perplexity_by_cost([diverged, *runs[1:]], figures.run_styles(runs)).axes[0]
    known = {y for line in axis.lines for y in line.get_ydata() if np.isfinite(y)}
    assert known == {run.evaluation["perplexity"]["perplexity"] for run in runs[1:]}


def test_the_table_of_the_last_tokens_says_that_they_are_others_at_each_length(runs):
    _, last = extrapolation_tables(runs)
    assert last.note.endswith("compare models in a column, not lengths in a row.")
