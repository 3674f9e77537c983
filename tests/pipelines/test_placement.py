import contextlib
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from implicit_models.parameters import ParameterError
from pipelines.cluster.gpus import held_gpus, offered_gpus
from pipelines.cluster.local_gpus import LocalGpuRunner, stage_environment
from pipelines.cluster.placement import (
    CODE,
    Place,
    Placement,
    Pool,
    read_placement,
)
from pipelines.cluster.placement_notes import placement_notes
from pipelines.cluster.pools import PoolRunner
from pipelines.cluster.runners import runner_for
from pipelines.cluster.slurm import SlurmRunner
from pipelines.dag import Stage
from pipelines.processes import StoppedError, allow_all, stop_all
from pipelines.running import InfrastructureError, StageFailedError

ROOT = Path(__file__).parents[2]
EXAMPLE = """
pools:
  gpu-nodes: {kind: prefect, remote: storage, heartbeat_seconds: 5}
  slurm: {kind: slurm, slurm: {partition: gpu, time: 720}}
stages:
  "train_*@big_*": {pool: slurm, nodes: 2, gpus: 8}
  "train_*": {pool: gpu-nodes, gpus: 1, environment: {OMP_NUM_THREADS: "4"}}
  "evaluate_*": {gpus: 2}
"""


def read(folder: Path, text: str) -> Placement:
    (folder / "placement.yaml").write_text(text)
    return read_placement(folder)


def test_without_a_file_everything_runs_here(tmp_path):
    placement = read_placement(tmp_path)
    assert placement.place("train_free@x") == Place(pool="here", gpus=0)
    assert isinstance(runner_for(Stage("train_free@x"), placement, tmp_path), LocalGpuRunner)


def test_the_first_pattern_that_fits_counts(tmp_path):
    placement = read(tmp_path, EXAMPLE)
    assert placement.place("train_free@big_one").pool == "slurm"
    assert placement.place("train_free@small").gpus == 1
    assert placement.place("train_free@small").environment == {"OMP_NUM_THREADS": "4"}
    assert placement.place("report") == Place()


def test_the_check_of_names_waits_in_no_queue(tmp_path):
    placement = read(
        tmp_path, "pools: {slurm: {kind: slurm, slurm: {time: 60}}}\nstages: {'*': {pool: slurm}}\n"
    )
    for each in (placement, placement.everything_in("slurm")):
        assert each.place("code") == Place()
        assert each.place("report").pool == "slurm"
    assert CODE in yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]


def test_each_kind_of_pool_has_its_runner(tmp_path):
    placement = read(tmp_path, EXAMPLE)
    kinds = {
        "train_free@big_one": SlurmRunner,
        "train_free@x": PoolRunner,
        "report": LocalGpuRunner,
    }
    for name, kind in kinds.items():
        assert type(runner_for(Stage(name), placement, tmp_path)) is kind


def test_everything_in_one_pool_keeps_gpus(tmp_path):
    placement = read(tmp_path, EXAMPLE).everything_in("gpu-nodes")
    assert placement.place("evaluate_benchmarks@x") == Place(pool="gpu-nodes", gpus=2)
    assert placement.place("report") == Place(pool="gpu-nodes")


def test_what_is_likely_not_meant_is_told(tmp_path, monkeypatch):
    placement = read(tmp_path, EXAMPLE)
    names = [f"train_free@{entry}" for entry in "abcde"] + ["evaluate_benchmarks@a", "report"]
    assert placement_notes(placement, None, names, 1) == []
    assert placement_notes(placement, names, names, 1) == [
        "placement.yaml: no stage fits the pattern train_*@big_*"
    ]
    bare = read(tmp_path, "pools: {slurm: {kind: slurm, slurm: {time: 60}}}").everything_in("slurm")
    (note,) = placement_notes(bare, names, names, 1)
    assert note.startswith(
        "train_free@a, train_free@b, train_free@c and 2 more have no GPU in the pool slurm: "
    )
    monkeypatch.setenv("IMPLICIT_MODELS_GPUS", "0,1")
    (note,) = placement_notes(Placement(), names, names, 2)
    assert note.startswith("stages that run at once share one of the 2 GPUs of this machine: ")
    for jobs, waiting in ((1, names), (2, names[-2:])):
        assert placement_notes(Placement(), names, waiting, jobs) == []


