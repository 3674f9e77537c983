"""Spools of somebody else: they reach nothing of the user's but the tracking store."""

import base64
import contextlib
import hashlib
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from implicit_models.tracking.mlflow import Sender
from implicit_models.tracking.opening import open_tracker
from implicit_models.tracking.spool import Spool, line_of, open_spools

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of MLflow's own


def spool_of(root: Path, *events: dict, **of_start) -> Spool:
    """Write a finished spool with these events."""
    with open_tracker(
        entry="entry", stage="train_bounded", parameters={}, dataset="a5", root=root, send=False
    ):
        pass
    (spool,) = open_spools(root)
    (start, _), *_, (end, _) = spool.events()
    lines = [start | of_start, *({"time": start["time"], **each} for each in events), end]
    spool.path.write_bytes(b"".join(map(line_of, lines)))
    return spool


@pytest.mark.parametrize("way", ["absolute", "above", "too deep", "link", "link to a folder"])
def test_what_is_no_copy_is_neither_sent_nor_removed(root, store, caplog, way):
    precious = root / "home" / "keys"
    precious.mkdir(parents=True)
    (precious / "id_rsa").write_text("secret")
    names = {
        "absolute": str(precious / "id_rsa"),
        "above": "1/../../../home/keys",
        "too deep": "1/2/id_rsa",
    }
    copy = names.get(way, "1/copy")
    artifact = {"event": "artifact", "copy": copy, "folder": None}
    spool = spool_of(root, artifact, {"event": "artifact", "copy": "2/good.txt", "folder": None})
    for name in ("1/2", "2"):
        (spool.artifact_folder / name).mkdir(parents=True)
    (spool.artifact_folder / "2" / "good.txt").write_text("good")
    (spool.artifact_folder / "1" / "2" / "id_rsa").write_text("deep")
    if way == "link":
        (spool.artifact_folder / "1" / "copy").symlink_to(precious / "id_rsa")
    elif way == "link to a folder":
        (spool.artifact_folder / "1" / "copy").mkdir()
        (spool.artifact_folder / "1" / "copy" / "more").symlink_to(precious)

    assert Sender(root).send([spool]) == {}
    assert (precious / "id_rsa").read_text() == "secret"
    (run,) = store.stages()
    assert store.artifacts(run) == ["good.txt"]
    (warning,) = (each for each in caplog.messages if "left out" in each)
    assert spool.path.name in warning


@pytest.mark.parametrize(
    "first",
    [
        b'{"event": "start", "a": ' + b"[" * 100_000 + b"]" * 100_000,
        b'{"event": "start"',
        b'{"event": "start", "destination": null, "entry": ["x"], "time": 1, "experiment": 5',
        b'{"event": "start", "time": ' + b"9" * 4000,
        b'{"event": ["start"]',
    ],
    ids=["deep", "empty", "of other types", "huge", "no kind"],
)
def test_one_that_says_nothing_is_set_aside_and_the_others_are_sent(root, store, caplog, first):
    spool = spool_of(root)
    bad = spool.path.with_name("20200101T000000.000000-x-y-1.jsonl")
    digest = hashlib.sha256(first).hexdigest()[:16]
    bad.write_bytes(first + b', "checksum": "' + digest.encode() + b'"}\n')

    with open_tracker(
        entry="other", stage="train_bounded", parameters={}, dataset="a5", root=root, send=False
    ):
        pass
    assert Sender(root).send(open_spools(root)) == {}
    assert {run.data.tags["entry"] for run in store.stages()} == {"entry", "other"}
    assert (bad.parent / "damaged" / bad.name).exists()
    assert any(bad.name in message for message in caplog.messages)


@contextlib.contextmanager
def listening() -> Iterator[tuple[str, list[str]]]:
    """Run a server that refuses everything, and yields what requests log in with."""
    found: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            kind, _, content = self.headers.get("Authorization", "Basic ").partition(" ")
            found.append(base64.b64decode(content).decode() if kind == "Basic" else content)
            self.send_error(401)

        do_POST = do_GET

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", found
        server.shutdown()


@pytest.mark.parametrize("given", ["password", "token", "file"])
def test_credentials_go_to_nobody_but_the_store_of_the_environment(
    bare_root, monkeypatch, tmp_path, given
):
    for name in ("USERNAME", "PASSWORD", "TOKEN"):
        monkeypatch.delenv(f"MLFLOW_TRACKING_{name}", raising=False)
    if given == "password":
        monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "alice")
        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "hunter2")
    elif given == "token":
        monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "hunter2")
    else:
        monkeypatch.setenv("HOME", str(tmp_path))
        (tmp_path / ".mlflow").mkdir()
        file = tmp_path / ".mlflow" / "credentials"
        file.write_text("[mlflow]\nmlflow_tracking_username = alice\n"
                        "mlflow_tracking_password = hunter2\n")  # fmt: skip
    with listening() as (theirs, heard), listening() as (ours, sent):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", ours)
        spool = spool_of(bare_root, destination=theirs)
        assert spool in Sender(bare_root).send([spool])
        assert heard
        assert not any("hunter2" in each or "alice" in each for each in heard)

        spool.path.unlink()
        own = spool_of(bare_root)
        assert own in Sender(bare_root).send([own])
        assert any("hunter2" in each for each in sent)

        Sender(bare_root, theirs).send([own])  # as the user says now
        assert any("hunter2" in each for each in heard)
