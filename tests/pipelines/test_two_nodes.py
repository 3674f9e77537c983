"""Flows over two nodes that share no disk, with workers, servers and a DVC remote between them."""

import contextlib
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml

from pipelines.server.local_server import QUIET
from tests import warm_python
from tests.pipelines.clones import make_clones, run, stale
from tests.pipelines.servers import Servers, running_servers
from tests.repositories import ROOT, clone

pytestmark = pytest.mark.slow

POOL = {
    "kind": "prefect",
    "heartbeat_seconds": 1,
    "lost_after_seconds": 15,
    "checkpoint_seconds": 0.1,
}
IMPLICIT, EXPLICIT = "s3_implicit_mamba2", "s3_mamba2_1_layer"
SMALL = (
    "~baselines.s3_gpt2",
    "~baselines.s3_lstm",
    f"runs.{IMPLICIT}.free.num_training_steps=180",
    f"baselines.{EXPLICIT}.training.num_training_steps=60",
    f"baselines.{EXPLICIT}.training.decay_steps=20",
    f"baselines.{EXPLICIT}.training.lengths.growth_steps=30",
)
OF_TIME = ("second", "memory", "joules", "run_id", "flops_per", "utilisation")  # in names
PATIENCE = 900.0  # seconds; nothing takes as long, but on a machine with other work


@pytest.fixture(scope="module")
def servers(tmp_path_factory) -> Iterator[Servers]:
    with running_servers(tmp_path_factory.mktemp("servers")) as servers:
        yield servers


