"""A repository folder with an empty MLflow database, and a look into it."""

import shutil

import pytest

from implicit_models.tracking import mlflow


@pytest.fixture
def bare_root(tmp_path, monkeypatch):
    """Return a folder without a database, out of reach of the user's own MLflow settings."""
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "DVC_STAGE", "DVC_EXP_NAME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def root(bare_root, empty_database):
    """Return a folder with an empty database."""
    shutil.copy(empty_database, bare_root / "mlflow.db")
    return bare_root


class Store:
    """What MLflow holds for a repository."""

    def __init__(self, root):
        self.client = mlflow.connect(f"sqlite:///{root / 'mlflow.db'}")

    def runs(self, experiment="implicit-models"):
        """Return all runs, the oldest first."""
        found = self.client.get_experiment_by_name(experiment)
        return list(reversed(self.client.search_runs([found.experiment_id]))) if found else []

    def entries(self):
        return [run for run in self.runs() if "mlflow.parentRunId" not in run.data.tags]

    def stages(self):
        return [run for run in self.runs() if "mlflow.parentRunId" in run.data.tags]

    def models(self, experiment="implicit-models"):
        """Return all logged models, the oldest first."""
        found = self.client.get_experiment_by_name(experiment)
        oldest = [{"field_name": "creation_time", "ascending": True}]
        return list(self.client.search_logged_models([found.experiment_id], order_by=oldest))

    def history(self, run, name):
        """Return the (step, value) pairs of a metric."""
        points = self.client.get_metric_history(run.info.run_id, name)
        return sorted((point.step, point.value) for point in points)

    def artifacts(self, run, folder=None):
        return sorted(i.path for i in self.client.list_artifacts(run.info.run_id, folder))


@pytest.fixture
def store(root):
    return Store(root)
