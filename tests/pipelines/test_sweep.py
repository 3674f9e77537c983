import csv
import errno
import json
import shutil
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from implicit_models.parameters.composition import preset_of
from pipelines.sweeps.comparison import Row, headline, markdown, read_summary, write
from pipelines.sweeps.points import Point, SweepError, changed_keys, read_origin
from pipelines.sweeps.points import plan as plan_from
from pipelines.sweeps.workspaces import Workspace, is_done, shared_stages
from tests.pipelines.test_faults import cancel_in_prefect
from tests.pipelines.tiny import Project, kill_its_server, wait_until

pytestmark = pytest.mark.filterwarnings("ignore:_NoneStep.value:DeprecationWarning")  # DVC's

TRAIN = """\
import json, os, pathlib, sys, time, yaml
run = yaml.safe_load(open("params.yaml"))["runs"]["x"]
if run["steps"] == 13:
    sys.exit("thirteen steps are too many")
checkpoint = pathlib.Path("checkpoints/step")
resumed = checkpoint.exists()
checkpoint.parent.mkdir(exist_ok=True)
checkpoint.touch()
if run["steps"] >= 97:
    with open(run["mark"], "a") as file:
        file.write("begun\\n")
if run["steps"] == 99 and not resumed:
    time.sleep(600)
while run["steps"] == 98 and not pathlib.Path(run["mark"] + ".go").exists():
    time.sleep(0.05)
folder = pathlib.Path("results/runs/x")
folder.mkdir(parents=True, exist_ok=True)
gpu = int(os.environ.get("CUDA_VISIBLE_DEVICES", -1))
score = run["steps"] * 10 + run["seed"]
text = json.dumps({"score": score, "resumed": resumed, "gpu": gpu})
(folder / "metrics.json").write_text(text)
"""
STAGES = {
    "prepare": {
        "cmd": "echo prepared >> %s; cat text/words > data.txt",
        "deps": ["text"],
        "params": ["shared"],
        "outs": ["data.txt"],
    },
    "train": {
        "cmd": "python train.py",
        "deps": ["data.txt", "train.py"],
        "params": ["runs"],
        "metrics": [{"results/runs/x/metrics.json": {"cache": False}}],
    },
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory, use) -> Project:
    """A project in git, with a preset, whose training fails with thirteen steps.

    Its text is a user's own, which git has not got. The machine has two GPUs.
    """
    path = tmp_path_factory.mktemp("sweep") / "repository, #1"
    preset = {"runs": {"x": {"steps": 1, "seed": 0, "mark": str(path.parent / "mark")}}}
    preset["shared"] = 1  # type: ignore[assignment]
    preset["corpora"] = {"words": {"source": "text"}}
    stages = {**STAGES}
    stages["prepare"] = {
        **STAGES["prepare"],
        "cmd": STAGES["prepare"]["cmd"] % (path.parent / "prepared"),
    }
    files = {
        ".dvc/config": "[core]\n    analytics = false\n[hydra]\n    enabled = true\n",
        ".dvc/.gitignore": "/tmp\n/cache\n/config.local\n",
        ".gitignore": "/.prefect/\n/results/sweeps/\n/checkpoints/\n/text/\n",
        "conf/config.yaml": "defaults:\n  - preset: small\n  - _self_\n",
        "conf/preset/small.yaml": "# @package _global_\n" + yaml.safe_dump(preset),
        "params.yaml": yaml.safe_dump(preset),
        "dvc.yaml": yaml.safe_dump({"stages": stages}),
        "train.py": TRAIN,
        "text/words": "data\n",
    }
    for name, text in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    git(path, "init", "--quiet")
    git(path, "config", "user.name", "Test")
    git(path, "config", "user.email", "test@example.org")
    git(path, "add", "--all")
    git(path, "commit", "--quiet", "--message", "A project")
    return use(Project(path, {"IMPLICIT_MODELS_GPUS": "5,6"}))


def plan(repository: Path, *arguments) -> list[Point]:
    """Plan from the code as it is."""
    return plan_from(repository, read_origin(repository), *arguments)


