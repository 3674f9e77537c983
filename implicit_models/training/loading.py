"""Batches, read from their files in a thread before the training asks for them."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from implicit_models.language_models.labelled import Sequences, TokenArray
from implicit_models.language_models.losses import IGNORED, asked_of

_AHEAD = 2  # steps
_SAMPLE = 8192  # sequences


@dataclass(frozen=True)
class MicroBatch:
    """Sequences that a process computes at once.

    Attributes
    ----------
    first
        The place of the first of them in the global batch.
    begins
        Which of them begin anew, where sequences go on from those of the step before.
    asked
        Which tokens something is asked of, see `forward_labelled`; None: of all.
    is_idle
        Whether nothing is asked: it is computed for other processes alone, which wait for it, and
        counts nowhere.
    """

    inputs: Int[Tensor, "B L"]
    labels: Int[Tensor, "B L"]
    first: int
    begins: Bool[Tensor, " B"]
    asked: Bool[Tensor, "B L"] | None = None
    is_idle: bool = False

    def to(self, device: torch.device) -> "MicroBatch":
        """Return them on a device."""

        def there(tensor: Tensor) -> Tensor:
            return tensor.to(device, non_blocking=True)

        asked = None if self.asked is None else there(self.asked)
        tensors = (there(self.inputs), there(self.labels), self.first, there(self.begins))
        return MicroBatch(*tensors, asked, self.is_idle)


@dataclass(frozen=True)
class Batch:
    """A process's share of a step's sequences.

    Attributes
    ----------
    micro_batches
        One after the other.
    num_sequences, num_labels
        Of all processes together; `IGNORED` is no label.
    num_computed
        How many of the sequences are computed: those that a label asks for something, and all where
        they go on from others.
    length
        Tokens of each sequence.
    """

    micro_batches: tuple[MicroBatch, ...]
    num_sequences: int
    num_computed: int
    length: int
    num_labels: int

    @property
    def num_tokens(self) -> int:
        """Of the sequences that all processes together compute."""
        return self.num_computed * self.length


def read_batch(
    sequences: Sequences,
    rows: np.ndarray,
    length: int,
    *,
    rank: int = 0,
    size: int = 1,
    at_once: int | None = None,
    pinned: bool = False,
    begins: np.ndarray | None = None,
) -> Batch:
    """Copy a process's share of a global batch out of the files.

    Parameters
    ----------
    rows
        The sequences of the global batch, of which each process takes as many, one share behind
        the other; how many processes there are does not change which sequences a step has.
    at_once
        The most sequences of a micro-batch; None takes the share as one.
    pinned
        Whether the copies can go to a GPU while that computes.
    begins
        Which places of the global batch begin anew, where sequences go on from those of the step
        before. None: each stands alone, and those without a label are left out; of a micro-batch
        without any its first one stays, `is_idle`, so that all processes have as many of them.
    """
    stands_alone = begins is None
    num_labels = _num_labels(sequences.labels, rows, length)
    computed = num_labels > 0 if stands_alone else np.ones(len(rows), dtype=bool)
    begins = np.zeros(len(rows), dtype=bool) if begins is None else begins
    share = len(rows) // size
    own = range(rank * share, (rank + 1) * share)
    at_once = at_once or max(share, 1)
    micro_batches = []
    for first in own[::at_once]:
        places = first + np.flatnonzero(computed[first : min(first + at_once, own.stop)])
        is_idle = not len(places)
        places = np.array([first]) if is_idle else places
        inputs = as_tensor(sequences.inputs[rows[places], :length])
        labels = as_tensor(sequences.labels[rows[places], :length])
        asked = asked_of(labels) if stands_alone else None
        if pinned:
            inputs, labels = inputs.pin_memory(), labels.pin_memory()
            asked = None if asked is None else asked.pin_memory()
        anew = torch.from_numpy(begins[places])
        micro_batches.append(MicroBatch(inputs, labels, first, anew, asked, is_idle))
    counts = (len(rows), int(computed.sum()), length, int(num_labels.sum()))
    return Batch(tuple(micro_batches), *counts)


def share_asked(sequences: Sequences, length: int) -> float:
    """Return how many of some thousand sequences, cut to a length, a label asks for something."""
    rows = np.arange(0, len(sequences.labels), max(1, len(sequences.labels) // _SAMPLE))
    return float((_num_labels(sequences.labels, rows, length) > 0).mean())


def as_tensor(tokens: np.ndarray, device: torch.device | None = None) -> Int[Tensor, "B L"]:
    """Copy tokens out of their file, as indices."""
    return torch.from_numpy(tokens.astype(np.int64)).to(device)


def _num_labels(labels: TokenArray, rows: np.ndarray, length: int) -> np.ndarray:
    """Count each sequence's labels, all processes': each by itself, so that none waits."""
    if labels[rows[:1], :length].dtype.kind == "u":  # which cannot hold IGNORED
        return np.full(len(rows), length)
    return (labels[rows, :length] != IGNORED).sum(1)


class Loader:
    """Reads the batches of some steps in a thread, a few steps ahead.

    Iterating gives steps and their batches. Used as a context, its thread ends with it.

    Attributes
    ----------
    waited
        Seconds that the training has waited for batches so far.
    """

    def __init__(self, read: Callable[[int], Batch], steps: range) -> None:
        self.waited = 0.0
        self._read, self._steps = read, steps
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="loader")

    def __enter__(self) -> "Loader":
        return self

    def __exit__(self, *exception: object) -> None:
        self._thread.shutdown(cancel_futures=True)

    def __iter__(self) -> Iterator[tuple[int, Batch]]:
        coming: deque[Future[Batch]] = deque()
        asked = iter(self._steps)
        for step in self._steps:
            while len(coming) <= _AHEAD and (following := next(asked, None)) is not None:
                coming.append(self._thread.submit(self._read, following))
            began = time.perf_counter()
            batch = coming.popleft().result()
            self.waited += time.perf_counter() - began
            yield step, batch
