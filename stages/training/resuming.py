"""Where a training goes on from: a state, its checkpoints, or those of one begun otherwise."""

import dataclasses
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import nn

from implicit_models.checksums import DamagedFileError, compare_folder
from implicit_models.language_models.pretrained import ModelFileError
from implicit_models.training.checkpoints import CheckpointFolder
from implicit_models.training.distributed import Processes
from implicit_models.training.failures import on_all
from implicit_models.training.progress import Progress
from implicit_models.training.state_file import load_state
from stages.training.change_policy import find_begun_otherwise
from stages.training.identity import Identity


def load_start(
    path: Path | None,
    module: nn.Module,
    optimiser: torch.optim.Optimizer,
    first_step: int,
    processes: Processes,
) -> Progress:
    """Load the state that a segment starts from; return what was done before it.

    Raises
    ------
    ModelFileError
        Where it is no state of this model, or one after another number of steps.
    """
    if path is None:
        return Progress(first_step)
    again = "run the stage train_bounded of this entry again"
    try:
        on_all(processes, lambda: compare_folder(path.parent) if processes.is_main else None)
        progress = load_state(path, module, optimiser, processes)
    except DamagedFileError as error:
        raise ModelFileError(f"{error}; {again}") from None
    except (SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise ModelFileError(
            f"{path} is not a state of training of this model ({error}); {again}"
        ) from None
    if progress.step != first_step:
        raise ModelFileError(
            f"{path} is the state after {progress.step} steps, needed is {first_step}, the entry's "
            f"bounded.num_training_steps; {again}"
        )
    return progress


def resume(
    checkpoints: CheckpointFolder,
    identity: Identity,
    module: nn.Module,
    optimiser: torch.optim.Optimizer,
) -> Progress | None:
    """Load the newest checkpoint to go on from; None where there is none, with all as it was.

    Raises
    ------
    ParameterError
        Where it is of a training with another batch, code or torch, and nobody has said what to do.
    """
    begun = find_begun_otherwise(checkpoints.path, identity)
    progress = checkpoints.resume(module, optimiser)
    if progress is not None or begun is None:
        return progress
    folder, processes = begun.folder, checkpoints.processes
    progress = CheckpointFolder(folder.parent, folder.name, processes).resume(module, optimiser)
    if progress is None:
        return None
    changes = [f"after {progress.step} steps {change}" for change in begun.changes]
    return dataclasses.replace(progress, changes=[*progress.changes, *changes])
