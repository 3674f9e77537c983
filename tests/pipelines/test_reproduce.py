import contextlib
import errno
import fcntl
import os
import random
import re
import shutil
import signal
import threading
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
import yaml

from implicit_models.parameters import ParameterError
from implicit_models.parameters.composition import compose
from implicit_models.tracking.opening import open_tracker
from pipelines import disk, presets, reproduce
from pipelines.artifacts import artifact_key, flow_page, stage_page
from pipelines.dag import Stage, UnknownTargetError
from pipelines.outcomes import Outcome, Outcomes
from pipelines.presets import ParametersError, parameters_for, parameters_in_use
from pipelines.schedule import walk
from pipelines.seeds import SeedError, parse_seeds, with_seeds
from pipelines.terminal import tell_unrecorded, without_room
from tests import repositories
from tests.locks import flock_of_nfs
from tests.pipelines.tiny import ROOT, Project, project, stage
from tests.pipelines.writing import write_parameters

pytestmark = pytest.mark.filterwarnings("ignore:_NoneStep.value:DeprecationWarning")  # DVC's

EIGHT = {
    "given": stage("echo 1 > given.txt", (), ("given.txt",)),
    "part": {
        "foreach": {f"n{i}": i for i in range(8)},
        "do": {
            "cmd": "cat given.txt > ${key}.txt; echo '{\"loss\": ${item}.5}' > ${key}.json",
            "deps": ["given.txt"],
            "outs": ["${key}.txt"],
            "metrics": [{"${key}.json": {"cache": False}}],
        },
    },
}
BRANCHES = {
    "good": stage("echo threads $OMP_NUM_THREADS > good.txt", (), ("good.txt",)),
    "bad": stage("echo this is why; exit 7", (), ("bad.txt",)),
    "child": stage("cat bad.txt > child.txt", ("bad.txt",), ("child.txt",)),
    "grandchild": stage("cat child.txt > g.txt", ("child.txt",), ("g.txt",)),
    "other": stage("cat good.txt > other.txt", ("good.txt",), ("other.txt",)),
    "killed": stage(
        "echo try >> tries; if [ $(wc -l < tries) = 1 ]; then kill -9 $$; fi; cp tries killed.txt",
        (),
        ("killed.txt",),
    ),
}


@pytest.fixture
def configured(tmp_path):
    """A folder with our presets, and the default parameters that they give."""
    shutil.copytree(ROOT / "conf", tmp_path / "conf")
    (tmp_path / "params.yaml").write_text(compose(ROOT, ["preset=laptop"]))
    return tmp_path


def test_eight_at_once_then_all_cached(tmp_path, use):
    made = use(project(tmp_path / "project", EIGHT))
    names = {"given", *(f"part@n{i}" for i in range(8))}
    output = made.flow("--jobs", "8")
    assert "9 stages: 9 ran" in output
    assert made.status() == "{}"
    assert set(yaml.safe_load((made.path / "dvc.lock").read_text())["stages"]) == names
    assert made.states() == ("Completed", dict.fromkeys(names, "Completed"))

    output = made.flow("--jobs", "8")
    assert "9 stages, 9 of them unchanged" in output
    assert "9 stages: 9 cached" in output
    assert made.states() == ("Completed", dict.fromkeys(names, "Cached"))

    ((page,),) = made.ask(
        "select data from artifact where key = 'part-n3' order by created desc limit 1"
    )
    assert "| loss | 3.5 |" in page.replace("\\n", "\n")
    logs = {message for (message,) in made.ask("select message from log")}
    assert "Running stage 'part@n3':" in logs


def test_prefect_does_not_look_into_what_tasks_write_to_meanwhile(tmp_path, use):
    """It goes through a task's parameters; a dictionary that then grows would end the task."""
    made = use(project(tmp_path / "project", {"one": stage("echo 1 > 1.txt", (), ("1.txt",))}))
    code = """
import sys
from pipelines import reproduce
class Growing(dict):
    def items(self):
        if sys._getframe(1).f_globals["__name__"].startswith("prefect."):
            raise RuntimeError("dictionary changed size during iteration")
        return super().items()
Outcomes = reproduce.Outcomes
reproduce.Outcomes = lambda: Outcomes(by_stage=Growing())
sys.exit(reproduce.main([]))
"""
    assert re.search("1 stages?: 1 ran", made.run("-c", code))