def test_only_stages_of_this_machine_share_its_cores(tmp_path):
    placement, share = read(tmp_path, EXAMPLE), {"OMP_NUM_THREADS": "2"}
    here = runner_for(Stage("report"), placement, tmp_path, share)
    assert isinstance(here, LocalGpuRunner) and here.share == share
    assert not hasattr(runner_for(Stage("train_free@x"), placement, tmp_path, share), "share")


def test_an_unknown_pool_of_the_command_line_is_told(tmp_path):
    with pytest.raises(
        ParameterError, match="--pool = 'gpu' is not known; the closest is gpu-nodes"
    ):
        read(tmp_path, EXAMPLE).everything_in("gpu")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a", "the file = \\['a'\\] is not a section"),
        (
            "pool: {}",
            "pool = {} is not a known setting; the closest valid key is pools "
            "\\(valid: pools, stages",
        ),
        ("1: {}", "the file has the key 1, which is not allowed; allowed is a text, in quotes"),
        ("pools: {1: {kind: prefect}}", "pools has the key 1, which is not allowed"),
        ("stages: {x: {true: 2}}", "stages.x has the key True, which is not allowed"),
        (
            "pools: {a: {kind: slurm, slurm: {time: 9, additional_parameters: {1: 2}}}}",
            "pools.a.slurm.additional_parameters has the key 1, which is not allowed",
        ),
        ("pools: {a: {kind: dask}}", "pools.a.kind = 'dask' is not allowed; .* 'prefect', 'slurm'"),
        ("pools: {a: {}}", "pools.a.kind is missing; allowed is str, one of 'prefect', 'slurm'"),
        ("pools: {here: {kind: prefect}}", "pools.here: this name means this machine"),
        ("pools: {a: {kind: slurm}}", "pools.a.slurm.time is missing; .* minutes"),
        (
            "pools: {a: {kind: slurm, slurm: {time: 1}}}",
            "pools.a.slurm.time = 1 is not allowed; allowed is a number of minutes, .* of at least "
            "5 minutes: a job is warned",
        ),
        *(
            (
                f"pools: {{a: {{kind: slurm, slurm: {{time: {time}}}}}}}",
                f"pools.a.slurm.time = {found} is not allowed; allowed is .*at least 5",
            )
            for time, found in (
                *(("1.5", "1.5"), ("null", "None"), ("true", "True"), ("[9]", ".9.")),
                *(("'2'", "'2'"), ("'4:59'", "'4:59'"), ("'0:04:59'", "'0:04:59'")),
                *(("soon", "'soon'"), ("1-", "'1-'"), ("'0'", "'0'"), ("-9", "-9")),
            )
        ),
        (
            "pools: {a: {kind: prefect, heartbeat_seconds: 9, lost_after_seconds: 9}}",
            "pools.a.lost_after_seconds = 9.0 is not allowed; allowed is at least three times "
            "heartbeat_seconds, 27",
        ),
        (
            'pools: {a: {kind: slurm, slurm: {time: 9, comment: "x\\n#SBATCH --uid=0"}}}',
            "pools.a.slurm has 'comment' with 'x.n#SBATCH --uid=0', which is not allowed",
        ),
        (
            'pools: {a: {kind: slurm, slurm: {time: 9, additional_parameters: {"x y": 1}}}}',
            "pools.a.slurm.additional_parameters has 'x y' with 1, which is not allowed",
        ),
        (
            'stages: {x: {environment: {"A=B; touch pwned": "1"}}}',
            "stages.x.environment has 'A=B; touch pwned', which is not allowed; allowed are",
        ),
        *(
            (
                f'stages: {{x: {{environment: {{{name}: "{value}"}}}}}}',
                f"stages.x.environment has {name}, .* not allowed: .*the worker, .*the flow",
            )
            for name, value in (
                *(("MLFLOW_TRACKING_PASSWORD", "a"), ("HF_TOKEN", "a"), ("my_secret", "a")),
                *(("PREFECT_API_AUTH_STRING", "a"), ("AWS_SECRET_ACCESS_KEY", "a")),
                ("MLFLOW_TRACKING_URI", "https://a:b@c/d"),
            )
        ),
        ("stages: {x: {pool: gpu}}", "stages.x.pool = 'gpu' is not known; the closest is here"),
        (
            "stages: {x: {gpu: 1}}",
            "stages.x.gpu = 1 is not a known setting; the closest .* is stages.x.gpus",
        ),
        ("stages: {x: {gpus: true}}", "stages.x.gpus = True is not allowed; allowed is int"),
        ("stages: {x: {gpus: -1}}", "stages.x.gpus = -1 is not allowed; .* at least 0"),
        ("stages: {x: {nodes: 2}}", "stages.x.nodes = 2 is allowed in a pool of the kind slurm"),
        (
            "stages: {x: {environment: {A: 1}}}",
            "stages.x.environment = {'A': 1} is not allowed; .* each to a text in quotes",
        ),
        ("stages: [", "cannot be read as YAML"),
    ],
)
def test_mistakes_are_named(tmp_path, text, message):
    with pytest.raises(ParameterError, match=f"^{tmp_path}/placement.yaml: .*{message}"):
        read(tmp_path, text)


