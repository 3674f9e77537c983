"""What the three training stages share: one segment of an entry's training, start to end."""

import functools
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

import implicit_models
from implicit_models.data.batching import batch_indices
from implicit_models.data.word_problems import open_splits
from implicit_models.language_models.building import build, num_parameters
from implicit_models.language_models.placement import default_device
from implicit_models.language_models.serialisation import ModelFileError, save_model
from implicit_models.parameters import digest
from implicit_models.training.checkpoints import (
    CheckpointFolder,
    Progress,
    load_state,
    save_state,
    source_digest,
)
from implicit_models.training.curriculum import Segment
from implicit_models.training.optimisation import build_optimiser
from implicit_models.training.parameters import MonitoringParameters
from implicit_models.training.trainer import Training, train
from implicit_models.training.validation import validator
from stages.entries import BaselineParameters, RunParameters
from stages.tracked import numbers, open_run, write_results

CHECKPOINTS = Path("checkpoints")
COMPUTING = ("backbones", "data", "equilibrium", "kernels", "language_models", "training")
SUMMARISED = ("loss", "accuracy", "self_iterations", "validation_loss", "validation_accuracy")


def train_segment(
    *,
    stage: str,
    table: str,
    name: str,
    entry: RunParameters | BaselineParameters,
    sections: Mapping[str, Any],
    monitoring: MonitoringParameters,
    segment: Segment,
    output: Path,
    start: Path | None = None,
    state: Path | None = None,
) -> None:
    """Train an entry through a segment and write the model, the metrics and the history.

    Parameters
    ----------
    stage, table, name
        ``"train_free"``, ``"runs"``, ``"a5_implicit_mamba2"``.
    sections
        The entry's sections of this segment; everything else that the weights depend on is
        common to all.
    output
        The model's folder.
    start, state
        The state of training from which the segment starts, and where it leaves its own; a state
        is left where another segment follows, and the model counts as final otherwise.
    """
    data = open_splits(Path("data", entry.dataset))
    model = build(entry.model, data.vocabulary_size, entry.seed).to(default_device())
    optimiser = build_optimiser(model, entry.optimisation)
    if start is not None:
        _read_state(start, model, optimiser, segment.first_step)
    sequences, validation = data.split("train"), data.split("validation")
    training = Training(
        segment=segment,
        optimisation=entry.optimisation,
        monitoring=monitoring,
        sequences=sequences,
        batch_indices=functools.partial(
            batch_indices,
            batch_size=entry.optimisation.batch_size,
            num_sequences=len(sequences.inputs),
            seed=entry.seed,
        ),
        validate=validator(validation, monitoring.validation_sequences, segment.phase),
        seed=entry.seed,
    )
    parameters = {
        "dataset": entry.dataset,
        "seed": entry.seed,
        "model": entry.model,
        "optimisation": entry.optimisation,
        **sections,
    }
    identity = _identity(parameters, data.metadata, start)
    checkpoints = CheckpointFolder(CHECKPOINTS / name / stage, identity)
    tracked = {**parameters, "monitoring": monitoring}
    with open_run(table, name, stage, tracked, resume_key=identity) as tracker:
        progress = train(training, model, optimiser, checkpoints, tracker)
        save_model(model, output)
        metrics = {
            "num_parameters": num_parameters(model),
            "num_training_steps": segment.num_steps,
            "train_seconds": progress.seconds,
            "tokens_per_second": progress.tokens / max(progress.seconds, 1e-9),
        }
        last = progress.history[-1]
        metrics |= {key: last[key] for key in SUMMARISED if key in last}
        files = {f"{stage}.json": metrics, f"{stage}_history.csv": progress.history}
        write_results(name, files, tracker)
        tracker.log_metrics(numbers(metrics, f"{stage}."), step=progress.step)
        if state is None:
            tracker.log_artifact(output, "checkpoint")
        else:
            save_state(state, model, optimiser, progress)
    checkpoints.remove()


def _read_state(
    path: Path, model: nn.Module, optimiser: torch.optim.Optimizer, first_step: int
) -> None:
    try:
        progress: Progress = load_state(path, model, optimiser)
    except (SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise ModelFileError(
            f"{path} is not a state of training of this model ({error}); run the stage "
            "train_bounded of this entry again"
        ) from None
    if progress.step != first_step:
        raise ModelFileError(
            f"{path} is the state after {progress.step} steps, needed is {first_step}, the entry's "
            "bounded.num_training_steps; run the stage train_bounded of this entry again"
        )


def _identity(
    parameters: Mapping[str, Any], metadata: Mapping[str, Any], start: Path | None
) -> str:
    """Digest everything that the weights depend on."""
    library = Path(implicit_models.__file__).parent
    return digest(
        parameters,
        metadata,
        hashlib.sha256(start.read_bytes()).hexdigest() if start else None,
        source_digest(library / package for package in COMPUTING),
        torch.__version__,
    )
