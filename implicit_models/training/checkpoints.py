"""Checkpoints of training: atomic, complete, and only ever continued by the same training."""

import hashlib
import json
import logging
import os
import shutil
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor

from implicit_models.training.distributed import Processes
from implicit_models.training.state import layout, named_state, put_state, spread

log = logging.getLogger(__name__)

ALONE = Processes()

T = TypeVar("T")

_PROGRESS = "progress.json"
_PARTIAL, _REPLACED = ".partial", ".replaced"


@dataclass(frozen=True)
class Progress:
    """What a checkpoint says besides its tensors.

    Attributes
    ----------
    step
        Optimiser steps done, those that were left out included: the position in the schedule.
    sequences
        Sequences drawn so far, in all segments: the position in the data.
    tokens, flops
        Tokens that the entry has been trained on so far, in all segments, and the floating-point
        operations that took; validation is not among them.
    seconds
        Wall time of this segment's loop so far, validation and checkpoints included.
    skipped_steps
        Steps of this segment that were left out, because something in them was not finite.
    history
        One row of metrics for each time something was logged in this segment.
    """

    step: int
    sequences: int = 0
    tokens: int = 0
    flops: float = 0.0
    seconds: float = 0.0
    skipped_steps: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)


def save_state(
    path: Path,
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    progress: Progress,
    processes: Processes = ALONE,
) -> None:
    """Write everything that training needs to go on, in one file that appears whole or not.

    Every process calls this, and the main one writes: the same bytes however many there are and
    however they share the state. None goes on before the file is there.
    """
    whole: dict[str, Tensor] = {}
    for name, tensor in named_state(model, optimiser).items():
        tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        if processes.is_main:
            whole[name] = tensor.detach().cpu().contiguous()
    if processes.is_main:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(_PARTIAL)
        save_file(whole, partial, {"progress": json.dumps(progress.__dict__)})
        _sync(partial)
        partial.replace(path)
        _sync(path.parent)
    processes.wait()


def load_state(
    path: Path,
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    processes: Processes = ALONE,
) -> Progress:
    """Put a written state into a model and its optimiser; where it fails they are as before.

    Every process calls this. Where one of them cannot load the file, all raise.

    Raises
    ------
    SafetensorError, OSError
        Where the file is not a whole one.
    ValueError, KeyError, RuntimeError
        Where it is of another model, or another process could not load it.
    """

    def read() -> tuple[dict[str, Tensor], Progress]:
        with safe_open(path, framework="pt") as file:
            here = layout(model, file.keys())
            state = {name: spread(name, file.get_tensor(name), here[name]) for name in here}
            return state, Progress(**json.loads(file.metadata()["progress"]))

    state, progress = _together(processes, read)
    put_state(model, optimiser, state)
    return progress