def git(path: Path, *arguments: str) -> str:
    return subprocess.check_output(["git", *arguments], cwd=path, text=True)


def table(repository: Project, name: str) -> list[dict[str, str]]:
    with (repository.path / f"results/sweeps/{name}.csv").open() as file:
        return list(csv.DictReader(file))


def test_points_are_the_product_of_the_values(repository):
    points = plan(repository.path, "s", ["runs.x.steps=1,2", "runs.x.seed=range(0,3)", "shared=5"])
    runs = [(p.parameters["runs"]["x"]["steps"], p.parameters["runs"]["x"]["seed"]) for p in points]
    assert runs == [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2)]
    assert {p.parameters["shared"] for p in points} == {5}
    assert points[4].label == "runs.x.steps=2 runs.x.seed=1"  # and not what is the same in all
    assert len({p.name for p in points}) == 6
    assert changed_keys(points) == {"runs.x.steps", "runs.x.seed"}


def test_another_text_of_ones_own_is_another_point(repository):
    text = repository.path / "text" / "words"
    before = plan(repository.path, "s", ["shared=5"])
    text.write_text("others\n")
    others = plan(repository.path, "s", ["shared=5"])
    text.write_text("data\n")
    again = plan(repository.path, "s", ["shared=5"])
    assert before[0].name == again[0].name != others[0].name


def test_the_comparison_is_whole_or_as_it_was(repository, monkeypatch):
    (point,) = plan(repository.path, "kept", ["shared=5"])
    pages = [repository.path / f"results/sweeps/kept.{kind}" for kind in ("csv", "md")]
    write(repository.path, "kept", [Row(point, "done")])
    before = [page.read_bytes() for page in pages]
    assert before[0].startswith(b"experiment,state,shared\r\nkept-")

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("implicit_models.files.sync", full)
    with pytest.raises(OSError, match="No space left"):
        write(repository.path, "kept", [Row(point, "failed")])
    assert [page.read_bytes() for page in pages] == before


def test_a_comparison_of_other_points_is_kept(repository, caplog):
    first, second = plan(repository.path, "s", ["shared=5,6"])
    folder = repository.path / "results" / "sweeps"
    write(repository.path, "s", [Row(first, "failed")])
    write(repository.path, "s", [Row(first, "done"), Row(second, "done")])
    assert not caplog.messages and len(list(folder.glob("s.*"))) == 2
    both = (folder / "s.csv").read_text(), (folder / "s.md").read_text()
    write(repository.path, "s", [Row(second, "done")])
    (kept,) = set(folder.glob("s-*.csv"))
    assert (kept.read_text(), kept.with_suffix(".md").read_text()) == both
    assert caplog.messages[0].endswith(f"is kept as results/sweeps/{kept.stem}.md")
    assert first.name not in (folder / "s.csv").read_text()


@pytest.mark.parametrize(
    ("defaults", "overrides", "name"),
    [
        ("[preset: small, _self_]", [], "small"),
        ("[preset: small, _self_]", ["preset='large.yaml'", "shared=1"], "large"),
        ("[shared/tables, optional preset: small.yaml]", [], "small"),
        ("[_self_]", ["+preset=large"], "large"),
        ("[_self_]", [], None),
        ("[preset: null]", [], None),
        ("", [], None),
    ],
)
def test_the_preset_of_a_point(defaults, overrides, name, tmp_path):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/config.yaml").write_text(f"defaults: {defaults}\n")
    assert preset_of(tmp_path, overrides) == name


def test_a_point_is_what_it_computes_however_it_is_written(repository):
    (one,) = plan(repository.path, "s", ["runs.x.steps=1"])
    (same,) = plan(repository.path, "s", ["runs.x.seed=0"], "small")
    (other,) = plan(repository.path, "s", ["runs.x.seed=7"])
    assert one.name == same.name != other.name
    code = repository.path / "train.py"
    try:
        code.write_text(TRAIN + "# changed\n")
        (changed,) = plan(repository.path, "s", ["runs.x.steps=1"])
    finally:
        code.write_text(TRAIN)
    assert changed.name != one.name


