"""The page of MLflow that compares the runs of the last report."""

import json

from mlflow.utils.validation import MAX_EXPERIMENT_TAG_VAL_LENGTH

from pipelines.server import comparison
from pipelines.server.comparison import reproduced, view_of
from scripts import dashboards


def test_a_report_is_compared_as_far_as_there_is_one(tmp_path):
    assert reproduced(tmp_path) == []
    folder = tmp_path / "results"
    folder.mkdir()
    (folder / "summary.json").write_text("{")
    assert reproduced(tmp_path) == []
    runs = {"a": {"mlflow_run_id": "1"}, "b": {"mlflow_run_id": None}}
    (folder / "summary.json").write_text(json.dumps({"runs": runs}))
    assert reproduced(tmp_path) == ["1"]


def test_the_view_has_scores_before_costs_and_the_longest_decides():
    def run(number, *names):
        metrics = [{"key": name, "value": 1.0} for name in names]
        return {"info": {"run_id": number}, "data": {"metrics": metrics}}

    lengths = [f"test.accuracy_last_10.{length}" for length in (9, 80, 160)]
    quantities = ("self_iterations", "evaluations_per_token")
    searches = [f"test.{quantity}.{length}" for quantity in quantities for length in (9, 160)]
    implicit = run("1", "train.seconds", *searches, *lengths, "train.loss")
    view = view_of([implicit, run("2", "num_parameters")])
    ends = ["test.accuracy_last_10.9", "test.accuracy_last_10.160"]
    costs = ["train.seconds", "test.self_iterations.160", "num_parameters"]
    metrics = [f"metrics.`{name}`" for name in (*ends, *costs)]
    assert view["selectedColumns"] == ["tags.`kind`", *metrics, "tags.`family`"]
    assert list(view["columnWidths"]) == view["columnOrder"] == view["selectedColumns"]
    assert view["searchFilter"] == "attributes.run_id IN ('1', '2')"
    assert (view["orderByKey"], view["orderByAsc"]) == (metrics[1], False)
    of_text = view_of([run("1", "test.perplexity", "test.bits_per_byte")])
    assert (of_text["orderByKey"], of_text["orderByAsc"]) == ("metrics.`test.perplexity`", True)


def made_up(number: int, kind: str, score: float | None) -> dict:
    """Return a run of one experiment, as MLflow's API has it."""
    metrics = [] if score is None else [{"key": "test.accuracy.8", "value": score}]
    tags = [{"key": "kind", "value": kind}]
    info = {"run_id": f"{number:032x}", "experiment_id": "1"}
    return {"info": info, "data": {"metrics": metrics, "tags": tags}}


def test_of_many_runs_the_best_of_each_kind_are_shown_in_turns(monkeypatch, capsys, tmp_path):
    implicit = [made_up(n, "implicit", n / 1000) for n in range(600)]
    explicit = [made_up(600 + n, "explicit", n / 10_000) for n in range(20)]
    unknown = [made_up(700 + n, "recurrent", None) for n in range(3)]
    runs = {run["info"]["run_id"]: run for run in (*explicit, *unknown, *implicit)}
    chosen = comparison.headline_runs(list(runs.values()), 10)
    numbers = [int(run["info"]["run_id"], 16) for run in chosen]
    assert numbers == [599, 619, 700, 598, 618, 701, 597, 617, 702, 596]
    assert comparison.headline_runs(implicit[:10], 10) == implicit[:10]
    written = {}

    def answer(address: str, content: dict | None = None) -> dict:
        if content is None:
            return {"run": runs[address.rpartition("=")[2]]}
        written[content["key"]] = content["value"]
        return {}

    monkeypatch.setattr(comparison, "ask", answer)
    page = comparison.comparison_page("http://server", list(runs))
    assert page is not None
    assert (page.num_shown, page.num_found) == (comparison.MOST_RUNS, 623)
    view = written[f"mlflow.sharedViewState.{comparison.VIEW}"]
    assert view.count("'") == 2 * comparison.MOST_RUNS
    assert len(view) <= MAX_EXPERIMENT_TAG_VAL_LENGTH
    monkeypatch.setattr(dashboards, "comparison_of", lambda *_: page)
    dashboards.show({"mlflow": "http://server"}, tmp_path, browser=False)
    said = capsys.readouterr().out
    assert f"{page.address}\n         (100 of its 623 runs: in turns the best of each kind)" in said