@pytest.mark.parametrize(
    "time", ["5", "'5'", "'5:00'", "'0:05:00'", "2-00", "1-12:30", "1-0:0:0", "UNLIMITED"]
)
def test_a_time_is_what_slurm_takes(tmp_path, time):
    text = f"pools: {{a: {{kind: slurm, slurm: {{time: {time}}}}}}}"
    assert read(tmp_path, text).pools["a"].slurm.keys() == {"time"}


def test_what_is_no_password_may_stand_in_the_environment():
    Place(environment={"TOKENIZERS_PARALLELISM": "false", "AWS_PROFILE": "a"})
    Place(environment={"MLFLOW_TRACKING_URI": "http://one:5000", "MINE": "a:b@c"})


def test_environment_of_a_stage():
    assert stage_environment(Place(), ()) == {}
    assert stage_environment(Place(gpus=2, environment={"A": "b"}), ("3", "5")) == {
        "CUDA_VISIBLE_DEVICES": "3,5",
        "IMPLICIT_MODELS_TORCHRUN": "--standalone --nproc-per-node=2",
        "A": "b",
    }
    own = stage_environment(Place(gpus=2, torchrun="--nproc-per-node=1"), ("0", "1"))
    assert own["IMPLICIT_MODELS_TORCHRUN"] == "--nproc-per-node=1"


def test_gpus_that_a_machine_offers():
    assert offered_gpus({"IMPLICIT_MODELS_GPUS": "4, 5", "CUDA_VISIBLE_DEVICES": "0"}) == ("4", "5")
    assert offered_gpus({"CUDA_VISIBLE_DEVICES": "0,GPU-8c"}) == ("0", "GPU-8c")
    assert offered_gpus({"IMPLICIT_MODELS_GPUS": ""}) == ()
    assert offered_gpus({"CUDA_VISIBLE_DEVICES": "-1"}) == ()
    assert offered_gpus({"CUDA_VISIBLE_DEVICES": "1,-1,0"}) == ("1",)


