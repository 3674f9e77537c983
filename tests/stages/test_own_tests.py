"""Entries with an evaluation and a sweep of their own, through real stages to the report."""

import copy
import json
from pathlib import Path

import pytest
import yaml
from matplotlib.figure import Figure

from implicit_models.parameters.composition import compose
from tests.notebooks import run_notebook
from tests.repositories import ROOT
from tests.stages.in_process import run_stages, work_in
from tests.stages.tiny import LENGTH, LENGTHS, shrink

pytestmark = pytest.mark.filterwarnings("ignore:_NoneStep.value:DeprecationWarning")  # DVC's


def two_data_sets() -> dict:
    """Return quick's entries, and some on a second group whose test lengths are others."""
    content = shrink(yaml.safe_load(compose(ROOT, ["preset=quick"])))
    run, lstm = (
        content[table].pop(name)
        for table, name in (("runs", "s3_implicit_mamba2"), ("baselines", "s3_lstm"))
    )
    content["baselines"] = {"s3_lstm": lstm | {"evaluation": {"lengths": [LENGTH]}}}
    group = copy.deepcopy(content["datasets"]["s3"]) | {"group": "Z3"}
    for split in ("train", "validation"):
        group[split]["length"] = 6
    group["test"]["lengths"] = [6, 12]
    content["datasets"]["z3"] = group
    lengths = LENGTHS | {"end": 6}
    own = {
        "dataset": "z3",
        "evaluation": {"lengths": [6, 12], "num_mode_sequences": 0, "window": 4},
        "sweep": {"length": 6, "tolerances": [0.2]},
    }
    z3 = run | own | {part: run[part] | {"lengths": lengths} for part in ("bounded", "free")}
    content["runs"] = {"s3_mamba2": run, "z3_mamba2": z3}
    lstm = {name: part for name, part in lstm.items() if name != "evaluation"}
    training = lstm["training"] | {"lengths": lengths}
    evaluation = {"lengths": [6, 12]}
    content["baselines"]["z3_lstm"] = lstm | {
        "dataset": "z3",
        "training": training,
        "evaluation": evaluation,
    }
    return content


@pytest.mark.slow
def test_each_entry_is_tested_as_it_says(tmp_path, monkeypatch, capsys):
    work_in(tmp_path, monkeypatch)
    Path("params.yaml").write_text(yaml.safe_dump(two_data_sets(), sort_keys=False))
    run_stages(tmp_path)

    def read(name: str, file: str) -> dict:
        return json.loads(Path("results/runs", name, file).read_text())

    tested = {
        name: sorted(map(int, read(name, "evaluation.json")["accuracy"]))
        for name in ("s3_mamba2", "s3_lstm", "z3_mamba2", "z3_lstm")
    }
    assert tested == {
        "s3_mamba2": [LENGTH, 2 * LENGTH],
        "s3_lstm": [LENGTH],
        "z3_mamba2": [6, 12],
        "z3_lstm": [6, 12],
    }
    tolerances = {
        name: {point["tolerance"] for point in read(name, "test_time_compute.json")["tolerance"]}
        for name in ("s3_mamba2", "z3_mamba2")
    }
    assert tolerances == {"s3_mamba2": {0.3, 0.1}, "z3_mamba2": {0.2}}
    summary = json.loads(Path("results/summary.json").read_text())["runs"]
    assert set(summary["s3_lstm"]["accuracy"]) == {str(LENGTH)}
    report = Path("results/report.md").read_text()
    assert all(name in report for name in tested)

    content = two_data_sets()
    content["datasets"] = {name: content["datasets"][name] for name in ("z3", "s3")}
    Path("params.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    ran = run_notebook("search", tmp_path, monkeypatch, capsys)
    assert any("z3_mamba2: through a window of 4 tokens" in line for line in ran.printed)
    ran = run_notebook("cost", tmp_path, monkeypatch, capsys)
    titles = [each._suptitle.get_text() for each in ran.shown if isinstance(each, Figure)]
    assert len(titles) == 2 and not ran.printed
