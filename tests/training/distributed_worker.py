"""What torchrun starts in the tests: small trainings of both families, in all phases.

    torchrun ... -m tests.training.distributed_worker START OUTPUT

does the jobs of a start, and writes what each has left to OUTPUT/JOB.json. A job's checkpoints lie
in OUTPUT/JOB, so that a second start with another number of processes goes on from there.
"""

import dataclasses
import functools
import json
import logging
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from torch import Tensor
from transformers import LlamaConfig

from implicit_models.data.batching import batch_indices
from implicit_models.families.building import build
from implicit_models.families.parameters import ModelParameters
from implicit_models.language_models.labelled import Continuation
from implicit_models.language_models.losses import IGNORED
from implicit_models.training.checkpoints import CheckpointFolder
from implicit_models.training.curriculum import (
    Passing,
    Segment,
    bounded_segment,
    explicit_segment,
    free_segment,
)
from implicit_models.training.definition import Training
from implicit_models.training.distributed import (
    Execution,
    Parallelism,
    distribute,
    open_execution,
)
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
from implicit_models.training.validation import validator

VOCABULARY, LENGTH = 30, 12
STEPS, EVERY = 12, 3  # there are checkpoints before and after all that happens in between
PARTLY_LABELLED = "free, partly labelled"
CARRIED = ("free, carried", "explicit, carried")
LENGTHS = LengthParameters(minimum=LENGTH, start=LENGTH, end=LENGTH)
OPTIMISATION = OptimisationParameters(
    learning_rate=1e-3, clip_norm=1.0, batch_size=8, warmup_steps=3, weight_decay=0.1
)
SIZES: dict[str, dict[str, Any]] = {
    "mamba2": {"num_layers": 2, "d_model": 16, "d_state": 8, "head_dim": 8},
    "llama": {"num_layers": 2, "d_model": 16, "num_heads": 2, "d_feed_forward": 24},
    "lstm": {"num_layers": 2, "d_model": 16, "hidden_size": 12},
}
SIZES["sliding"] = SIZES["llama"] | {"family": "llama", "sliding_window": 4}
SEGMENTS: dict[str, Segment] = {
    "explicit": explicit_segment(
        ExplicitParameters(num_training_steps=STEPS, decay_steps=3, lengths=LENGTHS)
    ),
    "bounded": bounded_segment(
        BoundedParameters(num_training_steps=STEPS, num_self_iterations=3, lengths=LENGTHS)
    ),
    "4+1": bounded_segment(
        BoundedParameters(
            num_training_steps=STEPS,
            num_self_iterations=4,
            phantom_steps=1,
            damping=0.8,
            lengths=LENGTHS,
        )
    ),
    "free": free_segment(
        FreeParameters(
            num_training_steps=STEPS,
            tolerance=0.05,
            max_steps=16,
            phantom_steps=2,
            damping=0.8,
            decay_steps=3,
            lengths=LENGTHS,
        ),
        0,
    ),
}
SEGMENTS[PARTLY_LABELLED] = SEGMENTS["free"]
CASES = [(family, phase) for family in ("mamba2", "llama") for phase in SEGMENTS]
CASES.append(("huggingface", "explicit"))  # a Llama of transformers, which has buffers
CASES += [("mamba2", CARRIED[0]), ("sliding", CARRIED[0]), ("lstm", CARRIED[1])]
for name in CARRIED:  # in the last steps, of some of the sequences
    SEGMENTS[name] = dataclasses.replace(
        SEGMENTS[name.partition(",")[0]], passing=Passing(STEPS - 4, reset_share=0.2, if_right=None)
    )


class Log:
    """Keeps what is logged."""

    def __init__(self) -> None:
        self.rows: dict[int, dict[str, float]] = {}

    def log_metrics(self, metrics, step=None):
        self.rows[step] = dict(metrics)


def data(phase: str) -> Any:
    """Return sums of the two tokens before, so that there is something to learn."""
    draw = np.random.default_rng(0)
    inputs = draw.integers(0, VOCABULARY, (64, LENGTH))
    labels = (inputs + np.roll(inputs, 1, 1)) % VOCABULARY
    if phase != PARTLY_LABELLED:
        return SimpleNamespace(inputs=inputs.astype(np.uint8), labels=labels.astype(np.uint8))
    # Some sequences have many labels and some have none, so that processes and parts differ.
    is_ignored = draw.random((64, LENGTH)) < draw.choice([0.0, 0.3, 0.9, 1.0], (64, 1))
    labels = np.where(is_ignored, IGNORED, labels)
    return SimpleNamespace(inputs=inputs.astype(np.uint8), labels=labels.astype(np.int8))


