"""The whole pipeline in clones of this repository, on the preset `quick`."""

import csv
import json
import os
import re
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest
import yaml
from matplotlib.figure import Figure

from scripts.store_notebooks import execute, notebooks
from scripts.store_notebooks import read as read_notebook
from tests.markdown import python_blocks
from tests.notebooks import run_notebook
from tests.repositories import Repository, clone, commit

RUN = "s3_implicit_mamba2"
BASELINES = ("s3_lstm", "s3_mamba2_1_layer", "s3_gpt2")
RESULTS = {
    RUN: {
        "evaluate_benchmarks_checksums.json",
        "evaluation.json",
        "evaluation_by_position.csv",
        "metrics.json",
        "sweep_test_time_compute_checksums.json",
        "test_time_compute.csv",
        "test_time_compute.json",
        "train_bounded.json",
        "train_bounded_checksums.json",
        "train_bounded_history.csv",
        "train_free.json",
        "train_free_checksums.json",
        "train_free_history.csv",
    }
} | {
    name: {
        "evaluate_benchmarks_checksums.json",
        "evaluation.json",
        "evaluation_by_position.csv",
        "metrics.json",
        "train_baseline.json",
        "train_baseline_checksums.json",
        "train_baseline_history.csv",
    }
    for name in BASELINES
}
DIVISION = str.maketrans("/.", "__")  # the identifier that DVC gives to a plot's place on the page
LENGTHS = {"12", "24", "48"}
MODEL = {
    "README.md",
    "checksums.json",
    "config.json",
    "model.safetensors",
    "training_cost.json",
}

pytestmark = pytest.mark.slow


def stale_stages(repository: Repository) -> set[str]:
    status = json.loads(repository.run("dvc", "status", "--json"))
    return {stage.split("@")[0] for stage in status}


def read(path: Path) -> dict:
    return json.loads(path.read_text())


def test_everything_is_there(quick_repro):
    results = quick_repro.path / "results"
    for name, files in RESULTS.items():
        assert {path.name for path in (results / "runs" / name).iterdir()} == files
        model = quick_repro.path / "models" / name / "final"
        generating = set() if name == "s3_lstm" else {"generation_config.json"}
        assert {path.name for path in model.iterdir()} == MODEL | generating
    for file in ("report.html", "report.md"):
        assert RUN in (results / file).read_text()
    assert not list((quick_repro.path / "checkpoints").rglob("step_*"))


def test_summary(quick_repro):
    runs = read(quick_repro.path / "results" / "summary.json")["runs"]
    assert set(runs) == set(RESULTS)
    for name, run in runs.items():
        assert run["kind"] == {RUN: "implicit", "s3_lstm": "recurrent"}.get(name, "explicit")
        assert run["num_parameters"] > 1000
        assert set(run["accuracy"]) == set(run["accuracy_last_10"]) == LENGTHS
        assert all(0 <= value <= 1 for value in run["accuracy"].values())
        assert run["train_seconds"] > 0
        assert run["tokens_per_second"] > 0
        assert run["mlflow_run_id"]
    assert runs[RUN]["accuracy"]["12"] > 0.9
    assert 0 <= runs[RUN]["mode_token_match"] <= 1
    for cost in ("self_iterations", "evaluations_per_token"):
        assert set(runs[RUN][cost]) == LENGTHS
        assert set(runs[RUN][cost]["12"]) == {"mean", "p50", "p95"}
    for name in BASELINES:
        assert runs[name]["self_iterations"] == runs[name]["evaluations_per_token"] == {}
        assert runs[name]["mode_token_match"] is None


def test_model_cards(quick_repro):
    runs = read(quick_repro.path / "results" / "summary.json")["runs"]
    rows = {
        RUN: {
            "hidden_size": "32",
            "tolerance": "0.01",
            "training_max_self_iterations": "12",
            "entry": f"runs.{RUN}",
            "bounded.num_self_iterations": "4",
            "free.tolerance": "0.05",
        },
        "s3_mamba2_1_layer": {"state_size": "16", "training.num_training_steps": "150"},
        "s3_lstm": {"embedding_size": "32", "entry": "baselines.s3_lstm"},
        "s3_gpt2": {"n_embd": "32", "source": "conf/models/gpt2_tiny"},
    }
    for name, expected in rows.items():
        card = (quick_repro.path / "models" / name / "final" / "README.md").read_text()
        assert f"{runs[name]['num_parameters']:,} parameters" in card
        assert ("import implicit_models" in card) == (name != "s3_gpt2")
        found = dict(re.findall(r"^\| (.+?) \| (.*) \|$", card, re.MULTILINE))
        assert expected.items() <= found.items()
        assert found["MLflow run"] == name
        assert len(found["tag parameters.digest"]) == 64
        assert ("tolerance" in found) == ("free.tolerance" in found) == (name == RUN)


