"""Batches measured one after another, and none of them again after an interruption."""

import contextlib
import logging
import os
import shutil
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from tqdm import tqdm

log = logging.getLogger(__name__)

Batch = TypeVar("Batch")

Measured = Mapping[str, np.ndarray]
"""What was measured of a batch: arrays whose first dimensions may be of any length."""

_NUM_BATCHES = "num_batches"


@dataclass(frozen=True, kw_only=True)
class ScoreStore:
    """A folder in which an evaluation keeps what it has measured, until it has ended.

    Attributes
    ----------
    folder
        Holds the parts of any number of evaluations.
    identity
        Says what is evaluated, and how: a digest of the model, the data, the parameters and the
        code. What was kept under another identity is never continued.
    seconds_between
        The least time between two writings. So much work is lost at most.
    """

    folder: Path
    identity: str
    seconds_between: float = 30.0

    @property
    def _path(self) -> Path:
        return self.folder / self.identity[:16]

    def load(self, part: str) -> dict[str, np.ndarray]:
        """Give what was kept of one part of the evaluation; nothing where that is not whole."""
        file = self._path / f"{part}.npz"
        try:
            with file.open("rb") as opened, np.load(opened, allow_pickle=False) as kept:
                return dict(kept)
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            log.warning("%s cannot be used (%s); this part starts anew", file, error)
            return {}

    def save(self, part: str, arrays: Measured) -> None:
        """Keep arrays, in a file that appears whole or not at all."""
        self._path.mkdir(parents=True, exist_ok=True)
        file = self._path / f"{part}.npz"
        partial = file.with_suffix(".partial")
        with partial.open("wb") as opened:
            np.savez(opened, **dict(arrays))  # type: ignore[arg-type]
            opened.flush()
            os.fsync(opened.fileno())
        partial.replace(file)

    def discard(self) -> None:
        """Forget this evaluation: its results stand elsewhere."""
        shutil.rmtree(self._path, ignore_errors=True)
        with contextlib.suppress(OSError):  # another evaluation's are there still
            self.folder.rmdir()


def measure_batches(
    batches: Sequence[Batch],
    measure: Callable[[Batch], Measured],
    *,
    store: ScoreStore | None,
    part: str,
    description: str,
) -> dict[str, np.ndarray]:
    """Measure every batch once, and put what was found in a row, in the order of the batches.

    Parameters
    ----------
    measure
        Gives arrays of the same names for every batch.
    store
        Where to keep what was found, and go on from; None keeps nothing.
    part
        Name of these batches among those of the evaluation.
    description
        What the progress bar says; it is silent when not on a terminal.
    """
    kept = {} if store is None else store.load(part)
    done = int(kept.pop(_NUM_BATCHES, 0))
    found: list[Measured] = [kept] if done else []
    if done:
        log.info("%s: continuing after %d of %d batches", description, done, len(batches))
    written = time.monotonic()
    with tqdm(
        total=len(batches), initial=done, desc=description, unit="batch", disable=None, leave=False
    ) as bar:
        for number in range(done, len(batches)):
            found.append(measure(batches[number]))
            bar.update()
            if store is not None and time.monotonic() - written >= store.seconds_between:
                found = [_joined(found)]
                store.save(part, {**found[0], _NUM_BATCHES: np.array(number + 1)})
                written = time.monotonic()
    whole = _joined(found)
    if store is not None and done < len(batches):
        store.save(part, {**whole, _NUM_BATCHES: np.array(len(batches))})
    return whole


def _joined(found: Sequence[Measured]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([each[name] for each in found]) for name in found[0]}
