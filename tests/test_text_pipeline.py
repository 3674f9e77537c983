"""The whole pipeline on text and on the downstream tasks, in a clone, with tiny models."""

import json
import random
from pathlib import Path

import pytest

from tests.repositories import Repository, clone
from tests.stages.tiny import write_tasks

RUN, BASELINE, MATCHED = "text_implicit_mamba2", "text_mamba2", "text_mamba2_same_flops"
COLUMNS = ("LAMBADA", "HellaSwag", "PIQA", "ARC-E", "ARC-C", "WinoGrande", "OpenbookQA")
MODEL = {"num_layers": 1, "d_model": 32, "d_state": 8, "head_dim": 16}
LENGTHS = {"minimum": 32, "start": 32, "end": 32}

pytestmark = pytest.mark.slow


def settings() -> list[str]:
    changed = {
        "corpora.text.sequence_length": 32,
        f"runs.{RUN}.bounded.num_training_steps": 6,
        f"runs.{RUN}.free.num_training_steps": 4,
        f"runs.{RUN}.free.decay_steps": 2,
        f"runs.{RUN}.free.max_steps": 6,
        f"baselines.{BASELINE}.training.num_training_steps": 10,
        f"baselines.{BASELINE}.training.decay_steps": 4,
        f"matched.{MATCHED}.training.num_training_steps": 10,
        f"matched.{MATCHED}.training.decay_steps": 4,
        "monitoring.validate_every": 10,
        "monitoring.validation_sequences": 4,
        "evaluation.text.context_length": 32,
        "evaluation.text.stride": 16,
        "evaluation.text.max_tokens": 600,
        "evaluation.text.lengths": "[32,64]",
        "evaluation.text.num_sequences": 4,
        "evaluation.text.num_shown_tokens": 40,
        "evaluation.text.bootstrap_samples": 20,
        "sweep.text.length": 32,
        "sweep.text.num_sequences": 2,
        "sweep.text.self_iterations": "[1,2,4]",
        "sweep.text.tolerances": "[0.3,0.1]",
        "sweep.text.bootstrap_samples": 20,
        "readings.again.model": f"models/{BASELINE}/final",
        "readings.again.corpus": "text",
    }
    models = {f"runs.{RUN}": ("bounded", "free"), f"baselines.{BASELINE}": ("training",)}
    models[f"matched.{MATCHED}"] = ("training",)
    for entry, phases in models.items():
        changed[f"{entry}.optimisation.warmup_steps"] = 2
        changed |= {f"{entry}.model.{key}": value for key, value in MODEL.items()}
        for phase in phases:
            changed |= {f"{entry}.{phase}.lengths.{key}": n for key, n in LENGTHS.items()}
    for name in (RUN, BASELINE, MATCHED):
        changed[f"benchmarks.{name}_downstream.max_length"] = 128
        changed[f"benchmarks.{name}_downstream.bootstrap_samples"] = 20
    return [f"++{key}={value}" for key, value in changed.items()]


def write_text(folder: Path) -> None:
    words = ("the", "river", "was", "slow", "and", "a", "boat", "went", "down", "with", "no", "oar")
    draw = random.Random(0)
    for split, count in (("train", 6), ("validation", 2), ("test", 2)):
        for number in range(count):
            path = folder / split / f"{number}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(" ".join(draw.choice(words) for _ in range(200)) + ".\n")


@pytest.fixture(scope="module")
def repository(tmp_path_factory) -> Repository:
    path = tmp_path_factory.mktemp("text") / "repository"
    write_text(path / "text")
    found = clone(path, "downstream", *settings())
    write_tasks(path / "tasks")
    found.outputs.append(found.run("dvc", "repro"))
    return found


def read(repository: Repository, *path: str) -> dict:
    return json.loads(repository.path.joinpath("results", *path).read_text())


def test_scores_are_in_the_summary_under_the_papers_columns(repository):
    summary = read(repository, "summary.json")
    for name in (RUN, BASELINE, MATCHED):
        row = summary["benchmarks"][f"{name}_downstream"]
        accuracies = [row[column] for column in COLUMNS]
        assert all(0 <= accuracy <= 1 for accuracy in accuracies)
        assert row["average"] == pytest.approx(sum(accuracies) / 7)
        assert row["LAMBADA ppl"] > 1
        (downstream,) = summary["runs"][name]["downstream"].values()
        assert downstream == {column: row[column] for column in downstream}
        assert set(downstream) == {"LAMBADA ppl", *COLUMNS, "average"}
        assert 1 < summary["runs"][name]["perplexity"] < 250  # untrained, it is about 257
    report = (repository.path / "results" / "report.md").read_text()
    for column in COLUMNS:
        assert column in report


