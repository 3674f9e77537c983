"""The training loop."""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from implicit_models.equilibrium.solution import Result, Solution
from implicit_models.training.checkpoints import CheckpointFolder, Progress
from implicit_models.training.curriculum import Segment
from implicit_models.training.objectives import accuracies, aligned_loss
from implicit_models.training.parameters import MonitoringParameters, OptimisationParameters

log = logging.getLogger(__name__)


@runtime_checkable
class Sequences(Protocol):
    """Training data: token ids and aligned labels, both (num_sequences, length)."""

    @property
    def inputs(self) -> np.ndarray:
        """Token ids."""
        ...

    @property
    def labels(self) -> np.ndarray:
        """What belongs to each token and all before it."""
        ...


@runtime_checkable
class MetricLog(Protocol):
    """Where metrics go besides the history."""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Take the metrics of a step."""
        ...


Validate = Callable[[nn.Module], Mapping[str, float]]
BatchIndices = Callable[[int], np.ndarray]


@dataclass(frozen=True)
class Training:
    """Everything a segment's training reads; the same value always gives the same weights.

    Attributes
    ----------
    batch_indices
        Which sequences a step trains on: a pure function of the step.
    validate
        Metrics of the model on held-out data, logged under ``validation_``.
    """

    segment: Segment
    optimisation: OptimisationParameters
    monitoring: MonitoringParameters
    sequences: Sequences
    batch_indices: BatchIndices
    validate: Validate
    seed: int


def train(
    training: Training,
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    checkpoints: CheckpointFolder,
    metric_log: MetricLog,
) -> Progress:
    """Train a model through one segment, from its newest checkpoint where there is one.

    The weights depend on ``training`` and on the state handed in alone: killed at any moment
    and started again, they come out the same (to the bit, on one machine's CPU).

    Raises
    ------
    FloatingPointError
        Where the loss is no longer a number.
    """
    segment, monitoring = training.segment, training.monitoring
    progress = checkpoints.resume(model, optimiser)
    if progress is None:
        progress = Progress(segment.first_step, 0.0, 0, [])
    seconds, tokens, history = progress.seconds, progress.tokens, list(progress.history)

    model.train()
    bar = tqdm(
        total=segment.last_step,
        initial=progress.step,
        desc=segment.name,
        unit="step",
        disable=None,
        dynamic_ncols=True,
    )
    logged = (seconds, tokens)
    for step in range(progress.step, segment.last_step):
        began = time.perf_counter()
        metrics = _training_step(training, step, model, optimiser)
        seconds += time.perf_counter() - began
        tokens += int(metrics["batch_tokens"])

        done = step + 1
        is_last = done == segment.last_step
        if done % monitoring.log_every == 0 or is_last:
            elapsed = seconds - logged[0]
            metrics["tokens_per_second"] = (tokens - logged[1]) / max(elapsed, 1e-9)
            logged = (seconds, tokens)
            if done % monitoring.validate_every == 0 or is_last:
                values = training.validate(model)
                metrics |= {f"validation_{name}": value for name, value in values.items()}
            metric_log.log_metrics(metrics, step=done)
            history.append({"step": done, "phase": segment.name, **metrics})
            bar.set_postfix(_postfix(metrics), refresh=False)
        if done % monitoring.checkpoint_every == 0 and not is_last:
            progress = Progress(done, seconds, tokens, history)
            checkpoints.save(model, optimiser, progress)
        bar.update()
    bar.close()
    model.eval()
    return Progress(segment.last_step, seconds, tokens, history)


def _training_step(
    training: Training, step: int, model: nn.Module, optimiser: torch.optim.Optimizer
) -> dict[str, float]:
    """Make one optimiser step and give its metrics."""
    segment, optimisation = training.segment, training.optimisation
    learning_rate = segment.learning_rate_at(step, optimisation)
    for group in optimiser.param_groups:
        group["lr"] = learning_rate
    rows = training.batch_indices(step)
    length = segment.length_at(step, training.seed)
    device = next(model.parameters()).device
    inputs = as_tensor(training.sequences.inputs[rows, :length], device)
    labels = as_tensor(training.sequences.labels[rows, :length], device)

    output = model(inputs, segment.phase_at(step))
    loss = aligned_loss(output.logits, labels)
    if not torch.isfinite(loss):
        raise FloatingPointError(
            f"the loss of step {step} ({segment.name}) is {loss.item()}; the weights before it "
            "are in the last checkpoint. Lower learning_rate or clip_norm"
        )
    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), optimisation.clip_norm)
    optimiser.step()
    return {
        "loss": loss.item(),
        **accuracies(output.logits, labels),
        "learning_rate": learning_rate,
        "gradient_norm": norm.item(),
        "sequence_length": length,
        "batch_tokens": inputs.numel(),
        **(_search_metrics(output.search) if output.search is not None else {}),
    }


def _search_metrics(search: Solution) -> dict[str, float]:
    metrics = {"self_iterations": search.steps.float().mean().item()}
    if search.steps.any():
        metrics["relative_residual"] = search.residual.mean().item()
        converged = search.result == Result.CONVERGED
        metrics["share_converged"] = converged.float().mean().item()
    return metrics


def as_tensor(tokens: np.ndarray, device: torch.device) -> Tensor:
    """Copy tokens out of their file, as indices."""
    return torch.from_numpy(tokens.astype(np.int64)).to(device)


def _postfix(metrics: Mapping[str, Any]) -> dict[str, str]:
    names = {"loss": "loss", "accuracy": "acc", "self_iterations": "iters"}
    shown = {short: f"{metrics[name]:.3g}" for name, short in names.items() if name in metrics}
    return shown | {"tok/s": f"{metrics['tokens_per_second']:,.0f}"}
