"""Which split a document belongs to: its text decides, whoever reads it."""

import functools
import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from implicit_models.problems.text.parameters import CorpusParameters

SPLITS = ("train", "validation", "test")
DIGESTS = np.dtype("S16")


@dataclass(frozen=True)
class ReservedTexts:
    """Digests of the texts in files that are named for a split, in order, in a file for each.

    What is looked up first decides what is seen: texts reserved later need another object.

    Attributes
    ----------
    folder
        Of the files ``test.npy`` and ``validation.npy``; one that is not there is empty.
    """

    folder: Path

    def holds(self, digest: bytes) -> bool:
        """Return whether a text is reserved for a split."""
        return any(_holds(digests, digest) for digests in self._opened)

    def write(self, name: str, digests: Iterable[np.ndarray]) -> None:
        """Reserve texts for a split, before any process looks them up."""
        found = np.unique(np.concatenate([np.empty(0, DIGESTS), *digests]))
        self.folder.mkdir(parents=True, exist_ok=True)
        partial = self.folder / f".{name}.npy"
        np.save(partial, found)
        os.replace(partial, self.folder / f"{name}.npy")

    @functools.cached_property
    def _opened(self) -> list[np.ndarray]:
        paths = (self.folder / f"{name}.npy" for name in ("test", "validation"))
        return [np.load(path, mmap_mode="r") for path in paths if path.exists()]


def text_digest(encoded: bytes, seed: int) -> bytes:
    """Digest a text in UTF-8, 16 bytes that no other text has."""
    digest = hashlib.blake2b(f"{seed}\0".encode(), digest_size=16)
    digest.update(encoded)
    return digest.digest()


def drawn_split(digest: bytes, parameters: CorpusParameters) -> str:
    """Return the split that a text falls into.

    Test documents lie at one end, validation's at the other: one share moves no other's.
    """
    position = int.from_bytes(digest[:8], "big") / 2**64
    if position < parameters.test.share:
        return "test"
    return "validation" if position >= 1 - parameters.validation.share else "train"


def _holds(digests: np.ndarray, digest: bytes) -> bool:
    place = int(np.searchsorted(digests, np.frombuffer(digest, DIGESTS))[0])
    return digests[place : place + 1].tobytes() == digest
