from pathlib import Path
from types import SimpleNamespace

import numpy as np

from implicit_models.problems.problem import TrainingData
from tests.problems.parity.parameters import ParityParameters

SPLITS = ("train", "validation", "test")


def prepare(parameters: ParityParameters, folder: Path, unfinished: Path) -> None:
    for number, name in enumerate(SPLITS):
        draw = np.random.default_rng([parameters.seed, number])
        bits = draw.integers(0, 2, (parameters.num_sequences, parameters.length), dtype=np.uint8)
        (folder / name).mkdir(parents=True, exist_ok=True)
        np.save(folder / name / "bits.npy", bits)


def split(folder: Path, name: str) -> SimpleNamespace:
    bits = np.load(folder / name / "bits.npy")
    return SimpleNamespace(inputs=bits, labels=np.cumsum(bits, axis=1) % 2)


def open_training(folder: Path, parameters: ParityParameters) -> TrainingData:
    return TrainingData(
        train=split(folder, "train"),
        validation=split(folder, "validation"),
        vocabulary_size=2,
        label_alignment="aligned",
        identity=parameters,
        folder=folder,
        verify=lambda: None,
    )
