import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from implicit_models.checksums import SUFFIX
from implicit_models.problems.problem import results_of
from implicit_models.problems.word_problem.report.results import UnknownLengthError
from implicit_models.reporting.files import DamagedResultError
from implicit_models.reporting.parameters import ReportParameters
from implicit_models.reporting.results import MissingResultError, read_results
from implicit_models.reporting.summary import group_by_seed, summarise
from tests.reporting.synthetic import LENGTHS, parameters, seal, tables, write_results

ROOT = Path(__file__).parents[2]
RUN_KEYS = {
    "kind",
    "data",
    "num_parameters",
    "accuracy",
    "accuracy_last_10",
    "chance",
    "standard_errors",
    "self_iterations",
    "evaluations_per_token",
    "mode_token_match",
    "past_distance",
    "further_tests",
    "training_flops",
    "num_training_tokens",
    "train_seconds",
    "tokens_per_second",
    "peak_memory_bytes",
    "energy_joules",
    "evaluation_flops_per_token",
    "mlflow_run_id",
}


def test_all_runs_are_read_in_the_order_of_the_parameters(runs):
    content = parameters()
    assert [run.name for run in runs] == [*content["runs"], *content["baselines"]]
    first = runs[0]
    assert (first.kind, first.training_length, first.solved_length) == ("implicit", 16, 16)
    assert first.phase_change == 200
    assert first.train_seconds == 21.5 + 604.25
    assert first.history["loss"].steps[[0, -1]].tolist() == [10, 1000]
    assert first.history["validation_accuracy"].values.tolist() == [0.5] * 10
    assert [len(values) for values in first.by_position.values()] == list(LENGTHS)
    assert runs[-1].phase_change is None and "self_iterations" not in runs[-1].history


def test_speed_is_tokens_over_seconds_of_both_phases(runs):
    first = runs[0]
    first.training["train_bounded"]["tokens_per_second"] = 48_000.0
    expected = (48_000 * 21.5 + 12_000 * 604.25) / (21.5 + 604.25)
    assert first.tokens_per_second == pytest.approx(expected)
    first.training["train_bounded"]["tokens_per_second"] = 12_000.0


def test_summary_has_the_published_schema(runs):
    summary = summarise(runs, ReportParameters(), {"a5_lstm": "abc"})
    assert set(summary) == {"runs", "success", "benchmarks", "readings"}
    assert set(summary["runs"]) == {run.name for run in runs}
    for run in summary["runs"].values():
        assert set(run) == RUN_KEYS
        assert set(run["accuracy"]) == set(run["accuracy_last_10"]) == set(map(str, LENGTHS))
        assert set(run["standard_errors"]["accuracy_last_10"]) == set(map(str, LENGTHS))
        assert all(0 < error < 0.1 for error in run["standard_errors"]["accuracy_last_10"].values())
    implicit, lstm = summary["runs"]["a5_implicit_mamba2"], summary["runs"]["a5_lstm"]
    for name in ("self_iterations", "evaluations_per_token"):
        assert set(implicit[name]) == set(map(str, LENGTHS))
        assert set(implicit[name]["16"]) == {"mean", "p50", "p95"}
        assert lstm[name] == {}
    assert (implicit["kind"], lstm["kind"]) == ("implicit", "recurrent")
    assert summary["runs"]["a5_mamba2_4_layers"]["kind"] == "explicit"
    assert lstm["mode_token_match"] is None
    assert (lstm["mlflow_run_id"], implicit["mlflow_run_id"]) == ("abc", None)


def test_success_counts_all_runs_that_differ_in_the_seed_only(runs):
    success = summarise(runs, ReportParameters(), {})["success"]
    by_length = success["a5_implicit_mamba2"].pop("by_length")
    solved = {n: each["num_solved"] for n, each in by_length.items()}
    assert solved == {"16": 2, "32": 2, "64": 2, "128": 0}
    assert by_length["16"] == {
        key: success["a5_implicit_mamba2"][key] for key in ("num_solved", "rate", "interval")
    }
    assert success["a5_implicit_mamba2"] == {
        "num_runs": 3,
        "num_solved": 2,
        "rate": 2 / 3,
        "interval": pytest.approx([0.2077, 0.9385], abs=1e-4),
        "threshold": 0.99,
        "length": 16,
        "runs": ["a5_implicit_mamba2", "a5_implicit_mamba2_seed1", "a5_implicit_mamba2_seed2"],
    }
    assert success["a5_lstm"]["rate"] == 1.0
    assert success["a5_mamba2_4_layers"]["num_solved"] == 0
    assert [len(group) for group in group_by_seed(runs).values()] == [3, 1, 1, 1]


def test_the_points_of_a_sweep_are_in_order_whatever_order_it_was_asked_for_in(tmp_path, runs):
    write_results(tmp_path)
    folder = tmp_path / "results" / "runs" / runs[0].name
    sweep = json.loads((folder / "test_time_compute.json").read_text())
    shuffled = {
        each: [*sweep[each][3:], *sweep[each][:3]] for each in ("self_iterations", "tolerance")
    }
    (folder / "test_time_compute.json").write_text(json.dumps(sweep | shuffled))
    seal(folder)
    found = read_results(folder.parent, tables(parameters()), results_of)[0].test_time_compute
    assert found == sweep == runs[0].test_time_compute


