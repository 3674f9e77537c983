"""The data of parities: a folder with a file of bits for each split."""

import functools
from pathlib import Path
from typing import NamedTuple

import numpy as np

from implicit_models.checksums import compare_folder, filled
from implicit_models.problems.answers import TrainingData
from tests.problems.parity.parameters import ParityParameters


class Split(NamedTuple):
    """Tokens, and what is asked for after each: both (num_sequences, length)."""

    inputs: np.ndarray
    labels: np.ndarray


def prepare(parameters: ParityParameters, folder: Path, unfinished: Path) -> None:
    """Draw the bits of each split, write them, and read them back."""
    length, test_length = parameters.length, parameters.test_length
    for name, bits in (("train", length), ("validation", length), ("test", test_length)):
        draw = np.random.default_rng([parameters.seed, *name.encode()])
        with filled(folder / name) as new:
            shape = (parameters.num_sequences, bits)
            np.save(new / "bits.npy", draw.integers(0, 2, shape, dtype=np.uint8))
        compare_folder(folder / name)


def split(folder: Path, name: str) -> Split:
    """Open a split, with its labels, which are in memory: whether the ones so far are odd."""
    bits = np.load(folder / name / "bits.npy", mmap_mode="r")
    ones = np.cumsum(bits, axis=1, dtype=np.int64)
    return Split(inputs=bits, labels=(ones % 2).astype(np.uint8))


def open_training(folder: Path, parameters: ParityParameters) -> TrainingData:
    """Return what a training reads."""
    return TrainingData(
        train=split(folder, "train"),
        validation=split(folder, "validation"),
        vocabulary_size=2,
        label_alignment="aligned",
        identity=parameters,
        folder=folder,
        verify=functools.partial(_verify, folder),
    )


def _verify(folder: Path) -> None:
    for name in ("train", "validation"):
        compare_folder(folder / name)