@pytest.fixture
def driver(tmp_path, monkeypatch) -> Callable[[str], Path]:
    """Make an nvidia-smi of a shell script; returns where it counts its calls."""
    calls = tmp_path / "calls"

    def make(script: str) -> Path:
        file = tmp_path / "nvidia-smi"
        file.write_text(f"#!/bin/sh\necho called >> {calls}\n{script}\n")
        file.chmod(0o755)
        return calls

    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return make


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("echo 'no driver' >&2; exit 9", "--list-gpus has failed with exit status 9: no driver;"),
        ("exit 6", "exit status 6: it says nothing; mend its driver, or name them in IMPL"),
        ("exec sleep 600", "nvidia-smi --list-gpus has not answered for 0 s"),
    ],
)
def test_a_driver_that_does_not_answer_may_do_so_later(tmp_path, monkeypatch, driver, script, told):
    monkeypatch.setattr("pipelines.cluster.gpus._LISTING_SECONDS", 0.2 if "sleep" in script else 60)
    calls = driver(script)
    node = {"IMPLICIT_MODELS_NODE": "a"}
    with held_gpus(0, print, node, tmp_path) as held:  # who needs none does not ask
        assert held.names == () and not calls.exists()
    with (
        pytest.raises(InfrastructureError, match=f"which GPUs a has is not known: .*{told}"),
        held_gpus(1, print, node, tmp_path),
    ):
        pass


def test_the_driver_is_asked_once_however_long_a_stage_waits(tmp_path, monkeypatch, driver):
    calls = driver("echo 'GPU 0: of a test (UUID: GPU-8c)'")
    node, waits = {"IMPLICIT_MODELS_NODE": "a"}, []
    with contextlib.ExitStack() as first:
        first.enter_context(held_gpus(1, print, node, tmp_path))
        before = calls.read_text().count("called")

        def pause(seconds: float) -> None:
            waits.append(seconds)
            if len(waits) == 3:
                first.close()

        monkeypatch.setattr("pipelines.cluster.gpus.pause", pause)
        with held_gpus(1, print, node, tmp_path) as held:
            assert held.names == ("0",)
    assert len(waits) == 3
    assert calls.read_text().count("called") == before + 1


def test_no_gpu_is_held_twice_and_all_come_back(tmp_path):
    node = {"IMPLICIT_MODELS_GPUS": "0,1,2", "IMPLICIT_MODELS_NODE": "a"}
    told = []

    def hold(count: int, log=told.append):
        return held_gpus(count, log, node, tmp_path)

    with hold(2) as first, hold(1) as second:
        assert {*first.names, *second.names} == {"0", "1", "2"}
        assert told == []
        stop_all()  # who waits for a GPU that is not free is told, and can be stopped
        try:
            with pytest.raises(StoppedError), hold(1):
                pass
        finally:
            allow_all()
        assert told == ["waiting for 1 free GPUs of 3"]
        other = {**node, "IMPLICIT_MODELS_NODE": "b"}  # another machine's
        with held_gpus(3, told.append, other, tmp_path) as elsewhere:
            assert len(elsewhere.names) == 3
    with hold(3) as all_of_them:
        assert all_of_them.names == ("0", "1", "2")


def test_a_stage_that_outlives_its_flow_keeps_its_gpus(tmp_path):
    node = {"IMPLICIT_MODELS_GPUS": "0", "IMPLICIT_MODELS_NODE": "a"}
    with held_gpus(1, print, node, tmp_path) as held:
        stage = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=held.locks)
    stop_all()
    try:
        with pytest.raises(StoppedError), held_gpus(1, print, node, tmp_path):
            pass
    finally:
        allow_all()
        stage.communicate()
    with held_gpus(1, print, node, tmp_path) as again:
        assert again.names == ("0",)


def test_more_gpus_than_there_are_is_no_reason_to_wait(tmp_path):
    node = {"IMPLICIT_MODELS_GPUS": "0", "IMPLICIT_MODELS_NODE": "a"}
    with (
        pytest.raises(
            StageFailedError, match="2 GPUs are asked for .* a offers 1: 0; ask for fewer"
        ),
        contextlib.ExitStack() as stack,
    ):
        stack.enter_context(held_gpus(2, print, node, tmp_path))


def test_a_pool_has_sensible_defaults():
    pool = Pool(kind="prefect")
    assert pool.lost_after_seconds >= 3 * pool.heartbeat_seconds
