"""The command implicit-models, and `--help` of every command that the documents name."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from implicit_models import command
from implicit_models.parameters.composition import compose
from pipelines import cli, closing, terminal_process
from pipelines.model_names import ModelNameError, model_source
from pipelines.results import shown
from stages import generate
from tests import warm_python

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / name for name in ("README.md", "SECURITY.md", "Makefile")]
DOCUMENTS += sorted((ROOT / "docs").glob("*.md"))
OTHERS = ("pytest", "torch.distributed.run")
COMMANDS = (
    *("run", "check", "plan", "sweep", "report", "compare"),
    *("evaluate", "generate", "serve", "diagnose", "models", "groups", "presets"),
)


def documented() -> list[str]:
    text = "\n".join(path.read_text() for path in DOCUMENTS)
    modules = set(re.findall(r"python -m ([a-z_][\w.]*\w)", text)) - set(OTHERS)
    known = [
        each for each in modules if ROOT.joinpath(*each.split(".")).with_suffix(".py").exists()
    ]
    packages = [each for each in modules if ROOT.joinpath(*each.split("."), "__main__.py").exists()]
    scripts = set(re.findall(r"python (scripts/\w+\.py)", text))
    return sorted([*(f"-m {each}" for each in (*known, *packages)), *scripts])


@pytest.mark.slow
@pytest.mark.parametrize("documented", documented())
def test_every_documented_command_answers_help(documented):
    environment = os.environ | {"PATH": warm_python.before(os.environ["PATH"])}
    done = subprocess.run(
        ["python", *documented.split(), "--help"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "usage" in done.stdout.lower()
    assert len(done.stdout.split()) > 10  # more than its name


def test_documents_name_commands():
    found = documented()
    assert {"-m stages.plan", "-m pipelines.reproduce", "scripts/compose.py"} <= {*found}
    assert len(found) > 20


def test_the_page_of_commands_has_all_of_them():
    page = (ROOT / "docs" / "commands.md").read_text()
    named = set(re.findall(r"^\| `implicit-models (\w+)", page, re.MULTILINE))
    assert named == {*COMMANDS} == {each.callback.__name__ for each in cli.app.registered_commands}


@pytest.fixture
def clone(tmp_path):
    """Return a folder that is this repository with the preset laptop, whatever was run in it."""
    folder = tmp_path / "clone"
    folder.mkdir()
    for name in ("conf", "dvc.yaml"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "a_model").mkdir()
    (folder / "params.yaml").write_text(compose(ROOT, ["preset=laptop"]))
    return folder


@pytest.fixture
def invoke(monkeypatch, clone):
    """Return a function that runs the command line there; what it would start is kept instead."""
    monkeypatch.chdir(clone)
    started = []

    def call(arguments, **_):
        started.append(arguments[1:])
        return 0

    monkeypatch.setattr(terminal_process, "run_in_terminal", call)

    def run(*arguments: str, status: int = 0):
        done = CliRunner().invoke(cli.app, arguments)
        assert done.exit_code == status, done.output
        return done, started

    return run


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_an_example(invoke, name):
    done, _ = invoke(name, "--help")
    assert f"implicit-models {name}" in done.output
    assert "Usage" in done.output


def test_all_commands_are_listed(invoke):
    done, _ = invoke("--help")
    for name in COMMANDS:
        assert re.search(rf"^\W+{name} ", done.output, re.MULTILINE), name


def test_nothing_heavy_is_imported_to_answer():
    code = (
        "import sys; from pipelines import cli; from pathlib import Path; "
        "from pipelines.comparing import preset_table; preset_table(Path()); "
        "print([name for name in ('torch', 'dvc', 'prefect', 'mlflow', 'transformers') "
        "if name in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True) == "[]\n"


@pytest.mark.parametrize(
    ("given", "handed_over"),
    [
        (["check"], ["-m", "stages.check"]),
        (["check", "quick", "report.success_threshold=0.9"],
         ["-m", "stages.check", "quick", "report.success_threshold=0.9"]),
        (["plan", "quick", "gpus=2"], ["-m", "stages.plan", "quick", "gpus=2"]),
        (["sweep", "a.b=1,2", "--preset", "quick", "--jobs", "2", "--limit", "two"],
         ["-m", "pipelines.sweep", "a.b=1,2", "--jobs", "2", "--name", "sweep",
          "--preset", "quick", "--limit", "two"]),
        (["models"], ["-m", "implicit_models.families.sizes"]),
        (["generate", "openai-community/gpt2", "one", "--tokens", "3"],
         ["-m", "stages.generate", "openai-community/gpt2", "one",
          "--tokens", "3", "--temperature", "0.0", "--seed", "0"]),
        (["diagnose", "a5_lstm", "a_model", "--length", "40", "--dataset", "a5"],
         ["-m", "implicit_models.problems.word_problem.diagnose", "a5_lstm", "CLONE/a_model",
          "--length", "40", "--sequences", "256", "--radii", "8", "--exponents", "8",
          "--dataset", "a5"]),
        (["evaluate", "some/model", "--tasks", "piqa"],
         ["-m", "implicit_models.problems.downstream.evaluation.harness", "--model", "implicit",
          "--model_args", "pretrained=some/model", "--tasks", "piqa"]),
    ],
)  # fmt: skip
def test_commands_hand_over_to_what_exists(invoke, clone, given, handed_over):
    _, started = invoke(*given)
    assert started == [[each.replace("CLONE", str(clone)) for each in handed_over]]


@pytest.mark.parametrize(
    "arguments", [("generate", "a5_implicit_mamb2", "0"), ("evaluate", "gpt3", "--tasks", "piqa")]
)
def test_a_name_of_no_model_is_refused_without_the_hub(invoke, arguments):
    done, started = invoke(*arguments, status=2)
    assert started == [] and len(done.stderr.splitlines()) == 1
    assert f"error: {arguments[1]} is no entry of params.yaml (" in done.stderr
    assert "a5_implicit_mamba2" in done.stderr and "OWNER/NAME" in done.stderr


def test_an_entry_without_a_model_is_told_so(invoke, clone):
    with pytest.raises(ModelNameError, match="a5_lstm has no model yet.*dvc repro"):
        model_source(clone, "a5_lstm")


def test_a_folder_that_is_not_there_is_no_model_of_the_hub(tmp_path):
    (tmp_path / "models" / "a5_lstm").mkdir(parents=True)
    with pytest.raises(ModelNameError, match="models/nope is no folder; models has a5_lstm .a mod"):
        model_source(tmp_path, "models/nope")
    assert model_source(tmp_path, "owner/name") == "owner/name"
    assert model_source(tmp_path, "models/a5_lstm") == "models/a5_lstm"


def test_a_model_that_was_downloaded_has_a_name_without_an_owner(invoke, monkeypatch, tmp_path):
    (tmp_path / "models--gpt2").mkdir()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    _, started = invoke("generate", "gpt2", "one")
    assert started[0][:3] == ["-m", "stages.generate", "gpt2"]


def test_a_folder_below_will_do_and_elsewhere_is_said(invoke, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT / "docs")
    done, _ = invoke("presets")
    assert "ten_seeds" in done.output and "S3 instead of A5" in done.output
    monkeypatch.chdir(tmp_path)
    done, _ = invoke("presets", status=2)
    assert "is in no clone of the repository" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_groups_are_those_there_are(invoke):
    done, _ = invoke("groups")
    assert "A5: 60" in done.output and "monoid" in done.output and "A5 x M" in done.output


def test_what_groups_are_is_said(invoke):
    done, _ = invoke("groups", "A5", "S4 x Z2", "M", "A5 x M")
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in done.output.splitlines()]
    assert ["A5", "group", "60", "no", "no"] in rows
    assert ["S4 x Z2", "group", "48", "no", "yes"] in rows
    assert ["M", "monoid", "4", "no", "yes"] in rows
    assert ["A5 x M", "monoid", "240", "no", "no"] in rows
    done, _ = invoke("groups", "A5", "B5", status=2)
    assert done.stderr.startswith("error: 'B5' is not a known group: ") and not done.stdout


def test_an_installed_library_says_what_it_lacks(monkeypatch):
    monkeypatch.setitem(sys.modules, "pipelines.cli", None)
    monkeypatch.setattr(
        command.importlib,
        "import_module",
        lambda name: (_ for _ in ()).throw(ModuleNotFoundError(name=name)),
    )
    with pytest.raises(SystemExit, match="clone the repository"):
        command.main()


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Return a folder with a preset's parameters and the results of one run of each kind."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf" / "preset").mkdir(parents=True)
    (tmp_path / "dvc.yaml").write_text("stages: {}\n")
    (tmp_path / "params.yaml").write_text(
        "runs: {ours: {}}\nbaselines: {theirs: {}}\nreadings: {elsewhere: {}}\n"
    )
    runs = {}
    for name, kind, extra in (
        ("ours", "implicit", {"self_iterations": {"8": 4.5}}),
        ("theirs", "explicit", {}),
    ):
        folder = tmp_path / "results" / "runs" / name
        folder.mkdir(parents=True)
        metrics = {"accuracy_last_10": {"16": 0.5, "8": 0.875}, **extra}  # as text is sorted
        (folder / "metrics.json").write_text(json.dumps(metrics))
        runs[name] = {
            "kind": kind,
            "num_parameters": 1234,
            "training_flops": 2.5e9,
            "train_seconds": 3.25,
            "chance": {"accuracy_last_10": {"8": 0.86, "16": 0.45}},
            "standard_errors": {"accuracy_last_10": {"8": 0.02, "16": 0.04}},
        }
    reading = {
        "kind": "explicit",
        "model": "gpt2",
        "perplexity": 12.5,
        "num_parameters": 9,
        "num_tokens": 7,
    }
    summary = {"runs": runs, "readings": {"elsewhere": reading}, "benchmarks": {}}
    (tmp_path / "results" / "summary.json").write_text(json.dumps(summary))
    return tmp_path


def test_scores_have_their_errors_under_whatever_name():
    assert shown("accuracy.20", 0.75, 0.01) == "75.0% ± 2.0"
    assert shown("ARC-E", 0.245, 0.0305) == "0.245 ± 0.061"
    assert shown("accuracy.20", 0.75, 0.01, 0.72) == "75.0% ± 2.0"
    assert shown("accuracy.20", 0.25, 0.01, 0.72) == "25.0% ± 2.0 (chance)"
    assert shown("perplexity", 1234.5) == "1,234"
    assert shown("LAMBADA ppl", 12.5, 0.75) == "12.5 ± 1.5"


def test_closing_words_have_the_scores_of_all_entries(results):
    lines = closing.closing_words(results).splitlines()
    assert [" ".join(line.split()) for line in lines if line.startswith("  ours")] == [
        "ours implicit at 8: 87.5% ± 4.0 (chance) at 16: 50.0% ± 8.0 (chance)"
    ]
    assert "accuracy last 10 (±: two standard errors of the test data):" in lines
    assert any("theirs" in line and "50.0%" in line for line in lines)
    assert any("elsewhere" in line and "perplexity: 12.5" in line for line in lines)
    assert any("implicit-models compare ours theirs" in line for line in lines)


def test_perplexities_at_lengths_say_what_they_are(results):
    for name in ("ours", "theirs", "elsewhere"):
        metrics = {"perplexity": 7.5, "length_extrapolation": {"128": 8.25}}
        (results / "results" / "runs" / name).mkdir(exist_ok=True)
        (results / "results" / "runs" / name / "metrics.json").write_text(json.dumps(metrics))
    lines = closing.closing_words(results).splitlines()
    ours = next(" ".join(line.split()) for line in lines if line.startswith("  ours"))
    assert ours == "ours implicit perplexity: 7.5 perplexity at 128: 8.25"


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda path: path.unlink(), "no such file yet"),
        (lambda path: path.write_text("{"), "is damaged"),
        (lambda path: path.write_text('{"runs": {"other": {}}, "readings": {}, "benchmarks": {}}'),
         "lack elsewhere, ours, theirs and have other"),
    ],
)  # fmt: skip
def test_closing_words_say_what_results_are_not(results, spoil, said):
    spoil(results / "results" / "summary.json")
    (line,) = closing.closing_words(results).splitlines()
    assert said in line and "`dvc repro`" in line and "%" not in line


def test_a_command_gets_the_interrupt_and_is_waited_for():
    code = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGINT, lambda *_: (time.sleep(0.6), sys.exit(7)))\n"
        "import os; os.kill(os.getppid(), signal.SIGINT); os.kill(os.getpid(), signal.SIGINT)\n"
        "time.sleep(60)"
    )
    given = {"cwd": ROOT, "environment": os.environ}
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        terminal_process.run_in_terminal([sys.executable, "-c", code], **given)
    assert time.monotonic() - began >= 0.6
    killed = [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]
    assert terminal_process.run_in_terminal(killed, **given) == 137


def test_compare_shows_runs_side_by_side_and_names_the_closest(results):
    done = CliRunner().invoke(cli.app, ["compare", "ours", "theirs"])
    assert done.exit_code == 0
    cells = {
        row[1].strip(): [cell.strip() for cell in row[2:-1]]
        for line in done.output.splitlines()
        if len(row := line.split("│")) > 3
    }
    assert cells["accuracy last 10 at 16"] == ["50.0% ± 8.0 (chance)"] * 2
    assert cells["training FLOPs"] == ["2.50e+09", "2.50e+09"]
    assert cells["self iterations at 8"] == ["4.5", ""]
    done = CliRunner().invoke(cli.app, ["compare", "our", "theirs"])
    assert done.exit_code == 2
    assert done.stderr == (
        "error: params.yaml has no entry our; the closest is ours (valid: ours, theirs, "
        "elsewhere). Another preset's results come back with `implicit-models run PRESET`, from "
        "DVC's cache\n"
    )
    done = CliRunner().invoke(cli.app, ["compare", "ours"])
    assert done.exit_code == 2 and "ours is compared with nothing" in done.stderr


@pytest.mark.parametrize("content", ['{"accuracy_last_10": {"8": 0.5,', "[1, 2]"])
def test_damaged_metrics_are_a_line(results, content):
    (results / "results" / "runs" / "ours" / "metrics.json").write_text(content)
    done = CliRunner().invoke(cli.app, ["compare", "ours", "theirs"])
    assert done.exit_code == 2 and done.stderr.count("\n") == 1
    assert "results/runs, is damaged (" in done.stderr and "`dvc repro` mends it" in done.stderr


def test_names_are_checked_before_results_are_asked_for(results):
    (results / "results" / "summary.json").unlink()
    for names, said in (
        (["our", "theirs"], "no entry our"),
        (["ours", "theirs"], "summary.json: no such"),
    ):
        done = CliRunner().invoke(cli.app, ["compare", *names])
        assert done.exit_code == 2 and said in done.stderr


def test_a_report_of_nothing_is_refused(invoke, monkeypatch, tmp_path):
    shutil.copytree(ROOT / "conf", tmp_path / "conf")
    shutil.copy(ROOT / "dvc.yaml", tmp_path)
    monkeypatch.chdir(tmp_path)
    done, started = invoke("report", status=2)
    assert started == [] and "no results yet; `implicit-models run PRESET`" in done.stderr


def test_a_seed_that_torch_cannot_take_is_refused(invoke):
    _, started = invoke("generate", "gpt2/x", "1", "--seed", str(2**63), status=2)
    assert started == []


@pytest.mark.parametrize("temperature", ["nan", "inf", "-1"])
def test_a_temperature_that_is_none_is_refused_before_a_model_is_loaded(
    temperature, monkeypatch, capsys
):
    words = ["generate", "gpt2/x", "1", "--temperature", temperature]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit, match="2"):
        generate._run()
    assert "allowed are --tokens from 1, --temperature from 0 (finite)" in capsys.readouterr().err


def test_a_run_without_a_preset_is_refused(invoke):
    done, started = invoke("run", "report.success_threshold=0.9", status=2)
    assert started == [] and "no preset is named before report.success" in done.stderr
    done, started = invoke("run", "quick", "preset=laptop", status=2)
    assert started == [] and "quick and laptop are named" in done.stderr