def test_evaluation_compares_the_modes(quick_repro):
    evaluation = read(quick_repro.path / "results" / "runs" / RUN / "evaluation.json")
    assert set(evaluation["modes"]) == LENGTHS
    for modes in evaluation["modes"].values():
        assert modes["num_sequences"] == 8
        assert modes["window"]["window_match"] == 1.0
        for mode in ("simultaneous", "sequential"):
            assert modes[mode]["window_match"] > 0.9
    assert set(evaluation["spectral_radius"]) == {"12"}
    assert evaluation["spectral_radius"]["12"]["max"] > 0


def test_the_free_phase_goes_on_where_the_bounded_one_stopped(quick_repro):
    steps = {}
    for stage in ("train_bounded", "train_free"):
        with (quick_repro.path / "results" / "runs" / RUN / f"{stage}_history.csv").open() as file:
            steps[stage] = [int(row["step"]) for row in csv.DictReader(file)]
    assert steps["train_bounded"] == list(range(10, 31, 10))
    assert steps["train_free"] == list(range(40, 151, 10))


def test_second_repro_runs_nothing(quick_repro):
    output = quick_repro.run("dvc", "repro")
    assert "Data and pipelines are up to date." in output
    assert "Running stage" not in output
    assert "cached" not in output
    assert stale_stages(quick_repro) == set()


def test_git_sees_metrics_and_lock_alone(quick_repro):
    lines = quick_repro.run("git", "status", "--porcelain", "--untracked-files=all").splitlines()
    new = {line.split()[-1] for line in lines}
    metrics = {
        f"results/runs/{name}/{file}"
        for name, files in RESULTS.items()
        for file in files
        if re.fullmatch(r"metrics.json|train_[a-z]+.json", file)
    }
    assert new - {"dvc.lock", "results/summary.json"} == metrics


def test_metrics_and_plots(quick_repro, tmp_path):
    shown = json.loads(quick_repro.run("dvc", "metrics", "show", "--json"))[""]["data"]
    assert set(shown) == {
        f"results/runs/{name}/{file}"
        for name, files in RESULTS.items()
        for file in files
        if re.fullmatch(r"metrics.json|train_[a-z]+.json", file)
    }
    quick_repro.run("dvc", "plots", "show", "--out", str(tmp_path))
    page = (tmp_path / "index.html").read_text()
    assert "DVC_METRIC" not in page
    assert f"{RUN}, free phase" in page
    for name, files in RESULTS.items():
        for file in files:
            if file.endswith(".csv"):
                assert f"results/runs/{name}/{file}".translate(DIVISION) in page


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_a_notebook_looks_into_a_search_in_a_kernel_of_its_own(quick_repro):
    notebook = read_notebook(notebooks()["search"])
    execute(notebook, quick_repro.path)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 2
    assert sum("text/markdown" in output.get("data", {}) for output in outputs) == 1
    printed = "".join(output["text"] for output in outputs if output["output_type"] == "stream")
    simultaneous, windowed = (line for line in printed.splitlines() if line.startswith(RUN))
    assert re.search(r"a search of \d+ self-iterations for 24 tokens", simultaneous)
    assert re.search(r"through a window of \d+ tokens, .* takes \d+ self-iterations", windowed)


@pytest.mark.parametrize(("name", "num_pictures"), [("jacobian", 2), ("length", 3), ("cost", 1)])
def test_notebooks_draw_what_was_reproduced(quick_repro, monkeypatch, capsys, name, num_pictures):
    ran = run_notebook(name, quick_repro.path, monkeypatch, capsys)
    assert ran.num(Figure) == num_pictures
    assert len(ran.printed) == (2 if name == "jacobian" else 0)  # how many entries are shown
    assert all("114 of the 1024 entries" in line for line in ran.printed)


def test_a_docstring_runs_nothing_again(quick_repro, tmp_path):
    repository = quick_repro.copy(tmp_path / "repository")
    for file in ("equilibrium/iterate.py", "reporting/summary.py"):
        path = repository.path / "implicit_models" / file
        path.write_text(path.read_text().replace('"""', '"""Changed. ', 1))
    assert stale_stages(repository) == {"code"}
    output = repository.run("dvc", "repro")
    assert re.findall(r"Running stage '(.*)'", output) == ["code"]
    assert stale_stages(repository) == set()


@pytest.mark.parametrize(
    ("file", "stale"),
    [
        (
            "problems/word_problem/evaluation/state_tracking.py",
            {"evaluate_benchmarks", "evaluate_baselines", "sweep_test_time_compute"},
        ),
        ("training/metrics.py", {"train_bounded", "train_free", "train_baseline"}),
        ("reporting/summary.py", {"report"}),
        ("problems/text/evaluation/perplexity.py", set()),
        ("cost/devices.py", set()),
    ],
)
def test_changed_code_makes_only_its_users_stale(quick_repro, file, stale):
    path = quick_repro.path / "implicit_models" / file
    text = path.read_text()
    path.write_text(text + "\n\nADDED = 1\n")
    try:
        quick_repro.run("dvc", "repro", "code")
        assert stale_stages(quick_repro) == stale
    finally:
        path.write_text(text)
        quick_repro.run("dvc", "repro", "code")
    assert stale_stages(quick_repro) == set()