@pytest.mark.parametrize("table", ["matched", "upcycled"])
def test_seeds_are_one_model_whether_or_not_what_they_refer_to_has_results(tmp_path, table):
    write_results(tmp_path)
    content = parameters()
    names, directory = [*content["runs"]], tmp_path / "results" / "runs"
    if table == "matched":
        seeds, referred = ("a5_mamba2_1_layer", "a5_mamba2_4_layers", "a5_lstm"), names
        entry = content["baselines"]["a5_mamba2_1_layer"]
        content["matched"] = {
            name: entry | {"seed": seed, "match": {"run": names[seed], "vary": "steps"}}
            for seed, name in enumerate(seeds)
        }
        content["baselines"] = {}
    else:
        seeds, referred = names, ("base_0", "base_1", "base_2")
        model = {"family": "upcycled", "implicit": True}
        entry = content["baselines"]["a5_mamba2_1_layer"]
        content["upcycled"] = {
            name: each | {"model": model | {"source": f"models/{base}/final"}}
            for (name, each), base in zip(content["runs"].items(), referred, strict=True)
        }
        content["runs"] = {}
        content["baselines"] = {base: entry | {"seed": n} for n, base in enumerate(referred)}
    for name in referred:
        shutil.rmtree(directory / name, ignore_errors=True)
    missing: dict[str, str] = {}
    found = read_results(directory, tables(content), results_of, missing)
    assert [*missing] == [*referred]
    assert {name: [run.name for run in group] for name, group in group_by_seed(found).items()} == {
        seeds[0]: [*seeds]
    }
    assert read_results(directory, tables(content), results_of, {}, datasets=["b5"]) == []


@pytest.mark.parametrize(
    ("table", "name"),
    [
        ("runs", "a5_implicit_mamba2_seed2"),
        ("upcycled", "a5_implicit_mamba2_seed2"),
        ("baselines", "a5_lstm"),
    ],
)
def test_a_missing_file_is_named_with_the_stage_of_dvc_that_writes_it(tmp_path, table, name):
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    write_results(tmp_path)
    content = parameters()
    if table == "upcycled":
        content["upcycled"] = content.pop("runs")
    directory = tmp_path / "results" / "runs"
    for path in (directory / name).iterdir():
        if path.name.endswith(SUFFIX):
            continue
        text = path.read_text()
        path.unlink()
        with pytest.raises(MissingResultError, match=f"{name}/{path.name} does not exist") as error:
            read_results(directory, tables(content), results_of)
        path.write_text(text)
        stage = re.search(rf"`dvc repro (\w+)@{name}`$", str(error.value))
        assert stage, error.value
        definition = stages[stage[1]]
        assert definition["foreach"] == f"${{{table}}}"
        assert f"results/runs/${{key}}/{path.name}" in json.dumps(definition["do"])


DAMAGES = {
    "emptied": lambda content: b"",
    "cut in half": lambda content: content[: len(content) // 2],
    "one digit is another": lambda content: content.replace(b"0", b"1", 1),
    "not UTF-8": lambda content: content[:20] + b"\xff\xfe" + content[22:],
    "something else": lambda content: b"[]\n",
}


@pytest.mark.parametrize("change", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_is_named_with_the_stage_that_writes_it(root, tmp_path, change):
    directory, name = tmp_path / "results" / "runs", "a5_implicit_mamba2_seed2"
    shutil.copytree(root / "results" / "runs", directory)
    for path in (directory / name).iterdir():
        content = path.read_bytes()
        path.write_bytes(change(content))
        said = rf"{name}/{path.name}.*`dvc repro \w+@{name}`$"
        with pytest.raises(DamagedResultError, match=said):
            read_results(directory, tables(parameters()), results_of)
        path.write_bytes(content)
    read_results(directory, tables(parameters()), results_of)


def test_a_file_that_no_stage_has_listed_is_refused(root, tmp_path):
    directory = tmp_path / "results" / "runs"
    shutil.copytree(root / "results" / "runs", directory)
    for path in directory.rglob(f"*{SUFFIX}"):
        path.unlink()
    with pytest.raises(DamagedResultError, match="in no list of checksums beside it; the stage"):
        read_results(directory, tables(parameters()), results_of)


def test_no_evaluated_length_within_the_training_length_is_an_error(runs):
    run = runs[0]
    object.__setattr__(run, "training_length", 8)
    with pytest.raises(
        UnknownLengthError, match="add a length of at most 8 to evaluation.word_problem.lengths"
    ):
        summarise([run], ReportParameters(), {})
    object.__setattr__(run, "training_length", 16)


def test_reporting_imports_no_torch():
    program = "import sys, implicit_models.reporting.report; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