@pytest.mark.parametrize(
    ("override", "preset", "words"),
    [
        (
            "runs.x.stepz=1",
            None,
            [
                "runs.x.stepz does not exist",
                "key is runs.x.steps",
                "as no other is named (--preset)",
            ],
        ),
        ("runs.x.steps=1", "smal", ["there is no preset smal", "closest is small"]),
        ("runs.x.steps", None, ["runs.x.steps is no override", "KEY=VALUE"]),
        ("runs.x.steps=[1", None, ["is no override"]),
        ("runs.x.steps=range(5,1)", None, ["it has no values"]),
        ("=1", None, ["the key is missing"]),
        ("runs.x.steps=${nope}", None, ["'nope'"]),
        ("runs={a:1},{b:2}", None, ["Could not override 'runs'"]),
    ],
)
def test_mistakes_are_told_in_one_line(repository, override, preset, words):
    with pytest.raises(SweepError) as error:
        plan(repository.path, "s", [override], preset)
    assert all(word in str(error.value) for word in words)
    assert "\n" not in str(error.value)


def test_a_key_is_given_once(repository):
    with pytest.raises(SweepError, match="runs.x.seed is given twice.*runs.x.seed=A,B"):
        plan(repository.path, "s", ["runs.x.seed=1", "+runs.x.seed=2"])


def test_without_git_there_are_no_experiments(tmp_path):
    with pytest.raises(SweepError, match="there is no dvc.yaml here"):
        plan(tmp_path, "s", ["a=1"])
    (tmp_path / "dvc.yaml").write_text("stages: {}\n")
    with pytest.raises(SweepError, match="no commit here: `git init"):
        plan(tmp_path, "s", ["a=1"])
    git(tmp_path, "init", "--quiet")
    identity = ("-c", "user.name=Test", "-c", "user.email=test@example.org")
    git(tmp_path, *identity, "commit", "--quiet", "--allow-empty", "--message", "Empty")
    with pytest.raises(SweepError, match="git add dvc.yaml"):
        plan(tmp_path, "s", ["a=1"])


def test_shared_stages_are_those_that_no_changed_parameter_reaches(repository):
    assert shared_stages(repository.path, {"runs.x.steps"}) == ["dvc.yaml:prepare"]
    assert shared_stages(repository.path, {"shared"}) == []
    assert shared_stages(repository.path, {"elsewhere"}) == [
        "dvc.yaml:prepare",
        "dvc.yaml:train",
    ]


def test_a_workspace_has_uncommitted_changes_and_the_checkpoints_of_its_last_attempt(
    repository, tmp_path
):
    code, preset = repository.path / "train.py", Path("conf", "preset", "mine.yaml")
    modules = [Path(each, "mine.py") for each in ("implicit_models", "stages")]
    note = Path("note.txt")
    changed = b"# caf\xe9\r\n"  # neither UTF-8 nor the line end of this machine
    git(repository.path, "config", "diff.noprefix", "true")
    git(repository.path, "config", "color.ui", "always")
    try:
        code.write_bytes(changed)
        (repository.path / preset).write_text("shared: 2\n")  # which git has not got yet
        for module in modules:
            (repository.path / module).parent.mkdir()
            (repository.path / module).write_text("STEPS = 3\n")
        (repository.path / note).write_text("no code\n")
        origin = read_origin(repository.path)
        assert "mine.yaml" in git(repository.path, "status", "--porcelain", "--untracked-files")
    finally:
        code.write_text(TRAIN)
        (repository.path / preset).unlink()
        (repository.path / note).unlink(missing_ok=True)
        for module in modules:
            shutil.rmtree((repository.path / module).parent, ignore_errors=True)
        git(repository.path, "config", "--unset", "diff.noprefix")
        git(repository.path, "config", "--unset", "color.ui")
    folder = tmp_path / "workspace"
    Workspace(repository.path, folder, origin).prepare(tmp_path / "cache", {})
    assert (folder / "train.py").read_bytes() == changed
    assert (folder / preset).read_text() == "shared: 2\n"
    assert all((folder / module).read_text() == "STEPS = 3\n" for module in modules)
    assert not (folder / note).exists()
    workspace = Workspace(repository.path, folder, read_origin(repository.path))
    (workspace.folder / "checkpoints").mkdir()
    (workspace.folder / "checkpoints" / "step").write_text("3")
    (workspace.folder / "data.txt").write_text("half written")
    workspace.prepare(tmp_path / "cache", {})
    assert (workspace.folder / "checkpoints" / "step").read_text() == "3"
    assert (workspace.folder / "train.py").read_text() == TRAIN
    assert not (workspace.folder / "data.txt").exists()


