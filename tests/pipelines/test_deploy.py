import importlib
import json
import re
import shutil
from pathlib import Path

import pytest
import yaml

from pipelines.deploy import DeployError, pools_of
from tests.repositories import ROOT

PREFECT = ROOT / "prefect.yaml"
TEMPLATE = ROOT / "deploy" / "kubernetes" / "job_template.json"


@pytest.fixture(autouse=True)
def in_the_repository(monkeypatch):
    monkeypatch.chdir(ROOT)


def deployments() -> list[dict]:
    return yaml.safe_load(PREFECT.read_text())["deployments"]


@pytest.mark.parametrize("deployment", deployments(), ids=lambda each: each["name"])
def test_every_deployment_names_a_flow_that_is_there(deployment):
    file, _, name = deployment["entrypoint"].partition(":")
    flow = getattr(importlib.import_module(file.removesuffix(".py").replace("/", ".")), name)
    assert flow.name == {"run_stage": "run-stage", "reproduce": "reproduce"}[name]


def test_a_pool_with_a_template_is_no_pool_of_processes():
    assert pools_of(Path("prefect.yaml"), []) == {
        "flows": "process",
        "gpu-nodes": "process",
        "kubernetes": "kubernetes",
    }
    assert pools_of(Path("prefect.yaml"), ["nightly"]) == {"flows": "process"}


def test_a_second_pool_of_kubernetes_has_a_name_of_its_own(tmp_path, monkeypatch):
    text = PREFECT.read_text().replace("{name: kubernetes", "{name: kubernetes-8")
    (tmp_path / "prefect.yaml").write_text(text)
    (tmp_path / "deploy" / "kubernetes-8").mkdir(parents=True)
    shutil.copy(TEMPLATE, tmp_path / "deploy" / "kubernetes-8")
    monkeypatch.chdir(tmp_path)
    assert pools_of(Path("prefect.yaml"), ["kubernetes"]) == {"kubernetes-8": "kubernetes"}


def test_an_unknown_deployment_is_named():
    with pytest.raises(DeployError, match="no deployment gpu; it has nightly, on-push, gpu-nodes"):
        pools_of(Path("prefect.yaml"), ["gpu"])


def test_every_blank_of_the_kubernetes_template_is_a_variable():
    template = json.loads(TEMPLATE.read_text())
    blanks = set(re.findall(r"\{\{ (\w+) \}\}", json.dumps(template["job_configuration"])))
    assert blanks == set(template["variables"]["properties"])


def test_the_manifests_and_the_servers_load():
    manifests = list(yaml.safe_load_all((ROOT / "deploy/kubernetes/worker.yaml").read_text()))
    assert [each["kind"] for each in manifests] == [
        "ServiceAccount",
        "Role",
        "RoleBinding",
        "Deployment",
    ]
    servers = yaml.safe_load((ROOT / "deploy/servers.compose.yaml").read_text())["services"]
    for service in servers.values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
