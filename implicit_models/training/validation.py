"""How right a model is on held-out sequences while it trains."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from implicit_models.bars import bar
from implicit_models.equilibrium.phase import Phase
from implicit_models.language_models.forward import forward_labelled
from implicit_models.language_models.labelled import Sequences
from implicit_models.language_models.losses import asked_of
from implicit_models.training.distributed import Execution
from implicit_models.training.loading import as_tensor
from implicit_models.training.metrics import (
    ACCURACIES,
    Mean,
    accuracies,
    averaged,
    count_labels,
    search_metrics,
)


def validator(
    sequences: Sequences,
    num_sequences: int,
    phase: Phase | None,
    batch_size: int,
    *,
    passes_carry: bool = False,
) -> Callable[[nn.Module, Execution], dict[str, float]]:
    """Return a function that measures a model on the first ``num_sequences`` sequences.

    It runs the model exactly as training does, in the same phase and on batches of the same size,
    and keeps no graph. Labelled tokens alone count. The processes take turns with the batches;
    each must hold all weights.

    Parameters
    ----------
    passes_carry
        Whether sequences of the training go on from others: a search judges all tokens then. Here
        none does.
    """
    gradient_steps = phase.num_following if phase is not None else 0

    @torch.no_grad()
    def validate(module: nn.Module, execution: Execution) -> dict[str, float]:
        processes = execution.processes
        # Not through DDP, which would have all processes meet in every forward pass.
        called = module.module if isinstance(module, DistributedDataParallel) else module
        at_once = min(batch_size, execution.micro_batch or batch_size)
        was_training = module.training
        module.eval()
        measured, searches = [], []
        starts = range(0, num_sequences, at_once)[processes.rank :: processes.size]
        with bar(len(starts), "validation", "batch") as counted:
            for start in starts:
                rows = slice(start, min(start + at_once, num_sequences))
                inputs = as_tensor(sequences.inputs[rows], processes.device)
                labels = as_tensor(sequences.labels[rows])
                asked = None if passes_carry else asked_of(labels)
                asked = None if asked is None else asked.to(processes.device)
                labels = labels.to(processes.device)
                output = forward_labelled(called, inputs, labels, phase, asked=asked)
                num_labels = count_labels(labels)
                loss = Mean(output.loss.item() if num_labels else 0.0, num_labels)
                measured.append({"loss": loss, **accuracies(output.predictions(), labels)})
                if output.search is not None:
                    searches.append(output.search.without_value())
                counted.update()
        module.train(was_training)
        means = averaged(("loss", *ACCURACIES), measured, processes)
        num_tokens = num_sequences * sequences.inputs.shape[1]
        return means | search_metrics(searches, gradient_steps, num_tokens, processes)

    return validate
