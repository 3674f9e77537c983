"""Stages as jobs of Kubernetes: Prefect's own worker, and an imitation of the cluster."""

import contextlib
import importlib.util
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from pipelines.server.local_server import QUIET
from tests import warm_python
from tests.pipelines.clones import Clones, make_clones, stale
from tests.pipelines.fake_kubernetes import GPU, NAMESPACE, Cluster
from tests.pipelines.tiny import ROOT, Project, wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("prefect_kubernetes") is None,
        reason="prefect-kubernetes is not installed (pip install prefect-kubernetes)",
    ),
]

DEPLOY = ROOT / "deploy" / "kubernetes"
IMAGE = "implicit-models:latest"
PASSWORD = "admin:hidden"
LEFT_OUT = ("DVC_", "GIT_", "IMPLICIT_MODELS_", "KUBERNETES_", "MLFLOW_", "PREFECT_")


def manifests() -> dict[str, dict]:
    """Read worker.yaml by kinds."""
    loaded = yaml.safe_load_all((DEPLOY / "worker.yaml").read_text())
    return {each["kind"]: each for each in loaded}


def clean() -> dict[str, str]:
    kept = {name: v for name, v in os.environ.items() if not name.startswith(LEFT_OUT)}
    path = warm_python.before(kept["PATH"])
    own = warm_python.for_own_processes()
    paths = filter(None, [own.get("PYTHONPATH"), str(ROOT), kept.get("PYTHONPATH")])
    return {**kept, **QUIET, **own, "PATH": path, "PYTHONPATH": os.pathsep.join(paths)}