def test_killed_training_goes_on_and_ends_in_the_same_weights(quick_repro, tmp_path):
    repository = quick_repro.copy(tmp_path / "repository")
    folder = repository.path / "models" / RUN / "final"
    weights = folder / "model.safetensors"
    expected = contents(folder)
    forget(repository, f"train_free@{RUN}")
    weights.unlink()

    process = repository.start("dvc", "repro", f"train_free@{RUN}")
    checkpoints = repository.path / "checkpoints" / RUN / "train_free"
    while process.poll() is None and not list(checkpoints.glob("*/step_?????????/progress.json")):
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGKILL)  # DVC and the stage alike, as a power cut does
    process.communicate()
    assert list(checkpoints.glob("*/step_?????????/progress.json"))
    assert not weights.exists()

    output = repository.run("dvc", "repro", f"train_free@{RUN}")
    assert "continuing from checkpoints" in output
    assert f"Stage 'train_bounded@{RUN}' didn't change" in output
    assert contents(folder) == expected

    output = repository.run("dvc", "repro", "--force", "--single-item", f"train_free@{RUN}")
    assert f"Running stage 'train_free@{RUN}'" in output
    assert "continuing" not in output
    assert contents(folder) == expected


def test_the_readmes_example(quick_repro, tmp_path):
    repository = quick_repro.copy(tmp_path / "repository")
    (example,) = python_blocks(repository.path / "README.md")
    example = example.replace("a5", "s3").replace("L160", "L48")
    check = "assert (output.logits.argmax(-1) == products).float().mean() > 0.9"
    repository.run(sys.executable, "-W", "error::UserWarning", "-c", example + check)
    saved = {path.name for path in (repository.path / "my_model").iterdir()}
    assert saved == MODEL - {"checksums.json", "training_cost.json"} | {"generation_config.json"}


def test_another_test_length_trains_nothing(quick_repro, tmp_path):
    repository = quick_repro.copy(tmp_path / "repository")
    path = repository.path / "params.yaml"
    parameters = yaml.safe_load(path.read_text())
    parameters["datasets"]["s3"]["test"]["lengths"].append(96)
    path.write_text(yaml.safe_dump(parameters, sort_keys=False))
    output = repository.run("dvc", "repro", f"train_free@{RUN}", "train_baseline@s3_lstm")
    assert "Running stage 'prepare@s3'" in output
    assert "Running stage 'train" not in output
    assert (repository.path / "data" / "s3" / "test_L96" / "inputs.npy").exists()


def test_experiment_after_the_results_are_committed(quick_repro, tmp_path):
    repository = quick_repro.copy(tmp_path / "repository")
    commit(repository, "Results")
    settings = ("--set-param", "preset=quick", "--set-param", "evaluation.word_problem.window=4")
    output = repository.run("dvc", "exp", "run", "--name", "narrow", *settings)
    assert "Running stage 'train" not in output
    assert "Running stage 'sweep" not in output
    assert f"Running stage 'evaluate_benchmarks@{RUN}'" in output

    difference = json.loads(repository.run("dvc", "metrics", "diff", "--json"))
    changed = difference[f"results/runs/{RUN}/metrics.json"]
    assert changed["self_iterations.48"]["new"] > changed["self_iterations.48"]["old"]
    assert changed["evaluations_per_token.48"]["new"] < changed["evaluations_per_token.48"]["old"]
    shown = repository.run("dvc", "exp", "show", "--csv")
    assert "narrow" in shown
    assert "evaluation.word_problem.window" in shown


def test_an_upcycled_run_waits_for_its_source_and_follows_it(tmp_path):
    training = "baselines.s3_mamba2.training"
    short = (f"{training}.num_training_steps=20", f"{training}.decay_steps=5")
    short += (f"{training}.lengths.growth_steps=10",)
    repository = clone(tmp_path / "repository", "upcycled", *short)
    baseline, stage = "train_baseline@s3_mamba2", "train_upcycled_bounded@s3_upcycled_mamba2"
    output = repository.run("dvc", "repro", stage)
    assert re.findall(r"Running stage '(.*)'", output) == [
        "code",
        "prepare@s3",
        baseline,
        stage,
    ]
    changed = ("preset=upcycled", *short, "baselines.s3_mamba2.seed=1")
    commit(repository, "Results")
    settings = [word for setting in changed for word in ("--set-param", setting)]
    output = repository.run("dvc", "exp", "run", *settings, stage)
    assert re.findall(r"Running stage '(.*)'", output) == ["code", baseline, stage]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def forget(repository: Repository, stage: str) -> None:
    """Make DVC believe that a stage has never run, here or elsewhere."""
    path = repository.path / "dvc.lock"
    lock = yaml.safe_load(path.read_text())
    del lock["stages"][stage]
    path.write_text(yaml.safe_dump(lock, sort_keys=False))
    kind, _, entry = stage.partition("@")
    command, output = f".{kind}\n", f"results/runs/{entry}/{kind}.json"
    found = [
        record.parent
        for record in (repository.path / ".dvc" / "cache" / "runs").glob("*/*/*")
        if command in record.read_text() and output in record.read_text()
    ]
    assert found
    for folder in found:
        shutil.rmtree(folder)
