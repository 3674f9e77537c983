"""Checkpoints of training: atomic, complete, and only ever continued by the same training."""

import contextlib
import logging
import shutil
import threading
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor

from implicit_models.files import PARTIAL, checksum, remove, sync
from implicit_models.training.carried import Carried
from implicit_models.training.checkpoint_files import (
    METADATA,
    damage,
    inspect,
    read_tensors,
    write_progress,
)
from implicit_models.training.distributed import ALONE, Processes
from implicit_models.training.failures import described, on_all
from implicit_models.training.progress import Progress
from implicit_models.training.state import named_state, put_state

log = logging.getLogger(__name__)

_REPLACED = ".replaced"


def list_checkpoints(folder: Path) -> list[Path]:
    """Return what is under a checkpoint's name in a folder, the newest first."""
    found = (each for each in folder.glob("step_*") if each.is_dir())
    return sorted((each for each in found if each.suffix != PARTIAL), reverse=True)


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
        """Copy the state, and write it as a checkpoint while training goes on; all call this.

        The checkpoint before is waited for. Where writing fails, such as on a full disk, the log
        has a warning, and the checkpoints before stay.
        """
        self.wait()
        _expect_no_dist()
        state = named_state(model, optimiser)
        if progress.carried is not None:
            state |= progress.carried.gathered(self.processes).tensors()
        own = self._own_share(state)
        state = {name: tensor.detach().to("cpu", copy=True) for name, tensor in own.items()}
        progress = replace(progress, history=list(progress.history), carried=None)
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

        All processes load the same one; what its sequences have carried is that of all of them.
        One that is damaged is named in the log.
        """
        self.wait()
        _expect_no_dist()
        main = self.processes.is_main
        inspected = self.processes.from_main(self._inspected() if main else [])
        for folder, found in inspected:
            why: Any = found
            if isinstance(found, Progress):
                why = self.processes.from_main(damage(folder) if main else None)
            if isinstance(found, Progress) and why is None:
                try:
                    state = on_all(
                        self.processes, lambda folder=folder: read_tensors(folder, model)
                    )
                except Exception as error:  # whatever damaged bytes lead to
                    why = described(error)
                else:
                    put_state(model, optimiser, state)
                    if main:
                        log.info("continuing from %s", folder)
                    return replace(found, carried=Carried.of_tensors(state))
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
        partial = folder.with_suffix(PARTIAL)
        try:
            alone = self._group is None
            if self.processes.is_main:
                with contextlib.suppress(OSError):  # the writer then says what is wrong with it
                    remove(partial)  # of a process that was killed; or a link
            if not alone:
                dist.barrier(self._group)  # nobody makes the folder while it is being removed
            writer = FileSystemWriter(partial, per_thread_copy_ahead=0)
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
                why = described(error)
                log.warning("%s could not be written (%s); training goes on", folder, why)
                shutil.rmtree(partial, ignore_errors=True)

    def _digests(self, partial: Path) -> dict[str, str]:
        """Digest what all processes have written, each its own files; fail on all or on none."""
        rank = self.processes.rank
        own = [*partial.glob(f"__{rank}_*"), *([partial / METADATA] if rank == 0 else [])]
        digests, failure = {}, None
        try:
            digests = {file.name: checksum(file) for file in own}
        except OSError as error:
            failure = f"process {rank}: {described(error)}"
        found: list[Any] = [(digests, failure)]
        if self._group is not None:
            found *= self.processes.size
            dist.all_gather_object(found, (digests, failure), group=self._group)
        for _, why in found:
            if why is not None:
                raise RuntimeError(why)
        return {name: digest for each, _ in found for name, digest in each.items()}

    def _publish(
        self, partial: Path, folder: Path, progress: Progress, digests: dict[str, str]
    ) -> None:
        """Rename a checkpoint that has been written to its name, and remove older ones."""
        files = {
            file.name: {"bytes": file.stat().st_size, "sha256": digests[file.name]}
            for file in sorted(partial.iterdir())
        }
        write_progress(partial, progress, files)
        if folder.exists():
            replaced = folder.with_suffix(_REPLACED)
            shutil.rmtree(replaced, ignore_errors=True)
            folder.rename(replaced)
        partial.rename(folder)
        sync(self.path)
        for stale in [*self.path.glob(f"*{PARTIAL}"), *self.path.glob(f"*{_REPLACED}")]:
            shutil.rmtree(stale, ignore_errors=True)
        # One that is ahead could not be used when this training began; perhaps it can be later.
        for old in [each for each in list_checkpoints(self.path) if each <= folder][self.kept :]:
            leaving = old.with_suffix(PARTIAL)
            old.rename(leaving)
            shutil.rmtree(leaving, ignore_errors=True)

    def _inspected(self) -> list[tuple[Path, Progress | str]]:
        """Return the checkpoints, the newest first, with what each says or why it is not whole."""
        inspected: list[tuple[Path, Progress | str]] = []
        for folder in list_checkpoints(self.path):
            try:
                inspected.append((folder, inspect(folder)))
            except Exception as error:  # whatever damaged bytes lead to
                inspected.append((folder, described(error)))
        return inspected


def _expect_no_dist() -> None:
    """Keep torch from warning of what is meant: reading, and a process alone, without collectives.

    Not in a context that puts the filters back: it would do so in the midst of other threads.
    """
    expected = "torch.distributed is disabled, unavailable or uninitialized"
    warnings.filterwarnings("ignore", message=expected, category=UserWarning)
