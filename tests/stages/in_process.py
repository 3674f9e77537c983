"""All stages of dvc.yaml in their order, in this process."""

import functools
import importlib
import shutil
from pathlib import Path

import pytest
import yaml

from implicit_models.tracking.opening import open_tracker
from pipelines.dag import read_dag
from tests.repositories import ROOT

COMMANDS = {
    name: (stage.get("do") or stage)["cmd"]
    for name, stage in yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"].items()
}


def work_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder with the project's description; nothing is sent to MLflow."""
    send_nothing(monkeypatch)
    monkeypatch.chdir(folder)
    (folder / ".dvc").mkdir()
    (folder / ".dvc" / "config").write_text("[core]\n    no_scm = true\n")
    (folder / "conf").symlink_to(ROOT / "conf")
    shutil.copy(ROOT / "dvc.yaml", folder)


def send_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run stages outside of DVC, and start no courier, which would write beside them."""
    monkeypatch.delenv("DVC_STAGE", raising=False)
    monkeypatch.setattr("stages.tracked.open_tracker", functools.partial(open_tracker, send=False))
    monkeypatch.setattr("stages.report.tracked_run_id", lambda *_: None)


def run_stages(root: Path) -> list[str]:
    """Run what `dvc repro` would, in its order, in this process."""
    stages = read_dag(root)
    for name, stage in stages.items():
        module = importlib.import_module(COMMANDS[stage.kind].split()[2])
        module.main(stage.entry)
        missing = [path for path in stage.outs if not (root / path).exists()]
        assert not missing, f"{name} has not written {missing}"
    return list(stages)
