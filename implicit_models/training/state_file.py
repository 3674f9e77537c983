"""The state of a training in one file: what a segment leaves to the next one."""

import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from implicit_models.files import PARTIAL, remove, sync
from implicit_models.training.distributed import ALONE, Processes
from implicit_models.training.failures import on_all
from implicit_models.training.progress import Progress
from implicit_models.training.state import layout, named_state, put_state, spread


def save_state(
    path: Path,
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    progress: Progress,
    processes: Processes = ALONE,
) -> None:
    """Write everything that training needs to go on, in one file that appears whole or not.

    Every process calls this, and the main one writes: the same bytes however many there are and
    however they share the state. None goes on before the file is there.
    """
    whole: dict[str, Tensor] = {}
    for name, tensor in named_state(model, optimiser).items():
        tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        if processes.is_main:
            whole[name] = tensor.detach().cpu().contiguous()
    if processes.is_main:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(PARTIAL)
        remove(partial)  # of a process that was killed; or a link
        try:
            save_file(whole, partial, {"progress": json.dumps(progress.plain())})
        except SafetensorError as error:  # what the disk refuses
            raise OSError(f"{path} could not be written: {error}") from error
        sync(partial)
        partial.replace(path)
        sync(path.parent)
    processes.wait()


def load_state(
    path: Path,
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    processes: Processes = ALONE,
) -> Progress:
    """Load a written state into a model and its optimiser; where it fails they are as before.

    Every process calls this. Where one of them cannot load the file, all raise.

    Raises
    ------
    SafetensorError, OSError
        Where the file is not a whole one.
    ValueError, KeyError, RuntimeError
        Where it is of another model, or another process could not load it.
    """

    def read() -> tuple[dict[str, Tensor], Progress]:
        with safe_open(path, framework="pt") as file:
            here = layout(model, file.keys())
            state = {name: spread(name, file.get_tensor(name), here[name]) for name in here}
            return state, Progress(**json.loads(file.metadata()["progress"]))

    state, progress = on_all(processes, read)
    put_state(model, optimiser, state)
    return progress