def test_the_table_shows_what_differs_and_headline_metrics_first():
    def row(steps: int, state: str, **metrics: float) -> Row:
        point = Point(f"s-{steps}", "", (f"steps={steps}", "same=1"), {})
        return Row(
            point, state, metrics and {f"runs/x/metrics.json:{k}": v for k, v in metrics.items()}
        )

    rows = [
        row(1, "done", score=0.25, rate=1.0),
        row(2, "done", score=0.5, rate=1.0),
        row(3, "failed"),
    ]
    assert headline(rows) == ["runs/x/metrics.json:score"]
    assert markdown(rows).splitlines() == [
        "| steps | score | state | experiment |",
        "|---|--:|---|---|",
        "| 1 | 0.25 | done | s-1 |",
        "| 2 | 0.5 | done | s-2 |",
        "| 3 |  | failed | s-3 |",
    ]
    both = [
        replace(row, metrics={**row.metrics, "runs/y/metrics.json:score": 7}) for row in rows[:2]
    ]
    both[0] = replace(both[0], metrics={**both[0].metrics, "runs/y/metrics.json:score": 8})
    assert markdown(both).splitlines()[0] == "| steps | x score | y score | state | experiment |"


def test_the_table_has_costs_and_how_sure_accuracies_are():
    def row(steps: int, accuracy: float) -> Row:
        known = {
            "results/runs/x/metrics.json:accuracy_last_10.48": accuracy,
            "results/summary.json:x.standard_errors.accuracy_last_10.48": 0.02,
            "results/summary.json:x.chance.accuracy_last_10.48": 0.0175,
            "results/summary.json:x.train_seconds": steps * 2.25,
            "results/summary.json:x.training_flops": steps * 1e9,
        }
        return Row(Point(f"s-{steps}", "", (f"steps={steps}",), {}), "done", known)

    assert markdown([row(1, 0.02344), row(2, 0.5)]).splitlines() == [
        "| steps | accuracy_last_10.48 | train seconds | training FLOPs | state | experiment |",
        "|---|--:|--:|--:|---|---|",
        "| 1 | 2.3% ± 4.0 (chance) | 2.2 | 1.00e+09 | done | s-1 |",
        "| 2 | 50.0% ± 4.0 | 4.5 | 2.00e+09 | done | s-2 |",
        "",
        "±: two standard errors of the test data.",
    ]


def test_costs_come_from_the_summary_of_an_experiment(tmp_path):
    run = {"train_seconds": 3.5, "standard_errors": {"accuracy": {"8": 0.1}}, "kind": "implicit"}
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "summary.json").write_text(json.dumps({"runs": {"x": run}}))
    identity = ("-c", "user.name=x", "-c", "user.email=x@example.org")
    for command in (("init", "-q"), ("add", "."), (*identity, "commit", "-qm", "point")):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    assert read_summary(tmp_path, "HEAD") == {
        "results/summary.json:x.train_seconds": 3.5,
        "results/summary.json:x.standard_errors.accuracy.8": 0.1,
    }
    assert read_summary(tmp_path, "HEAD~7") == {}


