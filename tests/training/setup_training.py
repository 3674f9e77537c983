"""A training small enough for the tests."""

import dataclasses
import functools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from implicit_models.data.batching import batch_indices
from implicit_models.families.building import build
from implicit_models.families.parameters import ModelParameters
from implicit_models.language_models.language_model import LanguageModel
from implicit_models.training.checkpoints import CheckpointFolder
from implicit_models.training.curriculum import Segment, bounded_segment, free_segment
from implicit_models.training.definition import Training
from implicit_models.training.distributed import Execution, Processes, distribute
from implicit_models.training.optimisation import build_optimiser
from implicit_models.training.parameters import (
    BoundedParameters,
    FreeParameters,
    MonitoringParameters,
    OptimisationParameters,
)
from implicit_models.training.progress import Progress
from implicit_models.training.sequence_parameters import LengthParameters
from implicit_models.training.trainer import train
from implicit_models.training.validation import validator

LENGTHS = LengthParameters(minimum=2, start=3, end=6, growth_steps=4)
BOUNDED = bounded_segment(
    BoundedParameters(num_training_steps=5, num_self_iterations=2, lengths=LENGTHS)
)
FREE_PARAMETERS = FreeParameters(
    num_training_steps=12,
    tolerance=0.05,
    max_steps=8,
    phantom_steps=2,
    damping=0.8,
    decay_steps=4,
    lengths=LENGTHS,
)
FREE = free_segment(FREE_PARAMETERS, first_step=5)
OPTIMISATION = OptimisationParameters(
    learning_rate=3e-3, clip_norm=1.0, batch_size=4, warmup_steps=3
)
MONITORING = MonitoringParameters(
    log_every=2, validate_every=4, validation_sequences=4, checkpoint_every=3
)
MODEL = ModelParameters(
    family="mamba2",
    implicit=True,
    num_layers=1,
    d_model=8,
    d_state=4,
    head_dim=4,
    weight_normalisation=True,
)


class Recorder:
    """Keeps what is logged; stops the training after some steps where asked to."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.rows: dict[int, dict[str, float]] = {}
        self.stop_after = stop_after

    def log_metrics(self, metrics, step: int | None = None) -> None:
        assert step is not None
        self.rows[step] = dict(metrics)
        if self.stop_after is not None and step >= self.stop_after:
            raise KeyboardInterrupt


def sequences(num: int = 16, length: int = 6) -> Any:
    """Running sums modulo 5."""
    inputs = np.random.default_rng(0).integers(0, 5, (num, length)).astype(np.uint8)
    return SimpleNamespace(inputs=inputs, labels=(np.cumsum(inputs, 1) % 5).astype(np.uint8))


def count_flops(
    num_sequences: int, length: int, search_evaluations: float, passes_carry: bool = False
) -> float:
    return (11.0 if passes_carry else 10.0) * num_sequences * length + search_evaluations


def small_training(segment: Segment = FREE, **changes: Any) -> Training:
    data = sequences()
    training = Training(
        segment=segment,
        optimisation=OPTIMISATION,
        monitoring=MONITORING,
        sequences=data,
        batch_size=OPTIMISATION.batch_size,
        batch_indices=functools.partial(batch_indices, batch_size=4, num_sequences=16, seed=0),
        validate=validator(data, MONITORING.validation_sequences, segment.phase, batch_size=4),
        count_flops=count_flops,
        seed=0,
    )
    return dataclasses.replace(training, **changes)


def start_of(segment: Segment) -> Progress:
    return Progress(segment.first_step, sequences=4 * segment.first_step)


def run(
    folder: Path,
    training: Training | None = None,
    stop_after: int | None = None,
    device: torch.device | None = None,
    execution: Execution | None = None,
    parameters: ModelParameters = MODEL,
    model: LanguageModel | None = None,
) -> tuple[LanguageModel, torch.optim.Optimizer, Progress | None, Recorder]:
    """Train from the newest checkpoint in the folder, or from the start."""
    training = training or small_training()
    execution = execution or Execution(Processes(device=device or torch.device("cpu")))
    model = (model or build(parameters, vocabulary_size=5, seed=0)).to(device)
    module = distribute(model, training.optimisation.precision, execution)
    optimiser = build_optimiser(model, training.optimisation)
    recorder = Recorder(stop_after)
    progress = None
    with CheckpointFolder(folder, "identity") as checkpoints:
        start = checkpoints.resume(module, optimiser) or start_of(training.segment)
        try:
            progress = train(training, start, module, optimiser, checkpoints, recorder, execution)
        except KeyboardInterrupt:
            assert stop_after is not None
    return model, optimiser, progress, recorder
