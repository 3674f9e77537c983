"""Tables on streams of bAbI's tasks, and the section and summary that hold them."""

import dataclasses
import math
import re

import pytest

from implicit_models.problems.catbabi.report import tables
from implicit_models.problems.catbabi.report.published import PUBLISHED
from implicit_models.problems.catbabi.tasks import TASK_NAMES, numbered
from implicit_models.reporting.parameters import ReportParameters
from implicit_models.reporting.report import make_report
from tests.problems.catbabi.report.synthetic import (
    DATASETS,
    DISTANCES,
    EXPLICIT,
    IMPLICIT,
    LSTM,
    TASKS,
    WIDE,
    changed,
    levelled,
    read_catbabi_results,
    write_catbabi_results,
)
from tests.reporting.synthetic import named


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("synthetic")
    write_catbabi_results(root)
    return read_catbabi_results(root)


def report_of(*shown):
    return make_report(shown, DATASETS, ReportParameters(), {})


def test_the_accuracy_table_holds_every_run(runs):
    table = tables.accuracy_table(list(runs.values()))
    rows = {row["run"]: row for row in named(table)}
    assert rows[EXPLICIT[0]] == {
        "run": EXPLICIT[0],
        "kind": "explicit",
        "trained on": "the answers",
        "layers": "1",
        "accuracy": f"{100 * runs[EXPLICIT[0]].evaluation['accuracy']:.1f} ± 0.2 %",
        "worst task": "30.0 % (19)",
        "best task": "98.5 % (1)",
        "tasks at 95 %": "6 of 20",
        "time (s)": "80",
    }
    assert [rows[name]["layers"] for name in (*EXPLICIT, LSTM)] == ["1", "2", "4", "1"]
    assert "perplexity" not in table.note and "20,300 questions." in table.note


def test_a_perplexity_is_shown_where_there_is_one(runs):
    shown = [changed(runs[WIDE], perplexity=1.2345, objective="all"), runs[EXPLICIT[1]]]
    table = tables.accuracy_table(shown)
    assert [row["perplexity"] for row in named(table)] == ["1.234", "-"]
    assert [row["trained on"] for row in named(table)] == ["all tokens", "the answers"]
    assert "The perplexity is that of all tokens" in table.note


def test_a_task_counts_as_solved_from_95_percent(runs):
    for level, solved in ((0.9499, "0 of 20"), (0.95, "20 of 20")):
        (row,) = named(tables.accuracy_table([levelled(runs[WIDE], level)]))
        assert row["tasks at 95 %"] == solved


def test_the_task_table_has_a_row_for_each_task_and_the_mean_of_seeds(runs):
    table = tables.task_table(list(runs.values()))
    rows = named(table)
    assert [row["task"] for row in rows] == [numbered(task) for task in TASKS]
    assert rows[0]["task"] == "1 single supporting fact"
    assert rows[19]["questions"] == "1,300" and rows[19]["task"] == "20 agent's motivations"
    # Two standard errors of (0.9 * 1000 + 1) / 1002, and by seeds Student's t of three, 4.303.
    share = 901 / 1002
    error = math.hypot(2 * math.sqrt(share * (1 - share) / 1000), 4.303 * 0.004 / math.sqrt(3))
    assert rows[1]["babi implicit 1 layer"] == f"90.0 ± {100 * error:.1f}" == "90.0 ± 2.1"
    assert rows[1]["babi mamba2 4 layers"] == "60.0 ± 3.1"
    assert len(table.columns) == 2 + 6 and table.pixels <= 1280 - 40
    assert "Each column is a model." in table.note
    assert "Each column is a run." in tables.task_table([runs[WIDE], runs[LSTM]]).note


def test_a_task_without_questions_is_left_blank(runs):
    counts = {"1": 10, "2": 0, "20": 10}
    found = {"1": 0.5, "2": None, "20": 1.0}
    few = changed(runs[WIDE], accuracy_by_task=found, num_questions_by_task=counts)
    rows = named(tables.task_table([few, runs[LSTM]]))
    assert len(rows) == 20
    assert rows[1]["babi implicit 2 layers"] == "-" and rows[1]["babi lstm"] == "50.0 ± 3.2"
    assert rows[0]["questions"] == "10 or 1,000"
    (row,) = named(tables.accuracy_table([few]))
    assert (row["worst task"], row["tasks at 95 %"]) == ("50.0 % (1)", "1 of 2")


def test_the_distance_table_goes_from_near_to_far(runs):
    backwards = dict(reversed(list(runs[WIDE].evaluation["accuracy_by_distance"].items())))
    shown = [changed(runs[WIDE], accuracy_by_distance=backwards), runs[LSTM]]
    table = tables.distance_table([*shown, changed(runs[EXPLICIT[0]], accuracy_by_distance={})])
    assert list(table.columns[2:]) == ["1 line", *(f"{d} lines" for d in list(DISTANCES)[1:])]
    rows = named(table)
    accuracy = backwards[">8"]["accuracy"]
    assert rows[0][">8 lines"] == f"{100 * accuracy:.1f} ± 1.2 %"
    assert set(rows[2].values()) == {EXPLICIT[0], "explicit", "-"}
    assert table.note.endswith(
        "Questions: 3,000 (1), 6,000 (2), 7,000 (3-4), 3,000 (5-8), 1,300 (>8)."
    )