def test_a_failing_branch_leaves_the_others_alone(tmp_path, use):
    made = use(project(tmp_path / "project", BRANCHES))
    output = made.flow("--jobs", "2", status=1)
    assert made.states() == (
        "Failed",
        {
            "good": "Completed",
            "bad": "Failed",
            "child": "NotRun",
            "grandchild": "NotRun",
            "other": "Completed",
            "killed": "Completed",
        },
    )
    end = output[output.rindex("error: ") :]
    assert end.startswith("error: stage bad failed with exit status 7")
    assert "    this is why\n" in end
    assert "grandchild | not run, because bad failed" in output
    assert made.lines("tries") == ["try", "try"]
    assert "killed | stage killed was ended by SIGKILL from outside; attempt 2 of 4" in output
    assert output.count("Running stage 'bad'") == output.count("    Running stage 'bad'") + 1
    threads = max(1, len(os.sched_getaffinity(0)) // 2)  # the cores are shared among two
    assert made.lines("good.txt") == [f"threads {threads}"]
    edges = dict(made.ask("select name, task_inputs from task_run"))
    ((cause,),) = made.ask("select id from task_run where name = 'bad'")
    assert cause.replace("-", "") in edges["grandchild"].replace("-", "")


@pytest.mark.parametrize("seed", range(20))
def test_order_and_slots(seed):
    random_ = random.Random(seed)
    names = [f"s{i}" for i in range(12)]
    stages = {
        name: Stage(name, tuple(random_.sample(names[:i], random_.randint(0, min(i, 3)))))
        for i, name in enumerate(names)
    }
    free = set(random_.sample(names, 3))
    slots = random_.randint(1, 4)
    lock = threading.Lock()
    ended, running, most = [], set(), 0

    def begin(stage, done):
        nonlocal most
        with lock:
            assert set(stage.parents) <= set(ended)
            running.add(stage.name)
            most = max(most, len(running - free))

        def work():
            with lock:
                running.discard(stage.name)
                ended.append(stage.name)
            done()

        threading.Timer(random_.random() / 100, work).start()

    walk(stages, slots, begin, needs_slot=lambda s: s.name not in free, stopping=lambda: False)
    assert sorted(ended) == sorted(names)
    assert most <= slots


def test_slots_are_used():
    """Four stages and two slots: the second begins before the first has ended."""
    stages = {name: Stage(name) for name in "abcd"}
    both = threading.Barrier(2, timeout=20)
    met = []

    def begin(stage, done):
        def work():
            both.wait()
            met.append(stage.name)
            done()

        threading.Thread(target=work, daemon=True).start()

    walk(stages, 2, begin, needs_slot=lambda s: True, stopping=lambda: False)
    assert sorted(met) == list("abcd")


def test_nothing_begins_after_a_stop():
    begun = []

    def begin(stage, done):
        begun.append(stage.name)
        done()

    stages = {"a": Stage("a"), "b": Stage("b", ("a",)), "c": Stage("c", ("b",))}
    walk(stages, 1, begin, needs_slot=lambda s: True, stopping=lambda: "b" in begun)
    assert begun == ["a", "b"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["reprot"], "there is no stage reprot; the closest is report"),
        (["--preset", "quik"], "there is no preset quik; the closest is quick"),
        (["--preset", "quick", "reprot"], "there is no stage reprot; the closest is report"),
        (["--seeds", "0,one"], "'one' is no seed"),
        (["--seeds", "-1"], "--seeds"),
        (["--jobs", "0"], "--jobs 0 is not allowed; allowed is 1 or more"),
        (["--jobs", "many"], "argument --jobs"),
        (["--pool", "gpus"], "--pool"),
        (["--prest", "quick"], "--prest"),
    ],
)
def test_a_mistake_is_one_line(configured, monkeypatch, capsys, arguments, said):
    made = {"report": stage("true", (), ("report.txt",))}
    project(configured / "project", made)
    for name in ("dvc.yaml", ".dvc"):
        shutil.move(configured / "project" / name, configured / name)
    monkeypatch.chdir(configured)
    before = (configured / "params.yaml").read_text()
    try:
        status = reproduce.main(arguments)
    except SystemExit as exit_:
        status = exit_.code
    captured = capsys.readouterr()
    assert status == 2
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert said in captured.err
    assert (configured / "params.yaml").read_text() == before


