"""The data of parities: a file of bits for each split."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from implicit_models.problems.problem import TrainingData
from tests.problems.parity.parameters import ParityParameters

SPLITS = ("train", "validation", "test")


class Bits(NamedTuple):
    """The sequences of a split: bits, and after each whether the number of ones is odd."""

    inputs: np.ndarray
    labels: np.ndarray


def prepare(parameters: ParityParameters, folder: Path, unfinished: Path) -> None:
    """Draw the bits of each split, and write them."""
    for number, name in enumerate(SPLITS):
        draw = np.random.default_rng([parameters.seed, number])
        bits = draw.integers(0, 2, (parameters.num_sequences, parameters.length), dtype=np.uint8)
        (folder / name).mkdir(parents=True, exist_ok=True)
        np.save(folder / name / "bits.npy", bits)


def split(folder: Path, name: str) -> Bits:
    """Return the sequences of a split."""
    bits = np.load(folder / name / "bits.npy")
    return Bits(bits, np.cumsum(bits, axis=1) % 2)


def open_training(folder: Path, parameters: ParityParameters) -> TrainingData:
    """Return what a training reads."""
    return TrainingData(
        train=split(folder, "train"),
        validation=split(folder, "validation"),
        vocabulary_size=2,
        label_alignment="aligned",
        identity=parameters,
        folder=folder,
        verify=lambda: None,
    )