@pytest.mark.slow
def test_points_run_in_parallel_workspaces_and_failures_stop_nobody(repository):
    before = (repository.path / "params.yaml").read_text()
    command = ("-m", "pipelines.sweep", "runs.x.steps=1,13,2", "--jobs", "2", "--name", "steps")
    said = repository.run(*command, status=1)
    assert "applied to your workspace" not in said  # which is a clone's
    assert "3 points of small, 2 at once\n" in said  # the preset that nothing named
    rows = table(repository, "steps")
    score = "results/runs/x/metrics.json:score"
    assert [(row["runs.x.steps"], row["state"], row[score]) for row in rows] == [
        ("1", "done", "10"),
        ("13", "failed", ""),
        ("2", "done", "20"),
    ]
    assert {row["results/runs/x/metrics.json:gpu"] for row in rows} <= {"5", "6", ""}
    # What is the same in all points ran once; the user's files are as they were.
    assert len((repository.path.parent / "prepared").read_text().splitlines()) == 1
    assert (repository.path / "params.yaml").read_text() == before
    assert git(repository.path, "status", "--porcelain") == ""
    # The experiments are DVC's.
    listed = repository.run("-m", "dvc", "exp", "list", "--names-only").split()
    assert set(listed) == {rows[0]["experiment"], rows[2]["experiment"]}
    state, tasks = repository.states()
    assert state == "Failed"
    assert tasks["runs.x.steps=1"] == tasks["runs.x.steps=2"] == "Completed"
    assert tasks["runs.x.steps=13"] == "Failed"
    # Again, with another point: only that one runs.
    repository.run(*command[:2], "runs.x.steps=1,2,3", "--name", "steps")
    states = {row["runs.x.steps"]: row["state"] for row in table(repository, "steps")}
    assert states == {"1": "already there", "2": "already there", "3": "done"}


def marked(repository: Project, name: str) -> tuple[Path, str]:
    """Return the file that a training with many steps writes as it begins, and its override."""
    mark = repository.path.parent / name
    return mark, f"runs.x.mark={mark}"


@pytest.mark.slow
@pytest.mark.parametrize(("by", "status"), [("SIGTERM", 143), ("Prefect", 143)])
def test_a_stopped_point_goes_on_from_its_checkpoint(repository, by, status):
    mark, override = marked(repository, f"stopped-by-{by}")
    command = ("-m", "pipelines.sweep", "runs.x.steps=99,4", override, "--name", mark.name)
    process = repository.start(*command)
    wait_until(lambda: mark.exists() or process.poll() is not None)
    if by == "Prefect":
        cancel_in_prefect(repository)
    else:
        process.send_signal(signal.Signals[by])
    output = process.communicate(timeout=90)[0]
    assert process.returncode == status, output
    assert "stopped; the same command goes on from there" in output
    assert "Traceback" not in output
    assert [row["state"] for row in table(repository, mark.name)] == ["stopped", "stopped"]
    state, tasks = repository.states()
    assert (state, set(tasks.values())) == ("Cancelled", {"Cancelled"})
    origin = read_origin(repository.path)
    point, _ = plan(repository.path, mark.name, ["runs.x.steps=99,4", override])
    assert not is_done(repository.path, origin, point)
    if by == "SIGTERM":
        repository.run(*command)
        rows = table(repository, mark.name)
        assert [row["state"] for row in rows] == ["done", "done"]
        resumed = [row["results/runs/x/metrics.json:resumed"] for row in rows]
        assert resumed == ["True", "False"]
        assert is_done(repository.path, origin, point)


@pytest.mark.slow
def test_a_killed_sweeps_point_is_finished_and_not_run_again(repository):
    mark, override = marked(repository, "killed")
    command = ("-m", "pipelines.sweep", "runs.x.steps=98", override, "--name", "killed")
    first = repository.start(*command)
    wait_until(lambda: mark.exists() or first.poll() is not None)
    first.kill()
    first.communicate()
    said = []
    with repository.start(*command) as second:
        for line in second.stdout or ():
            said.append(line)
            if "another flow in this repository runs this: waiting for that" in line:
                mark.with_name("killed.go").touch()
    assert second.returncode == 0, said
    assert mark.read_text() == "begun\n"
    assert [row["state"] for row in table(repository, "killed")] == ["done"]