def worker_variables(cluster: Cluster) -> dict[str, str]:
    """Set the worker's environment to what its pod has."""
    (container,) = manifests()["Deployment"]["spec"]["template"]["spec"]["containers"]
    variables: dict[str, str] = {}
    for source in container["envFrom"]:
        variables |= cluster.secrets[source["secretRef"]["name"]]
    for each in container["env"]:
        of_pod = each.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
        variables[each["name"]] = NAMESPACE if of_pod == "metadata.namespace" else each["value"]
    return variables


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, use: Callable[[Project], Project]) -> Iterator[Cluster]:
    """A cluster with the worker of worker.yaml in it, and the deployment that it serves."""
    folder = tmp_path_factory.mktemp("cluster")
    clones = deployed(folder / "deploying")
    project = use(Project(clones.caller))
    project.run("-m", "pipelines.deploy", "kubernetes")
    cluster = Cluster(folder, manifests()["Role"]["rules"])
    cluster.secrets["implicit-models"] = {
        "PREFECT_API_URL": project.environment["PREFECT_API_URL"],
        "PREFECT_API_AUTH_STRING": PASSWORD,
        "PREFECT_WORKER_QUERY_SECONDS": "1",
    }
    (container,) = manifests()["Deployment"]["spec"]["template"]["spec"]["containers"]
    with cluster.serving() as configuration, (folder / "worker.log").open("wb") as log:
        own = {"KUBECONFIG": str(configuration), "PREFECT_HOME": str(folder / "home")}
        worker = subprocess.Popen(
            [warm_python.python(), "-m", *container["command"]],
            env={**clean(), **worker_variables(cluster), **own},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            yield cluster
        finally:
            worker.kill()
            worker.wait()


def deployed(root: Path) -> Clones:
    """Make clones of a small project with what is deployed in it."""
    modules = [*(ROOT / "pipelines").rglob("*.py"), DEPLOY / "job_template.json"]
    files = {str(path.relative_to(ROOT)): path.read_text() for path in modules}
    text = (ROOT / "prefect.yaml").read_text()
    assert text.count("directory: /clone ") == 1
    # Each pod's clone is elsewhere here, for all share a disk.
    there = 'directory: "{{ $IMPLICIT_MODELS_CLONE }}" '
    root.mkdir()
    return make_clones(root, {**files, "prefect.yaml": text.replace("directory: /clone ", there)})


def image(clones: Clones) -> Callable[[str], tuple[Path, dict[str, str]]]:
    """Return a function that makes a clone for each pod, as its container has one."""

    def make(pod: str) -> tuple[Path, dict[str, str]]:
        clone = clones.clone(pod)
        home = str(clones.root / f"{pod}.home")
        node = {"IMPLICIT_MODELS_NODE": pod, "IMPLICIT_MODELS_GPUS": "0", "PREFECT_HOME": home}
        return clone, {**clean(), **node, "IMPLICIT_MODELS_CLONE": str(clone)}

    return make


def place(clones: Clones, start_within_seconds: int, **environment: str) -> None:
    """Place the training in the cluster."""
    pool = {
        "kind": "prefect",
        "heartbeat_seconds": 1,
        "lost_after_seconds": 60,
        "start_within_seconds": start_within_seconds,
        "checkpoint_seconds": 0.1,
    }
    stage = {"pool": "kubernetes", "gpus": 1, "environment": environment}
    content = {"pools": {"kubernetes": pool}, "stages": {"train*": stage}}
    (clones.caller / "placement.yaml").write_text(yaml.safe_dump(content))


@contextlib.contextmanager
def flow_in(project: Project) -> Iterator[subprocess.Popen[str]]:
    """Run a flow for the length of a block."""
    with project.start("-m", "pipelines.reproduce") as flow:
        try:
            yield flow
        finally:
            flow.kill()


def test_an_evicted_training_goes_on_in_another_pod(cluster, use, tmp_path):
    clones = deployed(tmp_path / "clones")
    cluster.images[IMAGE] = image(clones)
    arrived = tmp_path / "arrived"
    place(clones, 120, STOP_AT="3", ARRIVED=str(arrived))
    with flow_in(use(Project(clones.caller))) as flow:
        wait_until(lambda: arrived.exists() or flow.poll() is not None)
        (first,) = cluster.names("pods")
        cluster.evict(first)
        output = flow.communicate(timeout=120)[0]
    assert flow.returncode == 0, output + cluster.log(first)
    assert f"{first} was asked to stop; what the stage has kept is in the remote" in output
    assert stale(clones.caller) == {}
    assert (clones.caller / "models" / "m.txt").exists()

    _, second = cluster.names("pods")
    assert "from the start" in cluster.log(first)
    assert "continuing from 3" in cluster.log(second)
    assert cluster.refused == []

    for job in cluster.objects["jobs"].values():
        assert job["spec"]["backoffLimit"] == 0
        assert job["spec"]["podReplacementPolicy"] == "Failed"
        assert job["spec"]["ttlSecondsAfterFinished"] == 86400
        pod = job["spec"]["template"]["spec"]
        assert pod["restartPolicy"] == "Never"
        assert pod["terminationGracePeriodSeconds"] == 180
        (container,) = pod["containers"]
        assert container["resources"]["limits"] == {GPU: 1, "memory": "64Gi"}
        assert container["envFrom"] == [{"secretRef": {"name": "implicit-models"}}]
    assert PASSWORD.split(":")[1] not in json.dumps(cluster.objects)


def test_a_pod_that_cannot_start_is_told_of_and_comes_too_late(cluster, use, tmp_path):
    clones = deployed(tmp_path / "clones")
    cluster.images.clear()
    before = set(cluster.names("pods"))
    place(clones, 12)
    with flow_in(use(Project(clones.caller))) as flow:
        assert flow.stdout is not None
        told = next((line for line in flow.stdout if "counts as lost" in line), "nothing")
        flow.terminate()
        flow.communicate(timeout=60)
    assert "the run has not begun for" in told
    assert "Image pull failed" in told
    assert f'"{IMAGE}": not found' in told

    (pod,) = set(cluster.names("pods")) - before
    cluster.images[IMAGE] = image(clones)
    cluster.schedule()
    wait_until(lambda: pod in cluster.names("pods", "Succeeded"))
    assert cluster.log(pod) == "the run of this pod is Crashed already: nothing is done\n"