class CheckpointFolder:
    """The checkpoints of one training, in a folder of their own; all processes use it alike.

    The folder is named by the identity of the training: a digest of its parameters, its data
    and its code. A training with another identity has another folder, so nothing is ever
    continued by what did not begin it, and nothing is overwritten.

    A checkpoint is a folder ``step_000000120`` in the format of ``torch.distributed.checkpoint``,
    which any number of processes can load, whichever way they share the state; and a file
    ``progress.json`` with the sizes and checksums of the others. The main process renames it to
    this name when all of it is there. The folder must be in a file system that all processes share.

    Parameters
    ----------
    root
        Where the folder is.
    kept
        Whole checkpoints that are kept: the newest ones.

    Attributes
    ----------
    path
        The folder.
    """

    def __init__(
        self, root: Path, identity: str, processes: Processes = ALONE, kept: int = 2
    ) -> None:
        self.path = root / identity[:16]
        self.processes = processes
        self.kept = kept
        self._writing: threading.Thread | None = None
        # Of its own: what is written in the background must not meet the training's collectives.
        self._group: dist.ProcessGroup | None = None
        if processes.size > 1:
            self._group = cast(dist.ProcessGroup, dist.new_group(backend="gloo"))

    def __enter__(self) -> "CheckpointFolder":
        return self

    def __exit__(self, *exception: object) -> None:
        self.wait()  # whatever has happened: what is being written is worth having

    def save(self, model: nn.Module, optimiser: torch.optim.Optimizer, progress: Progress) -> None:
        """Copy the state, and write it as a checkpoint while training goes on.

        The checkpoint before is waited for. Where writing fails, such as on a full disk, the log
        has a warning, and the checkpoints before stay.
        """
        self.wait()
        _expect_no_dist()
        own = self._own_share(named_state(model, optimiser))
        state = {name: tensor.detach().to("cpu", copy=True) for name, tensor in own.items()}
        progress = replace(progress, history=list(progress.history))
        folder = self.path / f"step_{progress.step:09d}"
        self._writing = threading.Thread(
            target=self._write, args=(folder, state, progress), name=f"checkpoint {folder.name}"
        )
        self._writing.start()

    def wait(self) -> None:
        """Go on when what is being written is there, or has failed and was said."""
        if self._writing is not None:
            self._writing.join()
            self._writing = None

    def resume(self, model: nn.Module, optimiser: torch.optim.Optimizer) -> Progress | None:
        """Load the newest whole checkpoint; None where there is none, with all as it was.

        All processes load the same one. One that is damaged is named in the log.
        """
        self.wait()
        _expect_no_dist()
        main = self.processes.is_main
        inspected = self.processes.from_main(self._inspected() if main else [])
        for folder, found in inspected:
            why: Any = found
            if isinstance(found, Progress):
                why = self.processes.from_main(_damage(folder) if main else None)
            if isinstance(found, Progress) and why is None:
                try:
                    state = _together(self.processes, lambda folder=folder: _read(folder, model))
                except Exception as error:  # whatever damaged bytes lead to
                    why = _described(error)
                else:
                    put_state(model, optimiser, state)
                    if main:
                        log.info("continuing from %s", folder)
                    return found
            if main:
                log.warning("%s cannot be used (%s); trying the one before it", folder, why)
        if inspected and main:
            log.warning("no checkpoint in %s can be used; training starts anew", self.path)
        return None

    def _own_share(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Leave to each process a part of what all of them hold whole, of about equal size."""
        common = [name for name in state if not isinstance(state[name], DTensor)]
        common.sort(key=lambda name: (-state[name].nbytes, name))
        others = set(common) - set(common[self.processes.rank :: self.processes.size])
        return {name: tensor for name, tensor in state.items() if name not in others}

    def _write(self, folder: Path, state: dict[str, Tensor], progress: Progress) -> None:
        partial = folder.with_suffix(_PARTIAL)
        try:
            if self.processes.is_main:
                shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed
            writer = FileSystemWriter(partial, per_thread_copy_ahead=0)
            alone = self._group is None
            save(state, storage_writer=writer, process_group=self._group, no_dist=alone)
            if not alone and not dist.is_initialized():
                # torch has then written what this process has as if it were everything.
                raise RuntimeError("the processes have parted without waiting for it")
            digests = self._digests(partial)
            try:
                if self.processes.is_main:
                    self._publish(partial, folder, progress, digests)
            finally:
                if not alone:
                    dist.barrier(self._group)
        except (Exception, CheckpointException) as error:
            if self.processes.is_main:
                why = _described(error)
                log.warning("%s could not be written (%s); training goes on", folder, why)
                shutil.rmtree(partial, ignore_errors=True)

    def _digests(self, partial: Path) -> dict[str, str]:
        """Digest what all processes have written, each its own files."""
        rank = self.processes.rank
        own = [*partial.glob(f"__{rank}_*"), *([partial / ".metadata"] if rank == 0 else [])]
        digests = {file.name: _digest(file) for file in own}
        if self._group is None:
            return digests
        found: list[Any] = [None] * self.processes.size
        dist.all_gather_object(found, digests, group=self._group)
        return {name: digest for each in found for name, digest in each.items()}

    def _publish(
        self, partial: Path, folder: Path, progress: Progress, digests: dict[str, str]
    ) -> None:
        """Give a checkpoint that has been written its name, and let go of older ones."""
        files = {
            file.name: {"bytes": file.stat().st_size, "sha256": digests[file.name]}
            for file in sorted(partial.iterdir())
        }
        content = {"progress": progress.__dict__, "files": files}
        (partial / _PROGRESS).write_text(json.dumps(content))
        _sync(partial / _PROGRESS)
        _sync(partial)
        if folder.exists():
            replaced = folder.with_suffix(_REPLACED)
            shutil.rmtree(replaced, ignore_errors=True)
            folder.rename(replaced)
        partial.rename(folder)
        _sync(self.path)
        for stale in [*self.path.glob(f"*{_PARTIAL}"), *self.path.glob(f"*{_REPLACED}")]:
            shutil.rmtree(stale, ignore_errors=True)
        # One that is ahead could not be used when this training began; perhaps it can be later.
        for old in [each for each in self._folders() if each <= folder][self.kept :]:
            leaving = old.with_suffix(_PARTIAL)
            old.rename(leaving)
            shutil.rmtree(leaving, ignore_errors=True)

    def _folders(self) -> list[Path]:
        """Give what is under a checkpoint's name, the newest first."""
        found = (each for each in self.path.glob("step_*") if each.is_dir())
        return sorted((each for each in found if each.suffix != _PARTIAL), reverse=True)

    def _inspected(self) -> list[tuple[Path, Progress | str]]:
        """Give the checkpoints, the newest first: each with what it says or why it is not whole."""
        inspected: list[tuple[Path, Progress | str]] = []
        for folder in self._folders():
            try:
                inspected.append((folder, _inspect(folder)))
            except Exception as error:  # whatever damaged bytes lead to
                inspected.append((folder, _described(error)))
        return inspected


def _inspect(folder: Path) -> Progress:
    """Read what a checkpoint says, and hold its files against it."""
    content = json.loads((folder / _PROGRESS).read_text())
    for name, written in content["files"].items():
        found = (folder / name).stat().st_size
        if found != written["bytes"]:
            raise ValueError(f"{name} has {found} bytes, {written['bytes']} were written")
    return Progress(**content["progress"])


def _damage(folder: Path) -> str | None:
    """Compare a checkpoint's files with their checksums; None where all is as it was written."""
    try:
        for name, written in json.loads((folder / _PROGRESS).read_text())["files"].items():
            found = _digest(folder / name)
            if found != written["sha256"]:
                return f"{name} has the SHA-256 {found}, {written['sha256']} was written"
    except OSError as error:
        return _described(error)
    return None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read(folder: Path, model: nn.Module) -> dict[str, Tensor]:
    """Read a process's part of a checkpoint into tensors of its own."""
    reader = FileSystemReader(folder)
    here = layout(model, reader.read_metadata().state_dict_metadata)
    state: dict[str, Any] = {name: torch.empty_like(tensor) for name, tensor in here.items()}
    # Each process reads by itself, so that one that fails keeps no other waiting.
    load(state, storage_reader=reader, no_dist=True)
    return state


def _together(processes: Processes, action: Callable[[], T]) -> T:
    """Do something on each process; raise on all where it fails on one."""
    results: list[T] = []
    failure: Exception | None = None
    try:
        results.append(action())
    except CheckpointException as error:
        cause = next(iter(error.failures.values()))[0]
        if not isinstance(cause, Exception):  # it holds a KeyboardInterrupt as well
            raise cause from None
        failure = cause
    except Exception as error:
        failure = error
    said = processes.gathered(_described(failure) if failure else None)
    if failure is not None:
        raise failure
    for rank, cause in enumerate(said):
        if cause is not None:
            raise RuntimeError(f"process {rank}: {cause}")
    return results[0]


def _described(error: BaseException) -> str:
    if isinstance(error, CheckpointException):
        return "; ".join(_described(cause) for cause, _ in error.failures.values())
    first = next(iter(str(error).splitlines()), "")  # torch's can be a page
    return f"{type(error).__name__}: {first}"


def _expect_no_dist() -> None:
    """Keep torch from warning of what is meant: reading, and a process alone, without collectives.

    Not in a context that puts the filters back: it would do so in the midst of other threads.
    """
    expected = "torch.distributed is disabled, unavailable or uninitialized"
    warnings.filterwarnings("ignore", message=expected, category=UserWarning)


def _sync(path: Path) -> None:
    """Have a file, or the names in a folder, outlast a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