@pytest.mark.slow
def test_a_sweep_goes_on_with_the_code_it_began_with(repository):
    mark, override = marked(repository, "committed")
    commit = git(repository.path, "rev-parse", "HEAD").strip()
    process = repository.start(
        "-m", "pipelines.sweep", "runs.x.steps=98,6", override, "--name", "committed"
    )
    try:
        wait_until(lambda: mark.exists() or process.poll() is not None)
        (repository.path / "train.py").write_text("raise SystemExit('not this code')")
        git(repository.path, "commit", "--quiet", "--all", "--message", "Work goes on")
        mark.with_name("committed.go").touch()
        output = process.communicate(timeout=90)[0]
        assert process.returncode == 0, output
    finally:
        git(repository.path, "reset", "--quiet", "--hard", commit)
    scores = [row["results/runs/x/metrics.json:score"] for row in table(repository, "committed")]
    assert scores == ["980", "60"]


@pytest.mark.slow
def test_points_hold_slots_of_a_limit_and_can_be_stopped_while_they_wait(repository):
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
    from prefect.settings import PREFECT_API_URL, temporary_settings

    command = ("-m", "pipelines.sweep", "runs.x.steps=7,8", "--name", "limited", "--limit", "one")
    (*_, last) = repository.run(*command, status=2).splitlines()
    assert last.startswith("error: Prefect has no limit one; make it: `PREFECT_API_URL=")
    address: dict[Any, Any] = {PREFECT_API_URL: repository.environment["PREFECT_API_URL"]}
    with temporary_settings(address), get_client(sync_client=True) as client:
        client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name="one", limit=1))
        taken = client.increment_concurrency_slots(["one"], slots=1, mode="concurrency")
        assert taken.status_code == 200
        said = []
        with repository.start(*command) as process:
            for line in process.stdout or ():
                said.append(line)
                if "waiting for a slot of the limit one" in line:
                    process.send_signal(signal.SIGINT)
        assert process.returncode == 130, said
        assert [row["state"] for row in table(repository, "limited")] == ["stopped", "stopped"]
        # The slot is held until a point has said that it waits: points may end before another asks.
        held = True
        with repository.start(*command, "--jobs", "2") as process:
            for line in process.stdout or ():
                said.append(line)
                if held and "waiting for a slot of the limit one" in line:
                    client.release_concurrency_slots(["one"], slots=1, occupancy_seconds=1.0)
                    held = False
        assert process.returncode == 0 and not held, said
    assert [row["state"] for row in table(repository, "limited")] == ["done", "done"]


@pytest.mark.slow
def test_prefects_server_is_killed_in_the_middle_of_a_sweep(repository):
    alone = Project(repository.path)
    mark, override = marked(alone, "alone")
    command = ("-m", "pipelines.sweep", "runs.x.steps=98,9", override, "--name", "alone")
    process = alone.start(*command)
    wait_until(lambda: mark.exists() or process.poll() is not None)
    kill_its_server(process)
    mark.with_name("alone.go").touch()
    output = process.communicate(timeout=150)[0]
    assert process.returncode == 3, output
    assert "Prefect's record of this flow is not complete" in output
    assert "Traceback" not in output
    assert [row["state"] for row in table(alone, "alone")] == ["done", "done"]


@pytest.mark.slow
def test_what_the_flow_itself_suffers_is_told_and_no_old_page_is_shown(repository):
    name = "unwritten"
    command = ("-m", "pipelines.sweep", "runs.x.steps=5", "--name", name)
    folder = repository.path / "results" / "sweeps"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.csv").mkdir()  # in the way of the table
    (folder / f"{name}.md").write_text("an old page")
    output = repository.run(*command, status=1)
    assert "an old page" not in output and f"{name}.csv" in output
    (folder / f"{name}.csv").rmdir()
    assert "already there" in repository.run(*command)
