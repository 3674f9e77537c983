"""`run_experiment` and `implicit-models run`: from a preset to its results, through real DVC."""

import json
import shutil
import sys

import pytest

from pipelines import experiment as module
from pipelines import run_experiment
from pipelines.results import read_results
from tests import warm_python
from tests.markdown import python_blocks
from tests.repositories import ROOT, clone

RUN, BASELINE = "s3_implicit_mamba2", "s3_lstm"
SMALL = {"optimisation.batch_size": 8, "optimisation.warmup_steps": 1}
SETTINGS = [
    *("~baselines.s3_gpt2", "~baselines.s3_mamba2_1_layer"),
    *(
        f"{table}.{key}={value}"
        for table in (f"runs.{RUN}", f"baselines.{BASELINE}")
        for key, value in SMALL.items()
    ),
    f"runs.{RUN}.bounded.num_training_steps=2",
    f"runs.{RUN}.bounded.lengths.growth_steps=1",
    f"runs.{RUN}.free.num_training_steps=3",
    f"runs.{RUN}.free.decay_steps=1",
    f"runs.{RUN}.free.lengths.growth_steps=1",
    f"baselines.{BASELINE}.training.num_training_steps=3",
    f"baselines.{BASELINE}.training.decay_steps=1",
    f"baselines.{BASELINE}.training.lengths.growth_steps=1",
    "datasets.s3.train.num_sequences=512",
    "monitoring.validation_sequences=8",
    "evaluation.word_problem.lengths=[12,24]",
    "evaluation.word_problem.num_sequences=8",
    "evaluation.word_problem.num_mode_sequences=1",
    "evaluation.word_problem.max_steps=8",
    "sweep.word_problem.num_sequences=2",
    "sweep.word_problem.self_iterations=[1,2]",
    "sweep.word_problem.tolerances=[0.3]",
    "sweep.word_problem.max_steps=8",
]
FOUND = """
import json
print("FOUND " + json.dumps({
    name: [entry.table, entry.kind, dict(entry.metrics), dict(entry.costs), str(entry.model)]
    for name, entry in results.entries.items()
}))
print(results.report.exists() and results.summary.exists())
"""


def experiment_of_the_documentation() -> str:
    """Return the lines of docs/commands.md, with smaller settings, and what tells their results."""
    (block,) = [b for b in python_blocks(ROOT / "docs" / "commands.md") if "run_experiment" in b]
    settings = '["runs.s3_implicit_mamba2.seed=1"]'
    assert settings in block
    return block.replace(settings, repr(SETTINGS)) + FOUND


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    """Yield a clone in which an experiment has run, and what that has printed."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in warm_python.for_own_processes().items():
            patch.setenv(name, value)
        made = clone(tmp_path_factory.mktemp("experiment"), "laptop")
        yield made, made.run(sys.executable, "-c", experiment_of_the_documentation())


def test_it_says_where_the_parameters_before_are_kept(tmp_path, monkeypatch, capfd):
    shutil.copytree(ROOT / "conf", tmp_path / "conf")
    (tmp_path / "params.yaml").write_text("mine: 1\n")
    monkeypatch.setattr(module, "reproduce", lambda root: 0)
    monkeypatch.setattr(module, "read_results", lambda root: "results")
    said = [(run_experiment("quick", root=tmp_path), capfd.readouterr().err) for _ in range(2)]
    (kept,) = (tmp_path / ".dvc" / "tmp" / "parameters").glob("params-*.yaml")
    assert kept.read_text() == "mine: 1\n"
    line = f"the params.yaml that was there is kept as {kept.relative_to(tmp_path)}\n"
    assert said == [("results", line), ("results", "")]


def test_results_are_those_of_the_entries(experiment):
    made, output = experiment
    found = json.loads(output.split("FOUND ")[1].splitlines()[0])
    assert list(found) == [RUN, BASELINE]
    assert output.rstrip().endswith("True")
    table, kind, metrics, costs, model = found[RUN]
    assert (table, kind) == ("runs", "implicit")
    accuracies = {name: value for name, value in metrics.items() if name.startswith("accuracy")}
    assert accuracies.keys() == {"accuracy_last_10.12", "accuracy_last_10.24"}
    assert all(0 <= value <= 1 for value in accuracies.values())
    assert costs["num_parameters"] > 0 and costs["training_flops"] > 0
    assert (made.path / "models" / RUN / "final").samefile(model)
    assert found[BASELINE][0] == "baselines"


def test_stages_say_their_number_and_nothing_buries_it(experiment):
    _, output = experiment
    numbers = [line for line in output.splitlines() if line.startswith("stage ")]
    assert numbers == [f"stage {number} of 9" for number in range(1, 10)]
    assert "won't be created" not in output


def test_the_command_runs_nothing_anew_and_ends_with_scores_report_and_next_step(experiment):
    made, _ = experiment
    command = (sys.executable, "-m", "pipelines.cli")
    output = made.run(*command, "run", "quick", *SETTINGS)
    assert "Running stage" not in output
    end = output[output.index("accuracy last 10 (±") :]
    assert RUN in end and BASELINE in end
    assert "report   results/report.html" in end
    assert f"implicit-models compare {RUN} {BASELINE}" in end

    table = made.run(*command, "compare", RUN, BASELINE)
    assert "training FLOPs" in table and "accuracy last 10 at 24" in table
    continued = made.run(*command, "generate", RUN, "1 2 3", "--tokens", "4").splitlines()[-1]
    assert continued.startswith("1 2 3 ") and len(continued.split()) == 7
    for model, prompt, said in (
        (BASELINE, "1 2 3", "of the type implicit_models_lstm, which generates nothing"),
        (RUN, "1 six 3", "'six', and the model has no tokenizer; allowed are numbers from 0 to 5"),
    ):
        process = made.start(*command, "generate", model, prompt)
        assert said in process.communicate()[0]
        assert process.returncode == 2

    found = read_results(made.path).entries[RUN]
    name = next(iter(found.errors))
    assert found.errors.keys() <= found.metrics.keys()
    scores = made.path / "results" / "runs" / RUN / "metrics.json"
    content = json.loads(scores.read_text())
    key, _, last = name.partition(".")
    content[key][last] += 0.01  # as of an evaluation after the report
    scores.write_text(json.dumps(content))
    after = read_results(made.path).entries[RUN]
    assert found.errors.keys() - after.errors.keys() == {name}

    words = made.run(sys.executable, "scripts/compose.py", "laptop")
    assert "the params.yaml that was there is kept as .dvc/tmp/parameters/params-" in words
    words = made.run(sys.executable, "-m", "pipelines.closing")
    assert "results/summary.json is of other entries than params.yaml" in words
    assert "accuracy last 10" not in words
