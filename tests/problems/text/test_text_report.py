import dataclasses
import math
import re

import numpy as np
import pytest

from implicit_models.problems.downstream.report.benchmarks import BenchmarkResults
from implicit_models.problems.downstream.report.tables import downstream_table
from implicit_models.problems.problem import results_of
from implicit_models.problems.text.report.tables import (
    extrapolation_tables,
    perplexity_table,
    text_compute_tables,
)
from implicit_models.reporting.comparison import Candidate
from implicit_models.reporting.history import Series
from implicit_models.reporting.lead import cost_sentences
from implicit_models.reporting.parameters import ReportParameters
from implicit_models.reporting.report import TrackedPage, make_report
from implicit_models.reporting.results import read_results
from implicit_models.reporting.summary import summarise
from implicit_models.reporting.tables.cost import cost_table, cost_tables
from implicit_models.reporting.tables.table import perplexity, scientific
from tests.reporting import synthetic
from tests.reporting.synthetic import named, tables
from tests.reporting.synthetic_text import (
    BENCHMARKS,
    EXPLICIT,
    IMPLICIT,
    MATCHED,
    NATS,
    TASKS,
    text_benchmarks,
    text_parameters,
    write_text_results,
)

RUN_IDS = {IMPLICIT[0]: "beef", "downstream_llama": "f00d", "a5_lstm": "abad"}
TRACKED = {name: TrackedPage(run_id=key) for name, key in RUN_IDS.items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("synthetic")
    write_text_results(root)
    synthetic.write_results(root)
    return root / "results" / "runs"


@pytest.fixture(scope="module")
def runs(folder):
    return read_results(folder, tables(text_parameters()), results_of)


@pytest.fixture(scope="module")
def benchmarks(folder):
    return BenchmarkResults.read(folder, text_benchmarks())


@pytest.fixture(scope="module")
def report(folder, runs, benchmarks):
    word_problems = read_results(folder, tables(synthetic.parameters()), results_of)
    data = synthetic.datasets_of(synthetic.parameters())
    data |= synthetic.datasets_of(text_parameters())
    everything = [word_problems[0], word_problems[-1], *runs]
    return make_report(everything, data, ReportParameters(), TRACKED, {"benchmarks": benchmarks})


@pytest.mark.parametrize("format", ["html", "markdown"])
def test_word_problems_and_text_stand_in_one_report(runs, report, format):
    text = getattr(report, format)
    titles = ("Dataset a5", "Corpus novels", "Downstream tasks", "Tracked runs")
    places = [
        text.index(f"<h2>{title}<" if format == "html" else f"## {title}") for title in titles
    ]
    assert places == sorted(places)
    for run in runs:
        found = run.evaluation["perplexity"]
        assert f"{found['perplexity']:.3f} ± 0.021" in text
        assert f"{found['bits_per_byte']:.4f}" in text
        for found in run.evaluation["length_extrapolation"].values():
            assert perplexity(found["perplexity"], found["standard_error"]) in text
    for point in runs[0].test_time_compute["tolerance"]:
        assert perplexity(point["perplexity"], 0.03) in text


def test_the_costs_of_a_run_stand_in_one_table(report):
    headers = re.findall(r"(?m)^(\|.*\|)\n\|-", report.markdown)
    assert len(headers) == 18
    for column in ("training FLOPs", "training steps", "train time (s)", "tokens/s"):
        of_cost = [header for header in headers if f"| {column} |" in header]
        assert len(of_cost) == (2 if column != "training FLOPs" else 1), column
    assert "| 1.02e15 | 1.02x |" in report.markdown and "| 500,000 | 0.50x |" in report.markdown


def test_names_lead_to_the_tracked_runs(report):
    targets = set(re.findall(r'href="#([^"]+)"', report.html))
    assert targets == {f"run-{name}" for name in RUN_IDS}
    for name, key in RUN_IDS.items():
        assert f'<li id="run-{name}">{name}: MLflow run <code>{key}</code>' in report.html
        assert f"| [{name}](#tracked-runs) |" in report.markdown


def test_the_figures_of_text(report):
    drawn = {file: list(i.runs) for file, i in report.figures.items() if file.startswith("novels")}
    everyone = [*IMPLICIT, *EXPLICIT, *MATCHED]
    assert drawn == {
        "novels_text_training_curves.svg": everyone,
        "novels_perplexity_by_length.svg": everyone,
        "novels_perplexity_by_position.svg": everyone,
        "novels_perplexity_by_compute.svg": list(IMPLICIT),
        "novels_hard_tokens.svg": [IMPLICIT[0]],
    }
    for illustration in report.figures.values():
        assert illustration.light != illustration.dark


def test_summary_has_the_scores_under_the_papers_names(report):
    summary = report.summary
    assert list(summary["success"]) == ["a5_implicit_mamba2", "a5_lstm"]
    run = summary["runs"][IMPLICIT[0]]
    assert run["perplexity"] == pytest.approx(math.exp(NATS[IMPLICIT[0]]))
    assert run["training_flops"] == 1e15 and run["evaluation_flops_per_token"] == 1.25e7
    assert set(run["length_extrapolation"]) == {"256", "512", "1024", "2048"}
    assert run["mlflow_run_id"] == "beef" and "D-Pile ppl" not in run
    assert list(run["downstream"]) == ["downstream_implicit"]
    assert run["downstream"]["downstream_implicit"]["HellaSwag"] == 0.3
    assert "downstream" not in summary["runs"][EXPLICIT[0]]
    assert list(summary["benchmarks"]) == list(BENCHMARKS)
    llama = summary["benchmarks"]["downstream_llama"]
    assert {*TASKS, "LAMBADA ppl", "average"} < set(llama)
    assert llama["PIQA"] is None and llama["standard_errors"]["ARC-E"] == 0.012
    assert (llama["entry"], llama["mlflow_run_id"]) == (None, "f00d")


def test_two_benchmarks_of_a_model_stand_beside_each_other(runs, benchmarks):
    first = benchmarks[0]
    row = first.content["row"] | {"HellaSwag": 0.9}
    second = dataclasses.replace(first, name="again", content=first.content | {"row": row})
    summary = summarise(runs, ReportParameters(), {}, {"benchmarks": [first, second]})
    downstream = summary["runs"][IMPLICIT[0]]["downstream"]
    assert {name: found["HellaSwag"] for name, found in downstream.items()} == {
        "downstream_implicit": 0.3,
        "again": 0.9,
    }


def test_rows_of_a_part_of_the_items_are_named(benchmarks):
    def note(*limits):
        shown = [
            dataclasses.replace(each, content=each.content | {"limit": limit})
            for each, limit in zip(benchmarks, limits, strict=True)
        ]
        return downstream_table(shown, {}).note

    assert "scored" not in note(None, None)
    only = "Only the first 500 items of each task were scored, if it has more."
    assert f" {only}" in note(500, 500) and "downstream_implicit: Only" not in note(500, 500)
    both = f"downstream_implicit: {only} downstream_llama: All items of the files were scored."
    assert both in note(500, None)


def test_the_perplexity_of_the_deduplicated_pile_stands_in_the_papers_column(folder, benchmarks):
    runs = read_results(folder, tables(text_parameters("d_pile")), results_of)
    expected = math.exp(NATS[IMPLICIT[0]])
    summary = summarise(runs, ReportParameters(), {}, {"benchmarks": benchmarks})
    assert summary["runs"][IMPLICIT[0]]["D-Pile ppl"] == pytest.approx(expected)
    ours, llama, paper = named(downstream_table(benchmarks, {run.name: run for run in runs}))
    assert ours["D-Pile ppl"] == f"{expected:.2f}"
    assert (llama["D-Pile ppl"], paper["D-Pile ppl"]) == ("-", "7.99")


def test_the_paper_stands_below_the_model_of_its_size(runs, benchmarks):
    table = downstream_table(benchmarks, {run.name: run for run in runs})
    rows = named(table)
    assert [(row["run"], row["model"]) for row in rows] == [
        ("downstream_implicit", IMPLICIT[0]),
        ("downstream_llama", "conf/models/llama_tiny"),
        ("paper", "Llama 1.3B"),
    ]
    assert rows[0]["LAMBADA ppl"] == "41.50 ± 0.01" and rows[0]["average"] == "40.00 ± 1.20"
    assert rows[1]["PIQA"] == rows[1]["average"] == "-"
    assert rows[2]["ARC-C"] == "32.17" and rows[2]["parameters"] == "-"
    assert rows[1]["parameters"] == "1,300,000,000" and "training FLOPs" not in rows[0]
    assert table.note.count("LAMBADA 5,153") == 1
    assert "D-Pile ppl" not in downstream_table(benchmarks[:1], {}).columns


def test_the_cost_table_says_what_is_iso(runs):
    first, _, smaller_budget, matched = named(cost_table(runs))
    assert (first["x parameters"], first["x FLOPs"]) == ("1.00x", "1.00x")
    assert (smaller_budget["x parameters"], smaller_budget["x FLOPs"]) == ("1.00x", "0.25x")
    assert (matched["x parameters"], matched["x FLOPs"]) == ("0.50x", "1.02x")
    assert first["training tokens"] == "614,400" and first["peak memory (GiB)"] == "0.88"
    assert first["energy (kJ)"] == "5" and first["evaluation FLOPs per token"] == "1.25e7"


def test_the_loss_to_reach_is_where_the_worst_run_ended(runs):
    worst = runs[2].history["validation_loss"].values[-1]
    table = cost_tables(runs)[1]
    assert f"at or below {worst:.3g} nats" in table.note
    first, _, last_to_reach, _ = named(table)
    assert last_to_reach["FLOPs to the loss"] == "2.50e14"
    assert first["FLOPs to the loss"] == "2.00e14"
    assert first["time to the loss (s)"] == "40" and last_to_reach["time to the loss (s)"] == "60"
    assert first["x reference's training"] == "0.20x"


def test_a_loss_near_chance_is_not_the_one_to_reach(runs):
    """A run that has learned nothing does not set what the others are measured by."""
    chance = runs[2].chance_loss
    assert chance == runs[2].history["loss"].values[0]
    stuck = Series(steps=np.array([50.0, 300.0]), values=np.array([chance, 0.9 * chance]))
    idle = dataclasses.replace(runs[2], history=runs[2].history | {"validation_loss": stuck})
    table = cost_tables([*runs[:2], idle, runs[3]])[1]
    worst = max(run.history["validation_loss"].values[-1] for run in (*runs[:2], runs[3]))
    assert f"at or below {worst:.3g} nats" in table.note and "well below chance" in table.note
    assert named(table)[2]["time to the loss (s)"] == "-"
    assert len(cost_tables([idle])) == 1


def test_columns_of_which_nothing_is_known_are_left_out(folder):
    table, *others = cost_tables(read_results(folder, tables(synthetic.parameters()), results_of))
    assert not others  # no validation loss was logged
    assert not {"training FLOPs", "energy (kJ)", "training tokens"} & {*table.columns}
    rows = named(table)
    assert rows[0]["x parameters"] == "1.00x"
    assert [row["training steps"] for row in rows] == ["1,000"] * 5 + ["3,000"]


def sourced(folder, name, source):
    """Return results in which a run's training began from another model's weights."""
    content = text_parameters()
    entry = content["runs"].pop(name)
    entry = entry | {"model": {"family": "upcycled", "implicit": True, "source": source}}
    content["upcycled"] = {name: entry}
    return read_results(folder, tables(content), results_of)


def test_the_flops_of_a_source_count(folder):
    runs = sourced(folder, IMPLICIT[1], f"models/{EXPLICIT[0]}/final")
    table = cost_table(runs)
    row = named(table)[1]
    assert (row["training FLOPs"], row["x FLOPs"]) == ("1.25e15", "1.25x")
    reached = named(cost_tables(runs)[1])[1]
    assert (reached["FLOPs to the loss"], reached["x reference's training"]) == ("4.50e14", "0.45x")
    assert f"of {IMPLICIT[1]} (from {EXPLICIT[0]}) include those of training" in table.note
    assert "without the source's" in table.note and "+ source" not in table.note
    assert "source" not in cost_table(runs[:1]).note


def test_the_flops_of_an_unknown_source_are_said_to_be_missing(folder):
    runs = sourced(folder, IMPLICIT[1], "gpt2")
    table = cost_table(runs)
    row = named(table)[1]
    assert (row["training FLOPs"], row["x FLOPs"]) == ("1.00e15 + source", "1.00x + source")
    assert named(cost_tables(runs)[1])[1]["FLOPs to the loss"] == "2.00e14 + source"
    assert f"the source of {IMPLICIT[1]} took is not among these results" in table.note
    candidates = [Candidate(name=run.name, kind=run.kind, runs=[run], values=[1]) for run in runs]
    told = " ".join(cost_sentences([candidates[1], candidates[2]], runs))
    assert "FLOPs" not in told and f"Training {IMPLICIT[1]} took 60 s; " in told


def test_nothing_is_compared_with_a_reference_of_unknown_flops(folder):
    runs = sourced(folder, IMPLICIT[0], "gpt2")[1:]
    table = cost_table(runs)
    assert "x FLOPs" not in table.columns
    assert "x reference's training" not in cost_tables(runs)[1].columns
    assert named(table)[1]["training FLOPs"] == "2.50e14"
    assert "no FLOPs are given against those of the reference" in table.note


def scored(run, **changes):
    found = run.evaluation["perplexity"] | changes
    return dataclasses.replace(run, evaluation=run.evaluation | {"perplexity": found})


def test_the_note_on_perplexity_says_what_was_scored(runs):
    note = perplexity_table(runs).note
    assert "All tokens of the test documents are scored." in note
    assert "by bootstrap over the documents." in note and "cut" not in note
    cut = {"max_tokens": 5000, "num_documents_in_all": 20, "num_cut_documents": 3}
    sampled = [scored(run, **cut) for run in runs]
    note = perplexity_table(sampled).note
    assert "All tokens" not in note and runs[0].name not in note
    assert "At most 5,000 tokens are scored, of 12 of the 20 test documents; " in note
    assert "documents cut to their beginning: 3." in note and "Of the bytes of a cut" in note
    note = perplexity_table([runs[0], sampled[1]]).note
    assert f"{runs[0].name}: All tokens" in note and f"{runs[1].name}: At most 5,000" in note


def test_the_note_on_perplexity_says_what_the_bootstrap_is_over(runs):
    alone = {"num_documents": 1, "num_documents_in_all": 1, "bootstrap": "windows"}
    assert "over the windows." in perplexity_table([scored(runs[0], **alone)]).note


def test_text_tables_hold_every_point(runs):
    rows = named(perplexity_table(runs))
    assert rows[0]["perplexity"] == "4.055 ± 0.021" and rows[0]["nats/token"] == "1.4000"
    whole, last = extrapolation_tables(runs)
    found = runs[0].evaluation["length_extrapolation"]["2048"]
    assert named(whole)[0]["2048 tokens"] == f"{found['perplexity']:.3f} ± 0.050"
    assert named(last)[0]["2048 tokens"] == f"{found['perplexity_last']:.3f}"
    by_iterations, by_tolerance = text_compute_tables(runs[:2])
    assert len(by_iterations.rows) == 12 and len(by_tolerance.rows) == 24
    assert named(by_tolerance)[0]["as simultaneous"] == "97.66 %"
    assert named(by_tolerance)[1] == {
        "run": IMPLICIT[0],
        "mode": "simultaneous",
        "tolerance": "0.3",
        "perplexity": f"{math.exp(1.4 + 0.12):.3f} ± 0.030",
        "residual, mean": "0.24",
        "time (s)": "1.5",
        "self-iterations, mean": "8.5",
        "evaluations per token, mean": f"{1.5 * (6 - 4 * math.log10(0.3)):.3g}",
        "converged": "99.50 %",
        "as simultaneous": "-",
    }


def test_a_run_whose_perplexity_is_no_number_is_shown_with_a_dash(runs, undrawn):
    nothing = dict.fromkeys(("perplexity", "standard_error", "nats_per_token", "bits_per_byte"))
    broken = runs[0].evaluation["perplexity"] | nothing
    run = dataclasses.replace(runs[0], evaluation=runs[0].evaluation | {"perplexity": broken})
    corpora = synthetic.datasets_of(text_parameters())
    text = make_report([run, runs[2]], corpora, ReportParameters(), {}).markdown
    assert f"| {run.name} | implicit | - | - | - | 100,000 | 12 |" in text


def test_what_was_left_out_of_the_evaluation_is_left_out_of_the_report(runs, undrawn):
    left_out = {"length_extrapolation": {}, "domains": {"all": {}}, "tokens": []}
    shown = [dataclasses.replace(run, evaluation=run.evaluation | left_out) for run in runs[2:]]
    report = make_report(shown, synthetic.datasets_of(text_parameters()), ReportParameters(), {})
    assert list(report.figures) == ["novels_text_training_curves.svg"]
    titles = re.findall(r"(?m)^### (.*)", report.markdown)
    assert titles == ["Perplexity", "Cost", "Cost of reaching a loss"]
    assert "Tracked runs" not in report.markdown


@pytest.mark.parametrize(
    ("value", "error", "written"),
    [
        (4.0552, 0.0213, "4.055 ± 0.021"),
        (12.3456, None, "12.35"),
        (1234.56, 7.0, "1,234.6 ± 7.0"),
        (2.5e8, 1.0, "2.50e8"),
        (None, None, "-"),
        (math.inf, 1.0, "-"),
    ],
)
def test_perplexities_are_written_with_their_error(value, error, written):
    assert perplexity(value, error) == written


def test_flops_are_written_with_their_power_of_ten():
    assert [scientific(x) for x in (1.234e15, 9.999e-1, None)] == ["1.23e15", "1.00e0", "-"]
