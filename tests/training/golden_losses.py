"""Losses of short trainings, to the last bit, by which a refactoring is proved to change nothing.

Twenty steps of the real trainer for each family and phase, on one thread. Written anew, after a
change that is meant to change them, with

    python -m tests.training.golden_losses
"""

import functools
import json
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from implicit_models.data.batching import batch_indices
from implicit_models.families.building import build
from implicit_models.families.parameters import ModelParameters
from implicit_models.kernels.dispatch import KERNELS, kernels_for, using
from implicit_models.training.checkpoints import CheckpointFolder
from implicit_models.training.curriculum import (
    Segment,
    bounded_segment,
    explicit_segment,
    free_segment,
)
from implicit_models.training.definition import Training
from implicit_models.training.distributed import Execution, distribute
from implicit_models.training.optimisation import build_optimiser
from implicit_models.training.parameters import (
    BoundedParameters,
    ExplicitParameters,
    FreeParameters,
    MonitoringParameters,
    OptimisationParameters,
)
from implicit_models.training.progress import Progress
from implicit_models.training.sequence_parameters import LengthParameters
from implicit_models.training.trainer import train

FILE = Path(__file__).parents[1] / "golden" / "losses.json"
VOCABULARY, LENGTH, NUM_SEQUENCES, BATCH, STEPS = 11, 12, 32, 4, 20

_LENGTHS = LengthParameters(minimum=LENGTH, start=LENGTH, end=LENGTH)
_SHARED = {"num_layers": 2, "d_model": 16, "weight_normalisation": True}
MODELS = {
    "mamba2": ModelParameters(
        family="mamba2", implicit=True, d_state=8, expand=2, head_dim=8, **_SHARED
    ),
    "llama": ModelParameters(
        family="llama",
        implicit=True,
        num_heads=4,
        num_key_value_heads=2,
        d_feed_forward=24,
        **_SHARED,
    ),
}
_bounded = functools.partial(
    BoundedParameters, num_training_steps=STEPS, num_self_iterations=4, lengths=_LENGTHS
)
PHASES: dict[str, Segment] = {
    "explicit": explicit_segment(
        ExplicitParameters(num_training_steps=STEPS, decay_steps=5, lengths=_LENGTHS)
    ),
    "bounded, unrolled": bounded_segment(_bounded()),
    "bounded, 4+1": bounded_segment(_bounded(phantom_steps=1, damping=0.8)),
    "free": free_segment(
        FreeParameters(
            num_training_steps=STEPS,
            tolerance=0.05,
            max_steps=8,
            phantom_steps=4,
            damping=0.8,
            decay_steps=5,
            lengths=_LENGTHS,
        ),
        first_step=0,
    ),
}
_OPTIMISATION = OptimisationParameters(
    learning_rate=3e-3, weight_decay=0.1, clip_norm=1.0, batch_size=BATCH, warmup_steps=3
)
_MONITORING = MonitoringParameters(
    log_every=1, validate_every=STEPS, validation_sequences=1, checkpoint_every=10 * STEPS
)


def surroundings() -> dict[str, str]:
    """Describe all that decides about the last bits beside the code: equal here, equal there."""
    return {
        "torch": torch.__version__,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "processor": _processor(),
        "kernels": kernels_for(torch.device("cpu")).name,
        "compiler": _compiler(),
    }


def train_losses(family: str, phase: str, kernels: str | None = None) -> list[float]:
    """Train a small model and return the loss of each step; ``kernels`` None takes the default."""
    chosen = kernels_for(torch.device("cpu")) if kernels is None else KERNELS[kernels]()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with using(chosen), tempfile.TemporaryDirectory() as folder:
            return _losses(MODELS[family], PHASES[phase], Path(folder))
    finally:
        torch.set_num_threads(threads)


def _losses(parameters: ModelParameters, segment: Segment, folder: Path) -> list[float]:
    parameters = parameters.replace(implicit=segment.name != "explicit")
    model = build(parameters, vocabulary_size=VOCABULARY, seed=0)
    module = distribute(model, _OPTIMISATION.precision, Execution())
    order = functools.partial(batch_indices, batch_size=BATCH, num_sequences=NUM_SEQUENCES, seed=0)
    training = Training(
        segment=segment,
        optimisation=_OPTIMISATION,
        monitoring=_MONITORING,
        sequences=_sequences(),
        batch_size=BATCH,
        batch_indices=order,
        validate=lambda module, execution: {},
        count_flops=lambda *_: 0.0,
        seed=0,
    )
    optimiser = build_optimiser(model, _OPTIMISATION)
    checkpoints = CheckpointFolder(folder, "golden")
    progress = train(training, Progress(0), module, optimiser, checkpoints, _NoLog())
    return [row["loss"] for row in progress.history]


class _NoLog:
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Leave them: the trainer's history has them as well."""


def _sequences() -> Any:
    """Return sequences that a polynomial makes, without a random generator."""
    rows, columns = np.ogrid[:NUM_SEQUENCES, : LENGTH + 1]
    tokens = ((rows * 7 + columns * columns * 3 + rows * columns) % VOCABULARY).astype(np.uint8)
    return SimpleNamespace(inputs=tokens[:, :-1], labels=tokens[:, 1:])


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return platform.processor() or platform.machine()
    telling = ("vendor_id", "cpu family", "model\t", "CPU implementer", "CPU part")
    lines = [line for line in cpuinfo.read_text().splitlines() if line.startswith(telling)]
    return ", ".join(dict.fromkeys(line.partition(":")[2].strip() for line in lines))


def _compiler() -> str:
    path = shutil.which("cc")
    if path is None:
        return "none"
    done = subprocess.run([path, "--version"], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[0]


def main() -> int:
    """Write the file."""
    losses = {family: {phase: train_losses(family, phase) for phase in PHASES} for family in MODELS}
    content = {"surroundings": surroundings(), "losses": losses}
    FILE.write_text(json.dumps(content, indent=2) + "\n")
    sys.stdout.write(f"written to {FILE.relative_to(Path.cwd())}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
