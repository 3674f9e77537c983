import json
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from omegaconf import OmegaConf

from implicit_models.data.parameters import DatasetParameters
from implicit_models.data.word_problems import write_splits
from implicit_models.language_models.building import build
from implicit_models.language_models.parameters import ModelParameters
from implicit_models.language_models.serialisation import save_model
from implicit_models.parameters import read_section
from tests.reporting.synthetic import parameters, write_results

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "state_tracking.ipynb"
MODEL = {
    "family": "mamba2",
    "implicit": True,
    "num_layers": 1,
    "d_model": 16,
    "d_state": 8,
    "head_dim": 8,
}


@pytest.fixture
def root(tmp_path):
    """Make a folder as `dvc repro` leaves it: made-up results, an untrained model, no MLflow."""
    content = parameters()
    content["datasets"]["a5"] |= {
        "kind": "word_problem",
        "seed": 0,
        "train": {"num_sequences": 8, "length": 16},
        "validation": {"num_sequences": 4, "length": 16},
        "test": {"num_sequences": 4, "lengths": [64]},
    }
    content["evaluation"] = {
        "lengths": [64],
        "num_sequences": 4,
        "tolerance": 0.01,
        "max_steps": 80,
    }
    (tmp_path / "params.yaml").write_text(OmegaConf.to_yaml(content))
    write_results(tmp_path)
    dataset = read_section("datasets.a5", DatasetParameters, tmp_path / "params.yaml")
    write_splits(dataset, tmp_path / "data" / "a5")
    model = build(ModelParameters(**MODEL), vocabulary_size=60, seed=0)
    save_model(model, tmp_path / "models" / "a5_implicit_mamba2" / "final")
    return tmp_path


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_notebook_draws_all_figures_and_says_that_nothing_is_tracked(root, monkeypatch):
    monkeypatch.setenv("STATE_TRACKING_ROOT", str(root))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    folder = {"metadata": {"path": str(NOTEBOOK.parents[1])}}
    NotebookClient(notebook, timeout=240, resources=folder).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(pictures) == 5
    printed = "".join(output["text"] for output in outputs if output.output_type == "stream")
    assert "has no curves of a5_implicit_mamba2," in printed
    assert "self-iterations for 64 tokens" in printed
    assert not (root / "mlflow.db").exists()


def test_notebook_is_stored_without_outputs():
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    for cell in notebook["cells"]:
        assert not cell.get("outputs") and cell.get("execution_count") is None
        assert "def " not in "".join(cell["source"]) and "class " not in "".join(cell["source"])
