import hashlib
import subprocess
import sys

import pytest
import yaml

from implicit_models.tracking.digests import content_digest, data_digest, is_recorded

WRITE = """
folder = pathlib.Path("data/a5")
(folder / "train").mkdir(parents=True)
(folder / "metadata.json").write_text("{}")
(folder / "train" / "inputs.bin").write_bytes(bytes(range(256)) * 10)
(folder / "train-2").write_bytes(b"x")
(folder / "ä.txt").write_text("one\\r\\ntwo")
pathlib.Path("file.txt").write_text("one\\r\\ntwo")
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """Run a stage with DVC, which records what it has written."""
    root = tmp_path_factory.mktemp("repository")
    (root / "write.py").write_text(f"import pathlib\n{WRITE}")
    stage = {"cmd": f"{sys.executable} write.py", "outs": ["data/a5", "file.txt"]}
    stage["deps"] = ["write.py"]
    (root / "dvc.yaml").write_text(yaml.safe_dump({"stages": {"prepare": stage}}))
    for command in (["init", "--no-scm", "--quiet"], ["repro", "--quiet"]):
        subprocess.run([sys.executable, "-m", "dvc", *command], cwd=root, check=True)
    return root


@pytest.fixture
def recorded(repository, monkeypatch):
    """What dvc.lock holds of each output, from inside the repository."""
    monkeypatch.chdir(repository)
    stages = yaml.safe_load((repository / "dvc.lock").read_text())["stages"]
    return {output["path"]: output["md5"] for output in stages["prepare"]["outs"]}


def test_content_has_the_digest_that_dvc_gives_it(repository, recorded):
    assert set(recorded) == {"data/a5", "file.txt"}
    for name, digest in recorded.items():
        assert content_digest(repository / name) == digest
    assert recorded["data/a5"].endswith(".dir")


def test_data_has_the_digest_that_dvc_has_recorded(repository, recorded):
    relative = (repository / "data" / "a5").relative_to(repository)
    assert data_digest(relative) == recorded["data/a5"]


def test_data_that_dvc_has_not_recorded_are_known_by_their_manifest(repository, recorded):
    folder = (repository / "data" / "a5").relative_to(repository)
    manifest = hashlib.md5((folder / "metadata.json").read_bytes()).hexdigest()
    other = repository / "data" / "other"
    other.mkdir()
    assert data_digest(other.relative_to(repository)) is None
    (other / "metadata.json").write_text("{}")
    assert data_digest(other.relative_to(repository)) == manifest
    (folder / "more").write_text("changed since DVC has looked")
    try:
        assert data_digest(folder) == manifest
    finally:
        (folder / "more").unlink()


def test_dvc_has_recorded_a_stage_with_what_lies_there(repository, recorded):
    lock = yaml.safe_load((repository / "dvc.lock").read_text())["stages"]["prepare"]
    inputs = {each["path"]: each["md5"] for each in lock["deps"]}
    assert inputs and is_recorded("prepare", inputs)
    assert not is_recorded("prepare", dict.fromkeys(inputs, "0" * 32))
    assert not is_recorded("other", inputs)
    assert not is_recorded(None, inputs)
    assert not is_recorded("prepare", {})


@pytest.mark.parametrize("content", [None, "", "stages: []", "{", "stages: {a: {cmd: b}}"])
def test_any_lock_file_will_do(tmp_path, monkeypatch, content):
    monkeypatch.chdir(tmp_path)
    if content is not None:
        (tmp_path / "dvc.lock").write_text(content)
    (tmp_path / "data").mkdir()
    assert data_digest(tmp_path / "data") is None