@dataclass
class Cluster:
    """A caller's clone, and workers in clones of their own."""

    root: Path
    servers: Servers
    environment: dict[str, str] = field(default_factory=dict)
    workers: dict[str, subprocess.Popen] = field(default_factory=dict)

    def start(self, folder: str, *command: str, log: str, **environment: str) -> subprocess.Popen:
        """Start a command in one of the clones."""
        with (self.root / log).open("ab") as output:
            return subprocess.Popen(
                [warm_python.python(), "-m", *command],
                cwd=self.root / folder,
                env={**self.environment, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def run(self, *command: str) -> None:
        """Run a command in the caller's clone that must succeed."""
        process = self.start("caller", *command, log="commands.log")
        assert process.wait(PATIENCE) == 0, (self.root / "commands.log").read_text()

    def start_worker(self, name: str, pool: str) -> None:
        """Start a worker, on a machine with one GPU as far as it can tell."""
        node = {
            "IMPLICIT_MODELS_CLONE": str(self.root / name),
            "IMPLICIT_MODELS_NODE": f"{pool}-{name}",
            "IMPLICIT_MODELS_GPUS": "0",
        }
        options = ("--pool", pool, "--name", name, "--type", "process", "--limit", "1")
        self.workers[name] = self.start(
            name, "prefect", "worker", "start", *options, log=f"{name}.log", **node
        )

    def kill(self, name: str) -> None:
        """Kill a node's worker and its processes, as a power cut does."""
        for process in warm_python.family(self.workers[name].pid):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.workers.pop(name).wait()

    def node_with(self, stage: str) -> str:
        """Return the node that runs a stage's own process."""
        for name, worker in self.workers.items():
            for process in warm_python.family(worker.pid):
                with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                    if any(
                        re.fullmatch(rf"stages\.(\w+\.)?{stage}", each)
                        for each in process.cmdline()
                    ):
                        return name
        raise AssertionError(f"no node runs {stage}")

    def runs(self, pool: str) -> list[tuple[str, str]]:
        """List the runs of stages on a pool's nodes, with the types of their states."""
        body = {"work_pools": {"name": {"any_": [pool]}}, "sort": "START_TIME_ASC"}
        answer = httpx.post(f"{self.servers.prefect}/flow_runs/filter", json=body, timeout=30)
        return [(each["name"], each["state_type"]) for each in answer.json()]

    def close(self) -> None:
        """End the workers and whatever they have started."""
        for name in list(self.workers):
            self.kill(name)

    def said(self, *names: str) -> str:
        """Return what processes have printed, for the message of a failed test."""
        return "\n".join((self.root / name).read_text()[-6000:] for name in names)


def environment(servers: Servers, home: Path) -> dict[str, str]:
    left_out = ("DVC_", "GIT_", "MLFLOW_", "PREFECT_", "IMPLICIT_MODELS_")
    kept = {name: v for name, v in os.environ.items() if not name.startswith(left_out)}
    own = {
        "OMP_NUM_THREADS": "1",
        "IMPLICIT_MODELS_DEVICE": "cpu",
        "PATH": warm_python.before(kept["PATH"]),
        **warm_python.for_own_processes(),
    }
    return {**kept, **servers.environment, **QUIET, "PREFECT_HOME": str(home), **own}


def wait_for(there: Callable[[], Any], process: subprocess.Popen, cluster: Cluster) -> None:
    """Wait until something is there, which has to be before a process ends."""
    deadline = time.monotonic() + PATIENCE
    while not there():
        assert process.poll() is None, cluster.said("flow.log")
        assert time.monotonic() < deadline, cluster.said("flow.log")
        time.sleep(0.02)


def test_a_cancelled_flow_goes_on_where_its_node_was(servers, tmp_path):
    pool = "tiny"
    modules = (ROOT / "pipelines").rglob("*.py")
    files = {str(path.relative_to(ROOT)): path.read_text() for path in modules}
    text = (ROOT / "prefect.yaml").read_text().replace("name: gpu-nodes", f"name: {pool}")
    clones = make_clones(tmp_path, {**files, "prefect.yaml": text})
    arrived = tmp_path / "arrived"
    cluster = Cluster(tmp_path, servers, environment(servers, tmp_path / "prefect"))
    paths = (cluster.environment.get("PYTHONPATH"), str(ROOT))
    cluster.environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))

    def place(**variables: str) -> None:
        places = {"*": {"pool": pool, "gpus": 1, "environment": variables}}
        content = {"pools": {pool: POOL}, "stages": places}
        (clones.caller / "placement.yaml").write_text(yaml.safe_dump(content))

    with contextlib.closing(cluster):
        cluster.run("prefect", "work-pool", "create", pool, "--type", "process")
        cluster.run("prefect", "--no-prompt", "deploy", "--name", pool)
        for name in ("one", "two"):
            clones.clone(name)
            cluster.start_worker(name, pool)
        place(STOP_AT="3", ARRIVED=str(arrived))
        flow = cluster.start("caller", "pipelines.reproduce", log="flow.log")
        wait_for(arrived.exists, flow, cluster)
        flow.kill()  # the next one waits for what it has left
        flow.wait()
        flow = cluster.start("caller", "pipelines.reproduce", log="flow.log")
        wait_for(lambda: cluster.said("flow.log").count("it runs on") == 3, flow, cluster)
        flow.send_signal(signal.SIGTERM)
        assert flow.wait(PATIENCE) == 128 + signal.SIGTERM, cluster.said("flow.log")
        assert cluster.runs(pool) == [("make", "COMPLETED"), ("train@x", "CANCELLED")]
        assert (clones.remote / "checkpoints/x/train/identity/step_3/progress.json").exists()

        place()
        flow = cluster.start("caller", "pipelines.reproduce", log="flow.log")
        assert flow.wait(PATIENCE) == 0, cluster.said("flow.log", "one.log", "two.log")
    assert cluster.runs(pool)[2:] == [("train@x", "COMPLETED"), ("report", "COMPLETED")]
    assert "continuing from 3" in cluster.said("one.log", "two.log")
    assert stale(clones.caller) == {}
    url = f"{servers.prefect}/v2/concurrency_limits/filter"
    slots = httpx.post(url, json={}, timeout=30).json()
    limits = {slot["name"]: (slot["limit"], slot["active_slots"]) for slot in slots}
    ran = set(re.findall(rf"it runs on ({pool}-\w+)", cluster.said("flow.log")))
    assert ran and limits.items() >= {f"gpus-{node}": (1, 0) for node in ran}.items()


