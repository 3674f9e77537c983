"""The number that a stage says of itself is that of DVC's own order."""

from pathlib import Path

import pytest
import yaml
from dvc.utils.hydra import compose_and_dump

from pipelines.dag import read_dag
from stages.order import stage_number, stage_order
from tests.repositories import presets

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("preset", presets())
def test_order_is_that_of_dvc(preset, tmp_path, monkeypatch):
    path = tmp_path / "params.yaml"
    compose_and_dump(str(path), str(ROOT / "conf"), None, "config", str(ROOT), [f"preset={preset}"])
    text = path.read_text()
    for name in ("dvc.yaml", ".dvcignore"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    (tmp_path / ".dvc").mkdir()
    (tmp_path / ".dvc" / "config").write_text("[core]\n    no_scm = true\n")
    dag = list(read_dag(tmp_path))
    assert len(dag) > 5
    assert stage_order(yaml.safe_load((ROOT / "dvc.yaml").read_text()), yaml.safe_load(text)) == dag
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(dag, start=1):
        monkeypatch.setenv("DVC_STAGE", name)
        assert stage_number() == (number, len(dag))


def test_what_dvc_does_not_run_has_no_number(monkeypatch, tmp_path):
    monkeypatch.delenv("DVC_STAGE", raising=False)
    assert stage_number(ROOT) is None
    monkeypatch.setenv("DVC_STAGE", "train_free@nobody")
    assert stage_number(ROOT) is None
    monkeypatch.setenv("DVC_STAGE", "report")
    assert stage_number(tmp_path) is None
