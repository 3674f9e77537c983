"""Checkpoints of a training that runs on a node, kept in the DVC remote as well.

While a stage runs, what is new under ``checkpoints/ENTRY`` is copied into the remote, beside DVC's
own files; before it runs on another node, that is fetched, and the training goes on from there. A
checkpoint is a folder ``step_...`` with a ``progress.json`` that names its other files: that one is
copied last, so that a folder in the remote without it is not whole, and is never fetched.

All stages of a node share ``checkpoints``, those of flows with other commits and other parameters
too. Which training a stage was is said by its mark `FINISHED`, the MD5 of the stage's metrics.
"""

import contextlib
import os
import shutil
import threading
from collections.abc import Collection, Iterator
from pathlib import Path, PurePosixPath

from dvc.repo import Repo

from pipelines.cluster.remote import get, in_words, put, storage
from pipelines.processes import in_background
from pipelines.running import Log

FOLDER = "checkpoints"
COMPLETE = "progress.json"
FINISHED = "finished"  # stages/finished_checkpoints.py writes it

_STEPS = "step_*[0-9]"
_FETCHING = ".fetching"


class CheckpointSync:
    """Copies the checkpoints of an entry's trainings to the remote and back.

    Parameters
    ----------
    root
        The clone in which the stage runs.
    entry
        Whose checkpoints; nothing is copied where it is empty.
    """

    def __init__(self, root: Path, entry: str, remote: str | None = None) -> None:
        self._local = root / FOLDER / entry
        self._entry = entry
        self._repo = Repo(os.fspath(root))
        self._remote = storage(self._repo, remote)
        self._copied: dict[PurePosixPath, tuple[int, int]] = {}
        self._fetched: set[PurePosixPath] = set()
        self._before = self._state()

    def fetch(self) -> list[str]:
        """Take the newest whole checkpoint of each training that is in the remote.

        Returns
        -------
        list of str
            Those that were not here.
        """
        if not self._entry:
            return []
        taken = []
        for training, files in self._in_remote().items():
            if not (self._local / training).exists():
                self._fetched.add(training)
            steps = {file.parts[2] for file in files if len(file.parts) == 4}
            whole = {name for name in steps if training / name / COMPLETE in files}
            newest = max(whole, default=None)
            for file in files:
                if len(file.parts) == 3 and not (self._local / file).exists():
                    get(self._remote, self._path(file), self._local / file)
            if newest is not None and not (self._local / training / newest).exists():
                partial = self._local / training / _FETCHING
                shutil.rmtree(partial, ignore_errors=True)
                for file in (file for file in files if file.parts[2] == newest):
                    get(self._remote, self._path(file), partial / file.name)
                partial.rename(self._local / training / newest)
                taken.append(f"{FOLDER}/{self._entry}/{training}/{newest}")
        self._before = self._state()
        return taken

    @contextlib.contextmanager
    def copying(self, seconds: float, log: Log) -> Iterator[None]:
        """Copy what is new to the remote, every so many seconds and when the stage has failed."""

        def work(ended: threading.Event) -> None:
            while not ended.wait(seconds):
                self._try_to_copy(log)

        try:
            with in_background(work):
                yield
        except BaseException:
            self._try_to_copy(log)  # a training that is asked to stop has just written one
            raise

    def discard(self, outputs: Collection[str], log: Log) -> None:
        """Delete the checkpoints of the training that this stage was, here and in the remote.

        Others stay, for another flow may be at them; but what was fetched and is as it was is
        deleted here. Where the remote does not let go of something, the log has a warning: the
        stage is done.

        Parameters
        ----------
        outputs
            Hashes of the stage's outputs.
        """
        now = self._state()
        own = {training for training in now if self._finished_with(training) in outputs}
        unused = {each for each in self._fetched if now.get(each) == self._before.get(each)}
        for training in own | unused:
            shutil.rmtree(self._local / training, ignore_errors=True)
            for folder in (self._local / training.parts[0], self._local):
                with contextlib.suppress(OSError):  # others are left there
                    folder.rmdir()
        for training in own:
            try:
                self._remote.fs.rm(self._path(training), recursive=True)
            except FileNotFoundError:
                pass
            except Exception as error:
                log(
                    f"warning: {FOLDER}/{self._entry}/{training} in the remote could not be "
                    f"deleted ({in_words(error)}); its training is done: delete it there"
                )

    def close(self) -> None:
        """Close DVC's files."""
        self._repo.close()

    def copy(self) -> list[str]:
        """Copy what is new; return the names of the checkpoints that are now in the remote."""
        copied = []
        for training in sorted(self._changed()):
            folder = self._local / training
            with contextlib.suppress(FileNotFoundError):  # the training has let go of it
                for file in sorted(each for each in folder.iterdir() if each.is_file()):
                    self._put(training / file.name)
                whole = sorted(step for step in folder.glob(_STEPS) if (step / COMPLETE).exists())
                for step in whole[-1:]:
                    name = training / step.name
                    if name / COMPLETE in self._copied:
                        continue
                    files = sorted(each.name for each in step.iterdir() if each.name != COMPLETE)
                    for file in (*files, COMPLETE):
                        self._put(name / file)
                    copied.append(f"{FOLDER}/{self._entry}/{name}")
                    self._leave_only(training, step.name)
        return copied

    def _try_to_copy(self, log: Log) -> None:
        try:
            for name in self.copy():
                log(f"{name} is in the remote")
        except Exception as error:  # the libraries of S3 and ssh have errors of their own
            told = in_words(error)
            log(f"warning: checkpoints could not be copied to the remote ({told}); trying again")

    def _leave_only(self, training: PurePosixPath, step: str) -> None:
        """Delete what came before one in the remote; first what says that it is whole."""
        files = self._in_remote().get(training, ())
        for file in sorted(files, key=lambda file: file.name != COMPLETE):
            if len(file.parts) == 4 and file.parts[2] < step:
                self._remote.fs.rm_file(self._path(file))

    def _state(self) -> dict[PurePosixPath, frozenset[tuple[str, int]]]:
        """Return the files of each training here, to see which of them goes on."""
        state = {}
        for folder in self._local.glob("*/*/") if self._entry else ():
            training = PurePosixPath(*folder.relative_to(self._local).parts)
            with contextlib.suppress(FileNotFoundError):  # a folder was renamed meanwhile
                files = [(each.name, each.stat().st_mtime_ns) for each in folder.iterdir()]
                state[training] = frozenset(files)
        return state

    def _changed(self) -> set[PurePosixPath]:
        now = self._state()
        return {training for training in now if now[training] != self._before.get(training)}

    def _finished_with(self, training: PurePosixPath) -> str:
        """Return the MD5 of the metrics with which a training has finished; empty if it has not."""
        try:
            return (self._local / training / FINISHED).read_text(errors="replace")
        except OSError:
            return ""

    def _in_remote(self) -> dict[PurePosixPath, set[PurePosixPath]]:
        """Return the files there by training; paths are STAGE/IDENTITY/... ."""
        root = self._path(PurePosixPath())
        found: dict[PurePosixPath, set[PurePosixPath]] = {}
        self._remote.fs.fs.invalidate_cache()
        if self._remote.fs.exists(root):
            for path in self._remote.fs.find(root):
                file = PurePosixPath(*self._remote.fs.relparts(path, root))
                if len(file.parts) in (3, 4):
                    found.setdefault(file.parents[len(file.parts) - 3], set()).add(file)
        return found

    def _path(self, name: PurePosixPath) -> str:
        return self._remote.fs.join(self._remote.path, FOLDER, self._entry, *name.parts)

    def _put(self, name: PurePosixPath) -> None:
        file = self._local / name
        found = file.stat()
        stamp = (found.st_size, found.st_mtime_ns)
        if self._copied.get(name) != stamp:
            put(self._remote, file, f"{FOLDER}/{self._entry}/{name}")
            self._copied[name] = stamp