def test_the_pipeline_over_two_nodes_survives_the_loss_of_one(servers, tmp_path):
    pool = "gpu-nodes"
    caller = clone(tmp_path / "caller", "quick", *SMALL)
    alone = caller.copy(tmp_path / "alone")
    cluster = Cluster(tmp_path, servers, environment(servers, tmp_path / "prefect"))
    (tmp_path / "remote").mkdir()
    for name in ("caller", "one", "two"):
        if name != "caller":
            run(tmp_path, "git", "clone", "--quiet", "caller", name)
        run(tmp_path / name, sys.executable, "-m", "dvc", "remote", "add", "--local", "--default",
            "storage", str(tmp_path / "remote"))  # fmt: skip
    places = {"train_*": {"pool": pool, "gpus": 1}, "*": {"pool": pool}}
    content = {"pools": {pool: POOL}, "stages": places}
    (caller.path / "placement.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    training = tmp_path / "remote" / "checkpoints" / IMPLICIT / "train_free"

    with contextlib.closing(cluster):
        cluster.run("prefect", "work-pool", "create", pool, "--type", "process")
        cluster.run("prefect", "--no-prompt", "deploy", "--name", pool)
        for name in ("one", "two"):
            cluster.start_worker(name, pool)
        flow = cluster.start("caller", "pipelines.reproduce", log="flow.log")
        wait_for(lambda: list(training.glob("*/step_*/progress.json")), flow, cluster)
        lost = cluster.node_with("train_free")
        cluster.kill(lost)
        assert flow.wait(PATIENCE) == 0, cluster.said("flow.log", "one.log", "two.log")

    (left,) = {"one", "two"} - {lost}
    assert "continuing from checkpoints" in (tmp_path / f"{left}.log").read_text()
    stages = list(yaml.safe_load((caller.path / "dvc.lock").read_text())["stages"])
    ended = [name for name, state in cluster.runs(pool) if state == "COMPLETED"]
    stages.remove("code")  # which runs where the flow does
    assert sorted(ended) == sorted(stages)
    others = [each for each in cluster.runs(pool) if each[1] != "COMPLETED"]
    assert (f"train_free@{IMPLICIT}", "CRASHED") in others
    assert {state for _, state in others} == {"CRASHED"}
    assert stale(caller.path) == {}
    assert not list(training.glob("*"))

    alone.run("dvc", "repro")
    for entry in (IMPLICIT, EXPLICIT):
        path = f"models/{entry}/final/model.safetensors"
        assert sha256(caller.path / path) == sha256(alone.path / path)
    found = [path.relative_to(alone.path) for path in (alone.path / "results").rglob("*.json")]
    assert len(found) > 5
    for path in found:
        if not path.name.endswith("_checksums.json"):  # of times, too
            assert timeless(read(caller.path / path)) == timeless(read(alone.path / path)), path
    assert tracked_stages(servers) >= {name for name in stages if not name.startswith("prepare")}


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def timeless(content: Any) -> Any:
    """Leave out what differs from run to run: times, and what follows from them."""
    if isinstance(content, Mapping):
        kept = (key for key in content if not any(word in key for word in OF_TIME))
        return {key: timeless(content[key]) for key in kept}
    return [timeless(each) for each in content] if isinstance(content, list) else content


def tracked_stages(servers: Servers) -> set[str]:
    """Ask MLflow's server which stages it has runs of."""
    url = f"{servers.mlflow}/api/2.0/mlflow"
    found = httpx.get(f"{url}/experiments/search", params={"max_results": 100}, timeout=60).json()
    experiments = [each["experiment_id"] for each in found["experiments"]]
    body = {"experiment_ids": experiments, "max_results": 1000}
    runs = httpx.post(f"{url}/runs/search", json=body, timeout=60).json().get("runs", [])
    tags = [each for single in runs for each in single["data"].get("tags", [])]
    return {tag["value"] for tag in tags if tag["key"] == "dvc.stage"}
