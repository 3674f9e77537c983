"""What watches a job of Slurm: faults of this machine that pass, and the end of patience."""

import errno
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prefect.states import Running

from pipelines.cluster import pools, slurm, slurm_commands
from pipelines.cluster.placement import Place, Pool
from pipelines.dag import Stage
from pipelines.processes import allow_all, stop_all


@pytest.fixture
def job(tmp_path) -> Any:
    """Return a job that has printed a line and has no result yet."""
    (tmp_path / "printed").write_text("step 1\n")
    paths = SimpleNamespace(stdout=tmp_path / "printed", result_pickle=tmp_path / "result")
    return SimpleNamespace(job_id="7", paths=paths)


def refuse(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def test_a_command_that_cannot_be_started_for_a_moment_has_given_no_answer(monkeypatch):
    def run(*arguments: Any, **options: Any) -> None:
        raise refuse(errno.EAGAIN)

    monkeypatch.setattr(subprocess, "run", run)
    asked = slurm_commands.ask("scontrol", "show", "job", "7")
    assert asked.returncode != 0 and "Resource temporarily unavailable" in asked.stderr
    assert slurm_commands.job_state("7") == ""


def test_a_disk_that_does_not_answer_for_a_moment_ends_no_job(job, tmp_path, monkeypatch):
    """Read a job's output and look for its result while the shared disk gives errors."""
    faults, log = [errno.ESTALE, errno.EIO], []
    opened, stat = Path.open, os.stat

    def open_later(path: Path, *arguments: Any, **options: Any) -> Any:
        if path == job.paths.stdout and faults:
            raise refuse(faults.pop())
        return opened(path, *arguments, **options)

    def stat_later(path: Any, *arguments: Any, **options: Any) -> Any:
        if path == job.paths.result_pickle and len(faults) == 1:
            raise refuse(errno.EIO)
        return stat(path, *arguments, **options)

    def tell(line: str) -> None:
        log.append(line)
        job.paths.result_pickle.touch()

    monkeypatch.setattr(Path, "open", open_later)
    monkeypatch.setattr(os, "stat", stat_later)
    monkeypatch.setattr(slurm, "pause", lambda seconds: None)
    monkeypatch.setattr(slurm, "_cancel", lambda job: pytest.fail("the job is ended"))
    monkeypatch.setattr(slurm.SlurmRunner, "_answer", lambda *arguments: {"result": 1})
    pool = Pool(kind="slurm", slurm={"time": 10})
    watcher = slurm.SlurmRunner(tmp_path, "a", pool, Place())
    assert watcher._watched(Stage("train@x"), job, tell) == {"result": 1}
    assert log == ["step 1"] and not faults


def stop_once_more(seconds: float) -> None:
    stop_all(patience=0)


def test_who_stops_once_more_waits_no_longer_for_a_jobs_checkpoint(job, monkeypatch):
    asked = []

    def ask(*command: str) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        return subprocess.CompletedProcess(command, 0, "JobState=RUNNING", "")

    monkeypatch.setattr(slurm, "ask", ask)
    monkeypatch.setattr(slurm_commands, "ask", ask)
    monkeypatch.setattr(slurm.time, "sleep", once(stop_once_more))
    stop_all()
    try:
        slurm._cancel(job)
    finally:
        allow_all()
    assert asked[0][:2] == ("scancel", "--batch") and asked[-1] == ("scancel", "7")


def once(act: Any) -> Any:
    """Return what acts the first time it is called, and is not to be called again."""
    calls = []

    def call(*arguments: Any) -> None:
        assert not calls, "it goes on waiting"
        calls.append(arguments)
        act(*arguments)

    return call


def test_who_stops_once_more_waits_no_longer_for_a_run_in_a_pool(monkeypatch):
    set_to = []
    client: Any = SimpleNamespace(
        read_flow_run=lambda run_id: SimpleNamespace(state=Running()),
        set_flow_run_state=lambda run_id, state, force: set_to.append(state.name),
    )
    monkeypatch.setattr(pools, "read_artifact", lambda *arguments: {"node": "one"})
    monkeypatch.setattr(pools.time, "sleep", once(stop_once_more))
    watch = pools._Watch(client, "run", Pool(kind="prefect"), print)  # type: ignore[arg-type]
    stop_all()
    try:
        watch.cancel()
    finally:
        allow_all()
    assert set_to == ["Cancelling"]