def run(
    family: str,
    phase: str,
    folder: Path,
    execution: Execution,
    log: Any = None,
    checkpoint_every: int = EVERY,
    precision: str = "float32",
) -> tuple[Progress, dict[int, list[int]]]:
    """Train one case; return what it left, and the sequences of the global batches it saw."""
    segment = SEGMENTS[phase]
    model = build(parameters_of(family, phase, folder), VOCABULARY, seed=0)
    model.to(execution.processes.device)  # type: ignore[arg-type]
    module = distribute(model, precision, execution)
    optimiser = build_optimiser(model, OPTIMISATION)
    drawn: dict[int, list[int]] = {}
    indices = functools.partial(batch_indices, batch_size=8, num_sequences=64, seed=0)

    def remembered(position: int) -> np.ndarray:
        rows = indices(position)
        drawn[position] = rows.tolist()
        return rows

    training = Training(
        segment=segment,
        optimisation=OPTIMISATION,
        monitoring=MonitoringParameters(
            log_every=1,
            validate_every=2 * EVERY,
            validation_sequences=12,
            checkpoint_every=checkpoint_every,
        ),
        sequences=data(phase),
        batch_size=8,
        batch_indices=remembered,
        validate=validator(data(phase), 12, segment.phase, 4),
        count_flops=lambda num_sequences, length, search, *_: num_sequences * length + search,
        seed=0,
        continuation=Continuation(is_ordered=False, labels=_shifted),
    )
    checkpoints = CheckpointFolder(folder, f"{family}-{phase}", execution.processes)
    start = checkpoints.resume(module, optimiser) or Progress(0)
    return train(training, start, module, optimiser, checkpoints, log or Log(), execution), drawn


def _shifted(labels: Tensor, before: Tensor) -> Tensor:
    return (labels + before[:, None]) % VOCABULARY


def parameters_of(family: str, phase: str, folder: Path) -> ModelParameters:
    """Return the parameters of a case; a model of transformers has its configuration in a file."""
    if family != "huggingface":
        sizes = {"family": family} | SIZES[family]
        return ModelParameters(implicit="explicit" not in phase, **sizes)
    source = folder / f"llama_{os.environ.get('RANK', 0)}"
    LlamaConfig(
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        vocab_size=VOCABULARY,
    ).save_pretrained(source)
    return ModelParameters(family=family, source=str(source))


class Signalled(Log):
    """Sends its own process a signal at a step, the first time."""

    def __init__(self, mark: Path, step: int, number: signal.Signals) -> None:
        super().__init__()
        self._mark, self._step, self._number = mark, step, number

    def log_metrics(self, metrics, step=None):
        super().log_metrics(metrics, step)
        if step == self._step and not self._mark.exists():
            self._mark.touch()
            os.kill(os.getpid(), self._number)


@dataclass(frozen=True)
class Job:
    """Some cases, trained one after the other; checkpoints lie in a folder of this name.

    Attributes
    ----------
    execution
        What is asked of the execution, by the names of its attributes.
    signal
        Signal and step at which the last process sends it to itself, in the first case, once.
    """

    name: str
    parallelism: Parallelism
    cases: tuple[tuple[str, str], ...] = tuple(CASES)
    execution: Mapping[str, Any] = field(default_factory=dict)
    signal: tuple[str, int] | None = None


FEW = (
    ("mamba2", "free"),
    ("mamba2", PARTLY_LABELLED),
    ("llama", "free"),
    ("huggingface", "explicit"),
    ("mamba2", CARRIED[0]),
)
SEARCHING = (("mamba2", "free"),)
ADDED = {"micro_batch": 2, "checkpointing": "iterations"}

# What a start of torchrun does, for several tests: importing takes longer than any of it.
STARTS: dict[str, tuple[Job, ...]] = {
    "together": (
        Job("ddp", "ddp"),
        Job("fsdp", "fsdp"),
        Job("added", "fsdp", execution=ADDED),
        Job("asked", "ddp", SEARCHING, signal=("SIGTERM", 7)),  # the last: it ends the processes
    ),
    "killed": (
        Job("ddp", "ddp", FEW, signal=("SIGKILL", 8)),
        Job("fsdp", "fsdp", FEW, signal=("SIGKILL", 8)),
    ),
    "afterwards": (Job("ddp", "ddp", FEW), Job("fsdp", "ddp", FEW)),
}


def do(job: Job, folder: Path, execution: Execution) -> dict[str, Any]:
    """Train a job's cases; return for each what it left."""
    found = {}
    processes = dataclasses.replace(execution.processes, parallelism=job.parallelism)
    execution = dataclasses.replace(execution, processes=processes, **job.execution)
    for family, phase in job.cases:
        log = None
        if job.signal is not None and processes.rank == processes.size - 1:
            name, step = job.signal
            log = Signalled(folder / f"{job.name}_{name}", step, signal.Signals[name])
        progress, drawn = run(family, phase, folder / job.name, execution, log)
        found[f"{family}/{phase}"] = {"history": progress.history, "drawn": drawn}
    return found


def main(start: str, output: Path) -> None:
    """Write what each job has left to ``OUTPUT/JOB.json``."""
    logging.basicConfig(level=logging.INFO)
    with open_execution() as execution:
        for job in STARTS[start]:
            path = output / f"{job.name}.json"
            if execution.processes.from_main(path.exists()):
                continue  # done before these processes were started again
            found = do(job, output, execution)
            if execution.processes.is_main:
                path.write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
