"""The DVC remote: what nodes that share no disk put there and take from there.

DVC's commands do not do this. `dvc push` and `dvc repro --pull` move only outputs that are cached,
and metrics are not; ``--run-cache`` copies the records of all runs that a cache has had, each time.
"""

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dvc.config import NoRemoteError
from dvc.data_cloud import Remote
from dvc.output import Output
from dvc.repo import Repo
from dvc.stage import PipelineStage, create_stage
from dvc.stage.cache import _can_hash, _get_stage_hash  # DVC has no public name for them
from dvc.utils.serialize import load_yaml
from dvc_data.hashfile.build import build
from dvc_data.hashfile.hash_info import HashInfo
from dvc_data.hashfile.meta import Meta
from dvc_data.hashfile.transfer import transfer
from dvc_data.hashfile.tree import Tree

from pipelines.running import InfrastructureError, StageFailedError, StoppedError

HASH = "md5"

log = logging.getLogger(__name__)


def storage(repo: Repo, remote: str | None) -> Remote:
    """Return the remote, for files that are beside DVC's own."""
    return repo.cloud.get_remote(remote)


def put(remote: Remote, file: Path, name: str) -> None:
    """Copy a file into a remote, under a name relative to its root."""
    path = remote.fs.join(remote.path, *name.split("/"))
    remote.fs.makedirs(remote.fs.parent(path), exist_ok=True)
    remote.fs.put_file(os.fspath(file), path)


def get(remote: Remote, path: str, file: Path) -> None:
    """Copy a file from a path of a remote, whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f".{file.name}.partial")
    remote.fs.get_file(path, os.fspath(partial))
    partial.replace(file)


@contextlib.contextmanager
def faults(what: str, name: str) -> Iterator[None]:
    """Turn what goes wrong underneath into an error that says whose fault it is."""
    try:
        yield
    except NoRemoteError:
        raise StageFailedError(
            f"stage {name} shall run elsewhere, and there is no DVC remote through which its data "
            "could travel; name one: `dvc remote add --default storage s3://BUCKET/FOLDER` (or a "
            "folder that all machines see), here and on the nodes"
        ) from None
    except ImportError as error:  # DVC's own, of a remote's kind that has a package of its own
        raise StageFailedError(
            f"stage {name}: the DVC remote cannot be used here: {error}; `pip install -e "
            "'.[cluster]'` has it for S3 (docs/cluster.md)"
        ) from None
    except (StageFailedError, InfrastructureError, StoppedError):
        raise
    except Exception as error:  # the libraries of S3 and ssh have errors of their own
        told = in_words(error)
        raise InfrastructureError(f"{what} stage {name} could not be exchanged: {told}") from error


def in_words(error: Exception) -> str:
    """Return what an error says; its name where it says nothing, as some of ssh's."""
    return str(error) or type(error).__name__


def description(repo: Repo) -> str:
    """Return the path of a repository's dvc.yaml."""
    return os.path.join(repo.root_dir, "dvc.yaml")


def outputs_of(entry: Mapping[str, Any]) -> dict[str, str]:
    """Return the hashes of the outputs in an entry of dvc.lock, by their paths."""
    return {out["path"]: out[HASH] for out in entry.get("outs", ())}


def holder(
    stage: PipelineStage, files: Mapping[str, str], folder: str | None = None
) -> PipelineStage:
    """Make a stage for what lies beside another, with all of it in DVC's cache, metrics too.

    DVC brings nothing but outputs into a clone, and of them none that are not cached.
    """
    path, wdir = description(stage.repo), folder or stage.wdir
    holder = create_stage(
        PipelineStage, repo=stage.repo, path=path, wdir=wdir, cmd="", outs=list(files)
    )
    for out in holder.outs:
        value = files[out.def_path]
        out.hash_info = HashInfo(HASH, value)
        out.meta = Meta(isdir=value.endswith(".dir"))
    return holder


def pull(repo: Repo, stage: PipelineStage, remote: str | None) -> None:
    """Bring the outputs of a stage from the remote into the repository."""
    storage(repo, remote)  # where there is none, this says so; DVC's pull would call it a lost file
    for out in stage.outs:
        if missing := _pull_to_cache(repo, out, remote):
            raise InfrastructureError(
                f"{missing} files of {out.def_path} are not in the DVC remote, or could not be had "
                "from it"
            )
    with repo.lock:
        stage.checkout(force=True)


def _pull_to_cache(repo: Repo, out: Output, remote: str | None) -> int:
    """Fetch an output's files into DVC's cache; return how many could not be had."""
    used = out.get_used_objs(remote=remote).values()
    return sum(len(repo.cloud.pull(hashes, remote=remote).failed) for hashes in used)


def push(repo: Repo, hashes: set[HashInfo], remote: str | None) -> None:
    """Put what DVC's cache has under these hashes into the remote."""
    storage(repo, remote)  # where there is none, this says so
    if not hashes:
        return
    done = repo.cloud.push(hashes, remote=remote)
    if done.failed:
        raise InfrastructureError(f"{len(done.failed)} files could not be put into the DVC remote")


def to_cache(repo: Repo, item: Output) -> list[HashInfo]:
    """Copy what lies at a path into DVC's cache; return its hash, and those of its parts."""
    ignore: Any = repo.dvcignore
    staging, _, content = build(repo.cache.local, item.fs_path, item.fs, HASH, ignore=ignore)
    assert content.hash_info is not None
    transfer(staging, repo.cache.local, {content.hash_info}, shallow=False)
    entries = content if isinstance(content, Tree) else ()
    parts = [part for _, _, part in entries if part is not None]
    return [content.hash_info, *parts]


def publish_runs(stage: PipelineStage, name: str | None) -> None:
    """Copy DVC's own records of a stage's runs for the present inputs into the remote."""
    if not _can_hash(stage):
        return
    key = _get_stage_hash(stage)
    for file in Path(stage.repo.stage_cache.cache_dir, key[:2], key).glob("*"):
        put(storage(stage.repo, name), file, f"runs/{key[:2]}/{key}/{file.name}")


def take_runs(stage: PipelineStage, name: str | None) -> None:
    """Add to DVC's own records of runs what another node has done for the same inputs."""
    if not _can_hash(stage):
        return
    repo: Repo = stage.repo
    key = _get_stage_hash(stage)
    remote = storage(repo, name)
    folder = remote.fs.join(remote.path, "runs", key[:2], key)
    if not remote.fs.exists(folder):
        return
    for path in remote.fs.find(folder):
        record = Path(repo.stage_cache.cache_dir, key[:2], key, remote.fs.name(path))
        get(remote, path, record)
        outs = holder(stage, outputs_of(load_yaml(record))).outs
        if any(_pull_to_cache(repo, out, name) for out in outs):
            log.warning("%s: an earlier run is not whole in the DVC remote", stage)
            record.unlink()
            return