def test_elsewhere_than_in_a_repository(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert reproduce.main([]) == 2
    assert "there is no dvc.yaml here" in capsys.readouterr().err


def test_a_wrong_dvc_yaml_is_told_before_prefect_starts(tmp_path, monkeypatch, capsys):
    project(tmp_path / "project", {"report": {"comand": "true"}})
    monkeypatch.chdir(tmp_path / "project")
    assert reproduce.main([]) == 2
    assert "dvc.yaml" in capsys.readouterr().err


def test_a_preset_is_what_compose_gives(configured):
    write_parameters(configured, "quick")
    write_parameters(configured, "laptop")
    assert (configured / "params.yaml").read_text() == compose(ROOT, ["preset=laptop"])
    write_parameters(configured, "ten_seeds")
    runs = yaml.safe_load((configured / "params.yaml").read_text())["runs"]
    ends = ("", *(f"_seed_{seed}" for seed in range(1, 10)))
    assert set(runs) == {f"a5_implicit_mamba2{end}" for end in ends}


def test_what_git_has_not_got_is_kept(configured):
    path = configured / "params.yaml"
    path.write_text(path.read_text().replace("seed: 0", "seed: 5"))
    mine = path.read_text()
    kept = write_parameters(configured, "quick")
    assert kept is not None and kept.read_text() == mine
    assert write_parameters(configured, "quick") is None
    assert write_parameters(configured) is None


def test_parameters_in_use_stay_as_they_are(configured):
    before = (configured / "params.yaml").read_text()
    with parameters_in_use(configured), parameters_in_use(configured):
        with pytest.raises(ParametersError, match="another flow is at work in this repository"):
            write_parameters(configured, "quick")
        assert write_parameters(configured, "laptop") is None
    assert (configured / "params.yaml").read_text() == before
    write_parameters(configured, "quick")
    assert (configured / "params.yaml").read_text() != before


def test_the_locks_of_parameters_are_as_nfs_wants_them(configured):
    with flock_of_nfs() as taken, parameters_for(configured, "quick"):
        assert taken == [fcntl.LOCK_EX, fcntl.LOCK_SH]


def test_without_git_the_old_parameters_are_kept(configured, monkeypatch):
    (configured / "params.yaml").write_text("mine: 1\n")
    monkeypatch.setenv("PATH", str(configured))
    kept = write_parameters(configured, "quick")
    assert kept is not None and kept.read_text() == "mine: 1\n"


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_flow_that_is_refused_leaves_the_parameters_of_the_one_at_work(
    configured, monkeypatch, moment
):
    compose, hold, at_work = presets._composed, presets.parameters_in_use, contextlib.ExitStack()

    def begin_another() -> None:
        monkeypatch.undo()
        write_parameters(configured, "quick")
        at_work.enter_context(parameters_in_use(configured))

    def compose_late(*arguments):
        content = compose(*arguments)
        begin_another()
        return content

    def hold_late(root):
        begin_another()
        return hold(root)

    if moment == "before":  # it has written
        monkeypatch.setattr(presets, "_composed", compose_late)
    else:
        monkeypatch.setattr(presets, "parameters_in_use", hold_late)
    refused = pytest.raises(ParametersError, match="another flow is at work")
    with at_work, refused, parameters_for(configured, "ten_seeds"):
        pytest.fail("two flows with different parameters")
    found = (configured / "params.yaml").read_text()
    write_parameters(configured, "quick")
    assert found == (configured / "params.yaml").read_text()


def test_after_a_mistake_the_parameters_are_those_that_were_there(configured):
    before = (configured / "params.yaml").read_text()

    def look() -> None:
        assert (configured / "params.yaml").read_text() != before
        raise UnknownTargetError("no such stage")

    with pytest.raises(UnknownTargetError), parameters_for(configured, "quick", check=look):
        pytest.fail("nothing is to be done")
    assert (configured / "params.yaml").read_text() == before


def test_seeds_give_what_the_preset_ten_seeds_gives(configured):
    write_parameters(configured, "ten_seeds")
    expected = yaml.safe_load((configured / "params.yaml").read_text())
    write_parameters(configured, "laptop", range(10))
    found = yaml.safe_load((configured / "params.yaml").read_text())
    assert found["runs"] == expected["runs"]
    assert set(found["baselines"]) == {
        name + end
        for name in expected["baselines"]
        for end in ("", *(f"_seed_{seed}" for seed in range(1, 10)))
    }
    again = (configured / "params.yaml").read_text()
    write_parameters(configured, None, range(10))
    assert (configured / "params.yaml").read_text() == again


@pytest.mark.parametrize("preset", repositories.presets())
def test_every_preset_under_three_seeds(configured, preset):
    write_parameters(configured, preset)
    plain = yaml.safe_load((configured / "params.yaml").read_text())
    seeded = with_seeds(plain, (0, 1, 2))
    assert with_seeds(seeded, (0, 1, 2)) == seeded
    assert set(seeded) == set(plain)
    everything = {name for table in seeded.values() for name in (table or {})}
    for table in ("runs", "baselines", "matched", "upcycled"):
        for name, entry in seeded[table].items():
            assert name not in plain[table] or entry == plain[table][name]
            if entry.get("match"):
                other = seeded["runs"] | seeded["upcycled"]
                assert other[entry["match"]["run"]]["seed"] == entry["seed"]
            source = str(entry["model"].get("source", ""))
            if source.startswith("models/"):
                assert seeded["baselines"][Path(source).parts[1]]["seed"] == entry["seed"]
        seeds = [entry["seed"] for entry in seeded[table].values()]
        assert len({seeds.count(seed) for seed in (0, 1, 2)}) == 1
    for table in ("readings", "benchmarks"):
        for entry in seeded[table].values():
            if entry["model"].startswith("models/"):
                assert Path(entry["model"]).parts[1] in everything


def test_references_follow_the_seed():
    entry = {"seed": 3, "model": {"family": "mamba2"}}
    parameters = {
        "runs": {"r": entry, "r_seed_7": {**entry, "seed": 7}},
        "baselines": {"b": entry},
        "matched": {"m": {**entry, "match": {"run": "r", "vary": "steps"}}},
        "upcycled": {
            "u": {**entry, "model": {"source": "models/b/final"}},
            "v": {**entry, "model": {"source": "./models/b/final"}},
        },
        "benchmarks": {
            "of_r": {"model": "models/r/final", "tasks": "t"},
            "of_hub": {"model": "some/model", "tasks": "t"},
        },
        "datasets": {"d": {"seed": 3}},
    }
    seeded = with_seeds(parameters, (3, 7))
    assert set(seeded["runs"]) == {"r", "r_seed_7"}
    assert seeded["matched"]["m_seed_7"]["match"]["run"] == "r_seed_7"
    assert seeded["upcycled"]["u_seed_7"]["model"]["source"] == "models/b_seed_7/final"
    assert seeded["upcycled"]["v_seed_7"]["model"]["source"] == "./models/b_seed_7/final"
    assert seeded["benchmarks"]["of_r_seed_7"]["model"] == "models/r_seed_7/final"
    assert "of_hub_seed_7" not in seeded["benchmarks"]
    assert seeded["datasets"] == parameters["datasets"]
    assert "readings" not in seeded


def test_an_entry_in_the_way():
    entry = {"seed": 0, "model": {}}
    with pytest.raises(SeedError, match="runs.a_seed_1.seed = 4 is in the way of runs.a"):
        with_seeds({"runs": {"a": entry, "a_seed_1": {**entry, "seed": 4}}}, (1,))
    tests = {"of_a": {"model": "models/a/final"}, "of_a_seed_1": {"model": "models/a/final"}}
    said = "readings.of_a_seed_1.model = 'models/a/final' is in the way.*model models/a_seed_1/fin"
    with pytest.raises(SeedError, match=said):
        with_seeds({"runs": {"a": entry}, "readings": tests}, (1,))
    tests["of_a_seed_1"]["model"] = "models/a_seed_1/final"
    assert with_seeds({"runs": {"a": entry}, "readings": tests}, (1,))["readings"] == tests
    tests["of_a"]["corpus"], tests["of_a_seed_1"]["corpus"] = "one", "another"
    with pytest.raises(
        SeedError, match="of_a_seed_1.corpus = 'another' is in.* give it corpus one"
    ):
        with_seeds({"runs": {"a": entry}, "readings": tests}, (1,))
    del tests["of_a"]["corpus"]
    with pytest.raises(SeedError, match="of_a_seed_1.corpus = 'another' is in.* or take that out"):
        with_seeds({"runs": {"a": entry}, "readings": tests}, (1,))
    sourced = {"seed": 1, "model": {"source": "models/other/final"}}
    with pytest.raises(
        SeedError, match="a_seed_1.model.source = 'models/other/final' is in.* or t"
    ):
        with_seeds({"upcycled": {"a": entry, "a_seed_1": sourced}}, (1,))
    other = {"seed": 0, "model": {}, "match": {"run": "a"}}
    matched = {"m": other, "m_seed_1": {**other, "seed": 1}}
    with pytest.raises(
        SeedError, match="m_seed_1.match.run = 'a' is in.* give it match.run a_seed"
    ):
        with_seeds({"runs": {"a": entry}, "matched": matched}, (1,))


@pytest.mark.parametrize("wrong", [None, "text", {"model": "llama", "seed": 0}])
def test_entries_of_another_form_are_told_by_the_check(configured, wrong):
    parameters = yaml.safe_load((configured / "params.yaml").read_text())
    parameters["baselines"]["wrong"] = wrong
    (configured / "params.yaml").write_text(yaml.safe_dump(parameters))
    for name in ("stages", "implicit_models"):
        (configured / name).symlink_to(ROOT / name)
    with pytest.raises(ParameterError, match=r"params.yaml: baselines\.wrong"):
        write_parameters(configured, seeds=(0, 1))


def test_seeds_are_read():
    assert parse_seeds("0, 2,2,10") == (0, 2, 10)
    for text in ("", "1,", "a", "1.5", "1 2"):
        with pytest.raises(SeedError):
            parse_seeds(text)


def test_pages(tmp_path):
    (tmp_path / "m.json").write_text('{"a": {"b": 0.12345678}, "c": true, "d|e": "x", "f": null}')
    found = Stage("train@X_1", metrics=("m.json", "not_there.json"))
    page = stage_page(found, Outcome("ran", 1.26, "here"), tmp_path, "abc")
    for row in ("a.b | 0.123457", "c | True", "d\\|e | x", "seconds | 1.3", "commit | abc"):
        assert f"| {row} |" in page
    assert artifact_key("train@X_1") == "train-x-1"
    outcomes = Outcomes({"train@X_1": found, "b": Stage("b")}, {"train@X_1": Outcome("ran", 1.26)})
    assert "| train@X_1 | ran | 1.3 |  |\n| b | not begun |  |  |" in flow_page(outcomes, "abc")
    assert not outcomes.is_complete


@pytest.fixture
def at_home(tmp_path, monkeypatch):
    """Work in a project of one stage."""
    project(tmp_path / "project", {"report": stage("true", (), ("report.txt",))})
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


def test_runs_that_are_not_in_mlflow_yet_are_told_at_the_end(at_home, monkeypatch, capsys):
    run = {"entry": "x", "parameters": {}, "dataset": "d", "root": at_home, "send": False}
    with open_tracker(stage="train_free", **run) as tracker:
        tracker.log_metrics({"loss": 1.0}, 0)

    def run_stages(root, parameters, outcomes, own):
        outcomes.stages = {name: Stage(name) for name in ("train_free@x", "report")}
        outcomes.are_stages_known = True
        outcomes.by_stage = {name: Outcome("ran") for name in outcomes.stages}

    monkeypatch.setattr(reproduce, "_run", run_stages)
    assert reproduce.main([]) == 0
    said = capsys.readouterr().err
    assert "not in MLflow yet, and kept: the runs of train_free@x; `python -m" in said


def test_a_flow_that_does_not_come_to_its_stages_has_failed(at_home, monkeypatch, capsys):
    def lose_the_server(root, parameters, outcomes, own):
        outcomes.note_unrecorded(ConnectionError("gone"))

    monkeypatch.setattr(reproduce, "_run", lose_the_server)
    assert reproduce.main([]) == 1
    said = capsys.readouterr().err
    assert "is not complete (ConnectionError: gone)\n" in said
    assert "not every stage was reached; the same command goes on from there" in said


@pytest.mark.parametrize(
    ("error", "is_raised"),
    [(KeyError("of ours"), True), (httpx.ConnectError("gone"), False)],
)
@pytest.mark.parametrize("ran", [True, False])
def test_what_the_flow_itself_suffers_on_the_way_is_not_lost(
    at_home, monkeypatch, error, is_raised, ran
):
    outcomes = Outcomes({"report": Stage("report")}, are_stages_known=True)
    if ran:
        outcomes.by_stage["report"] = Outcome("ran")
    state = SimpleNamespace(is_failed=lambda: True, result=lambda raise_on_failure: error)
    monkeypatch.setattr("prefect.flow_engine.run_flow", lambda *_, **__: state)
    monkeypatch.setattr(reproduce, "recorded", lambda *_: contextlib.nullcontext())
    raised = pytest.raises(KeyError) if is_raised and not ran else contextlib.nullcontext()
    with raised:
        reproduce._run(at_home, {}, outcomes, None)
    kept = "" if is_raised and not ran else " ".join(f"{type(error).__name__}: {error}".split())
    assert outcomes.unrecorded == kept


def test_what_has_ended_is_told_where_the_flow_itself_fails(at_home, monkeypatch, capsys):
    def fail_after_a_stage(root, options, outcomes):
        outcomes.stages = {name: Stage(name) for name in ("code", "report")}
        outcomes.by_stage["code"] = Outcome("ran")
        outcomes.are_stages_known = True
        raise PermissionError(errno.EACCES, "no")

    monkeypatch.setattr(reproduce, "_reproduce", fail_after_a_stage)
    with pytest.raises(PermissionError):
        reproduce.main([])
    said = capsys.readouterr().err
    assert said.startswith("2 stages: 1 ran, 1 not begun")
    assert "not every stage was reached; the same command goes on from there" in said


def test_sigterm_before_the_flow_is_told(at_home, monkeypatch, capsys):
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(reproduce, "dag_status", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    assert reproduce.main([]) == 143
    assert capsys.readouterr().err == "stopped; the same command goes on from there\n"
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_record_that_cannot_be_written_is_one_line(at_home, capsys):
    (at_home / ".prefect").touch()
    assert reproduce.main([]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {at_home / '.prefect'}, where runs of flows are recorded, can")
    assert said.count("\n") == 1


def test_settings_of_prefect_that_cannot_be_read_are_one_line(at_home):
    (at_home / "prefect.toml").write_text("x = [")
    said = Project(at_home).flow(status=2)
    assert said.startswith("error: the settings of Prefect (prefect.toml, .env, a profile) cannot")
    assert said.count("\n") == 1


def test_a_disk_that_is_full_before_the_first_stage_is_one_line(at_home, monkeypatch, capsys):
    def lock(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(reproduce, "dag_status", lock)
    assert reproduce.main([]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: [Errno 28] No space left on device; the disk is full: make room")
    assert said.count("\n") == 1
    with pytest.raises(PermissionError):
        without_room(PermissionError(errno.EACCES, "no"))


@pytest.mark.parametrize(("free", "says_so"), [(1 << 20, True), (1 << 30, False)])
def test_what_a_full_disk_may_have_caused_says_so(monkeypatch, capsys, free, says_so):
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    tell_unrecorded(Outcomes(unrecorded="500 Internal Server Error"), None)
    assert ("the disk is full: make room" in capsys.readouterr().err) == says_so


def test_nobody_writes_other_parameters_once_a_flow_has_looked(configured, monkeypatch):
    project(configured / "project", {"report": stage("true", (), ("report.txt",))})
    for name in ("dvc.yaml", ".dvc"):
        shutil.move(configured / "project" / name, configured / name)
    monkeypatch.chdir(configured)
    refused = []

    def look_while_another_writes(root, targets):
        with pytest.raises(ParametersError, match="another flow is at work") as error:
            write_parameters(root, "laptop")
        refused.append(error)

    monkeypatch.setattr(reproduce, "dag_status", look_while_another_writes)
    monkeypatch.setattr(reproduce, "_run", lambda *_: None)
    assert reproduce.main(["--preset", "quick"]) == 1  # for this one does nothing
    assert refused