def test_the_matched_baseline_costs_what_the_run_did(repository):
    runs = read(repository, "summary.json")["runs"]
    one_step = runs[BASELINE]["training_flops"] / 10
    assert abs(runs[MATCHED]["training_flops"] - runs[RUN]["training_flops"]) <= one_step / 2
    assert runs[RUN]["training_flops"] > 2 * runs[BASELINE]["training_flops"]


def test_every_test_token_is_scored_once(repository):
    metrics = read(repository, "runs", RUN, "evaluation.json")
    assert sum(document["num_tokens"] for document in metrics["documents"]) == 600
    assert metrics["perplexity"]["num_tokens"] == metrics["perplexity"]["num_bytes"] == 600
    assert metrics["cost"]["flops"] > 0


def test_a_reading_of_a_models_own_corpus_is_its_evaluation(repository):
    own = read(repository, "runs", BASELINE, "evaluation.json")
    again = read(repository, "runs", "again", "evaluation.json")
    assert again["entry"] == BASELINE
    for part in ("perplexity", "domains"):
        assert again[part] == own[part]


def test_the_model_carries_its_tokenizer(repository):
    model = repository.path / "models" / RUN / "final"
    same = repository.path / "data" / "text" / "tokenizer.json"
    assert (model / "tokenizer.json").read_bytes() == same.read_bytes()


def test_models_stop_at_the_end_of_a_text(repository):
    end = json.loads((repository.path / "data" / "text" / "manifest.json").read_text())[
        "end_of_text"
    ]
    for name in (RUN, BASELINE):
        for file in ("config.json", "generation_config.json"):
            saved = json.loads((repository.path / "models" / name / "final" / file).read_text())
            assert saved["eos_token_id"] == end


def test_a_changed_text_is_noticed_and_changed_tasks_retrain_nothing(repository, tmp_path):
    other = repository.copy(tmp_path / "repository")
    assert stale(other) == set()
    tasks = other.path / "tasks" / "piqa.jsonl"
    tasks.write_text(tasks.read_text().splitlines()[0] + "\n")
    text = other.path / "text" / "train" / "0.txt"
    assert stale(other) == {"prepare_tasks@downstream"}
    text.write_text(text.read_text() + "more")
    assert stale(other) == {"prepare_tasks@downstream", "prepare_corpus@text"}


def stale(repository: Repository) -> set[str]:
    return set(json.loads(repository.run("dvc", "status", "--json")))


def test_a_text_in_another_tokenizer_is_refused(repository, tmp_path):
    other = repository.copy(tmp_path / "repository")
    path = other.path / "models" / RUN / "final" / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    tokenizer["normalizer"] = {"type": "Lowercase"}
    path.write_text(json.dumps(tokenizer))
    process = other.start("python", "-m", "stages.evaluation.evaluate_benchmarks", RUN)
    output = process.communicate()[0]
    assert process.returncode == 2
    assert "data/text was made with another tokenizer" in output


def test_a_killed_evaluation_finds_its_answers_again(repository):
    code = f"""
from pathlib import Path

from implicit_models.problems.downstream.evaluation import interface
from implicit_models.problems.downstream.parameters import BenchmarkParameters
from implicit_models.parameters import read_section

def stop(*_, store, **__):
    print(store.path, store.identity)
    raise SystemExit

interface.evaluate_tasks = stop
entry = read_section("benchmarks.{RUN}_downstream", BenchmarkParameters)
interface.evaluate(Path(entry.model), Path("data", entry.tasks), entry)
"""
    module = repository.path / "stages" / "stopped.py"  # a module of stages is started fast here
    module.write_text(code)
    command = ("python", "-m", "stages.stopped")
    first, second = (repository.run(*command).splitlines()[-1] for _ in range(2))
    assert "checkpoints/evaluation" in first
    assert first == second