def test_a_distance_and_what_lies_beyond_it_are_told_apart(runs):
    found = {"accuracy": 0.5, "num_questions": 10}
    run = changed(runs[WIDE], accuracy_by_distance={">2": found, "2": found, "1": found})
    assert list(run.by_distance) == ["1", "2", ">2"]


def test_the_search_tables_hold_the_means(runs):
    (row,) = named(tables.search_table([runs[WIDE]]))
    assert list(row.values()) == [WIDE, "9.25", "8", "17", "11.8", "0.006", "99.87 %"]
    plain = changed(runs[WIDE], evaluations_per_token=7.5, relative_residual=0.01)
    (row,) = named(tables.search_table([plain]))
    assert (row["evaluations per token, mean"], row["residual, mean"]) == ("7.5", "0.01")
    rows = named(tables.iteration_table([runs[name] for name in (*IMPLICIT, WIDE)]))
    assert len(rows) == 20
    assert rows[19]["babi implicit 1 layer"] == "10" and rows[0]["babi implicit 2 layers"] == "5.25"


@pytest.mark.parametrize(
    ("objective", "expected"),
    [
        ("answers", [96.75, 87.66, 80.88, 78.28, 87.08, 86.51, 81.60, 89.55]),
        ("all", [93.04, 90.23, 80.15]),
    ],
)
def test_published_rows_stand_beside_ours_where_stories_and_objective_fit(
    runs, objective, expected
):
    shown = [changed(runs[name], source="files", objective=objective) for name in (WIDE, LSTM)]
    (table,) = tables.published_tables(shown)
    rows = named(table)
    assert [row["from"] for row in rows[:2]] == ["this report"] * 2
    assert [row["accuracy (%)"] for row in rows[2:]] == [f"{value:.2f}" for value in expected]
    assert "(QM)" in table.title if objective == "answers" else "(LM)" in table.title
    assert "another shuffle, and have other sizes" in table.note
    assert all(row["from"] in {row.source for row in PUBLISHED} for row in rows[2:])


def test_no_published_rows_stand_beside_generated_stories(runs, undrawn):
    assert tables.published_tables(list(runs.values())) == []
    report = report_of(*runs.values()).markdown
    assert "FWM" not in report and report.count("docs/results.md") == 1


def test_the_section_holds_tables_and_figures_in_their_order(runs, undrawn):
    report = report_of(*(changed(run, source="files") for run in runs.values()))
    titles = re.findall(r"(?m)^##+ (.*)", report.markdown)
    assert titles == [
        "CatbAbI babi",
        "Accuracy",
        "Cost",
        "Accuracy by task (%)",
        "Accuracy by distance to the supporting facts",
        "Search for the fixed point",
        "Accuracy against the allowed self-iterations",
        "Accuracy against the tolerance",
        "Self-iterations by task",
        "Beside published results: question mode (QM)",
    ]
    assert list(report.figures) == [
        f"babi_{name}.svg"
        for name in (
            *("accuracy_by_task", "accuracy_by_layers", "accuracy_by_distance", "training_curves"),
            *("self_iterations_by_task", "self_iterations_by_word", "accuracy_by_compute"),
        )
    ]
    assert "## catbAbI-style babi" in report_of(runs[WIDE]).markdown


def test_what_is_not_known_is_left_out(runs):
    """All pieces that may be null are; the figures that are left are drawn."""
    unknown = {
        **dict.fromkeys(("perplexity", "self_iterations", "self_iterations_by_task")),
        **dict.fromkeys(("self_iterations_by_word", "evaluations_per_token", "share_converged")),
        **dict.fromkeys(("relative_residual", "flops_per_token", "cost")),
        "accuracy_by_distance": {},
    }
    shown = [changed(runs[name], **unknown) for name in (WIDE, EXPLICIT[1])]
    report = report_of(*(dataclasses.replace(run, test_time_compute=None) for run in shown))
    assert list(report.figures) == ["babi_accuracy_by_task.svg", "babi_training_curves.svg"]
    titles = re.findall(r"(?m)^### (.*)", report.markdown)
    assert titles == ["Accuracy", "Cost", "Accuracy by task (%)", "Search for the fixed point"]
    assert "A token of the test" not in report.markdown
    assert f"| {WIDE} | - | - | - | - | - | - |" in report.markdown


def test_the_summary_has_the_scores(runs, undrawn):
    summary = report_of(*runs.values()).summary
    found = summary["runs"][WIDE]
    evaluation = runs[WIDE].evaluation
    for name in ("accuracy", "accuracy_by_task", "chance", "self_iterations", "source"):
        assert found[name] == evaluation[name]
    assert found["test_flops_per_token"] == 2.5e7 and found["data"] == "catbabi"
    assert summary["success"] == {}


def test_the_flops_of_the_test_may_stand_among_the_costs(runs):
    run = changed(runs[WIDE], flops_per_token=None, cost={"flops_per_token": 3e6})
    assert run.test_flops_per_token == 3e6


def test_the_loss_of_a_model_that_knows_nothing(runs):
    run = runs[WIDE]
    assert run.chance_loss == pytest.approx(-math.log(0.34))
    everything = changed(run, objective="all")
    assert everything.chance_loss == run.history["loss"].values[0]
    assert dataclasses.replace(everything, history={}).chance_loss is None


def test_the_tasks_have_names():
    assert list(TASK_NAMES) == list(TASKS) and len(set(TASK_NAMES.values())) == 20
    assert numbered(21) == "21"
