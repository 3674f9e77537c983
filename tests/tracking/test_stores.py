from pathlib import Path

import pytest

from implicit_models.tracking.stores import seen_from, stores_of


@pytest.mark.parametrize(
    ("store", "seen"),
    [
        ("sqlite:///mlflow.db", "sqlite:////repository/mlflow.db"),
        ("mlruns", "/repository/mlruns"),
        ("file:./mlruns", "file:/repository/mlruns"),
        ("sqlite:////elsewhere/mlflow.db", None),
        ("file:///elsewhere", None),
        ("/elsewhere", None),
        ("http://server:5000", None),
        ("postgresql://me:secret@server:5432/mlflow", None),
        ("s3://bucket/folder", None),
        ("databricks", None),
    ],
)
def test_a_relative_store_is_the_repositorys(store, seen):
    assert seen_from(Path("/repository"), store) == (seen or store)


def test_a_copy_of_a_repository_tracks_where_the_repository_does():
    root = Path("/repository")
    assert stores_of(root, {"HOME": "/home"}) == {
        "MLFLOW_TRACKING_URI": "sqlite:////repository/mlflow.db"
    }
    given = {"MLFLOW_TRACKING_URI": "http://server:5000", "MLFLOW_DEFAULT_ARTIFACT_ROOT": "kept"}
    assert stores_of(root, given) == {**given, "MLFLOW_DEFAULT_ARTIFACT_ROOT": "/repository/kept"}
    empty = dict.fromkeys(given, "")
    assert stores_of(root, empty) == stores_of(root, {})
