"""The notebook where nothing is tracked; on real results it runs in tests/test_pipeline.py."""

import json
from pathlib import Path

import nbformat
import pytest
import yaml
from nbclient import NotebookClient

from tests.reporting.synthetic import parameters, write_results

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "state_tracking.ipynb"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_without_a_tracking_store_the_curves_are_those_of_dvc(tmp_path, monkeypatch):
    content = parameters()
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    write_results(tmp_path)
    monkeypatch.setenv("STATE_TRACKING_ROOT", str(tmp_path))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    after = next(n for n, cell in enumerate(notebook.cells) if "## Test-time" in cell.source)
    notebook.cells = notebook.cells[:after]
    folder = {"metadata": {"path": str(NOTEBOOK.parents[1])}}
    NotebookClient(notebook, timeout=240, resources=folder).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    printed = "".join(output["text"] for output in outputs if output.output_type == "stream")
    names = [name for table in ("runs", "baselines") for name in content[table]]
    assert f"has no curves of {', '.join(names)}: DVC's are drawn." in printed
    assert "image/png" in outputs[-1]["data"]
    assert not (tmp_path / "mlflow.db").exists()


def test_notebook_is_stored_without_outputs():
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    for cell in notebook["cells"]:
        assert not cell.get("outputs") and cell.get("execution_count") is None
        assert "def " not in "".join(cell["source"]) and "class " not in "".join(cell["source"])
