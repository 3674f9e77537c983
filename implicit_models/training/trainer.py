"""The training loop."""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from implicit_models.equilibrium.solution import Solution
from implicit_models.language_models.building import LanguageModel
from implicit_models.language_models.labelled import Sequences
from implicit_models.language_models.losses import aligned_loss
from implicit_models.language_models.reading import read
from implicit_models.training.checkpoints import CheckpointFolder, Progress
from implicit_models.training.curriculum import Segment
from implicit_models.training.objectives import accuracies
from implicit_models.training.parameters import MonitoringParameters, OptimisationParameters

log = logging.getLogger(__name__)


@runtime_checkable
class MetricLog(Protocol):
    """Where metrics go besides the history."""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Take the metrics of a step."""
        ...


Validate = Callable[[LanguageModel], Mapping[str, float]]
BatchIndices = Callable[[int], np.ndarray]


class CountFlops(Protocol):
    """Counts what a training step computes."""

    def __call__(self, num_sequences: int, length: int, search_evaluations: float) -> float:
        """Count; ``search_evaluations`` are of single tokens, without gradient."""
        ...


@dataclass(frozen=True)
class Training:
    """Everything a segment's training reads; the same value always gives the same weights.

    Attributes
    ----------
    batch_indices
        Which sequences a step trains on: a pure function of the step.
    validate
        Metrics of the model on held-out data, logged under ``validation_``.
    count_flops
        Floating-point operations of a training step.
    start
        What was done before this segment: its steps, tokens and operations.
    """

    segment: Segment
    optimisation: OptimisationParameters
    monitoring: MonitoringParameters
    sequences: Sequences
    batch_indices: BatchIndices
    validate: Validate
    count_flops: CountFlops
    start: Progress
    seed: int


def train(
    training: Training,
    model: LanguageModel,
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
    progress = checkpoints.resume(model, optimiser) or training.start
    tokens, flops, history = progress.tokens, progress.flops, list(progress.history)

    model.train()
    bar = tqdm(
        total=segment.last_step,
        initial=progress.step,
        desc=segment.name,
        unit="step",
        disable=None,
        dynamic_ncols=True,
    )
    began, before = time.perf_counter(), progress.seconds
    logged = (before, tokens)
    for step in range(progress.step, segment.last_step):
        batch = _Batch.of(training, step, next(model.parameters()).device)
        outcome = _training_step(training, step, batch, model, optimiser)
        tokens += batch.inputs.numel()
        num_sequences, length = batch.inputs.shape
        flops += training.count_flops(num_sequences, length, outcome.search_evaluations())

        done = step + 1
        is_last = done == segment.last_step
        if done % monitoring.log_every == 0 or is_last:
            seconds = before + time.perf_counter() - began
            metrics = outcome.metrics()
            metrics["tokens_per_second"] = (tokens - logged[1]) / (seconds - logged[0])
            metrics |= {"tokens": tokens, "training_flops": flops, "seconds": seconds}
            logged = (seconds, tokens)
            if done % monitoring.validate_every == 0 or is_last:
                values = training.validate(model)
                metrics |= {f"validation_{name}": value for name, value in values.items()}
            metric_log.log_metrics(metrics, step=done)
            history.append({"step": done, "phase": segment.name, **metrics})
            bar.set_postfix(_postfix(metrics), refresh=False)
        if done % monitoring.checkpoint_every == 0 and not is_last:
            seconds = before + time.perf_counter() - began
            so_far = Progress(done, tokens, flops, seconds, history)
            checkpoints.save(model, optimiser, so_far)
        bar.update()
    bar.close()
    model.eval()
    seconds = before + time.perf_counter() - began
    return Progress(segment.last_step, tokens, flops, seconds, history)


@dataclass(frozen=True)
class _Batch:
    """The sequences of one step, (B, L)."""

    inputs: Tensor
    labels: Tensor

    @classmethod
    def of(cls, training: Training, step: int, device: torch.device) -> "_Batch":
        rows = training.batch_indices(step)
        length = training.segment.length_at(step, training.seed)
        sequences = training.sequences
        return cls(
            as_tensor(sequences.inputs[rows, :length], device),
            as_tensor(sequences.labels[rows, :length], device),
        )


@dataclass(frozen=True)
class _Outcome:
    """What a step leaves behind; turned into numbers only where something is logged."""

    batch: _Batch
    loss: Tensor
    gradient_norm: Tensor
    learning_rate: float
    logits: Tensor
    search: Solution | None
    penalty: Tensor | None
    gradient_steps: int

    def search_evaluations(self) -> float:
        """Count the tokens that the search evaluated, each as often as it was."""
        return float(self.search.token_evaluations.sum()) if self.search is not None else 0.0

    def metrics(self) -> dict[str, float]:
        """Give the metrics of the step."""
        metrics = {
            "loss": self.loss.item(),
            **accuracies(self.logits, self.batch.labels),
            "learning_rate": self.learning_rate,
            "gradient_norm": self.gradient_norm.item(),
            "sequence_length": self.batch.inputs.shape[1],
            "batch_tokens": self.batch.inputs.numel(),
        }
        if self.penalty is not None:
            metrics["jacobian_penalty"] = self.penalty.item()
        if self.search is not None:
            found = {"self_iterations": 0.0, "token_evaluations": 0.0} | self.search.metrics()
            found["self_iterations"] += self.gradient_steps
            found["token_evaluations"] += self.gradient_steps * self.batch.inputs.numel()
            metrics |= found
        return metrics


def _training_step(
    training: Training,
    step: int,
    batch: _Batch,
    model: LanguageModel,
    optimiser: torch.optim.Optimizer,
) -> _Outcome:
    """Make one optimiser step."""
    segment, optimisation = training.segment, training.optimisation
    learning_rate = segment.learning_rate_at(step, optimisation)
    for group in optimiser.param_groups:
        group["lr"] = learning_rate
    phase = segment.phase_at(step, training.seed)
    output = read(model, batch.inputs, phase)
    loss = aligned_loss(output.logits, batch.labels)
    if output.penalty is not None:
        loss = loss + output.penalty
    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), optimisation.clip_norm)
    for name, value in (("loss", loss), ("gradient's norm", norm)):
        if not torch.isfinite(value):
            raise FloatingPointError(
                f"the {name} of step {step} ({segment.name}) is {value.item()}; the weights "
                "before it are in the last checkpoint. Lower learning_rate or clip_norm"
            )
    optimiser.step()
    return _Outcome(
        batch=batch,
        loss=loss.detach(),
        gradient_norm=norm,
        learning_rate=learning_rate,
        logits=output.logits.detach(),
        search=output.search,
        penalty=None if output.penalty is None else output.penalty.detach(),
        gradient_steps=phase.gradient.num_steps if phase and phase.gradient else 0,
    )


def as_tensor(tokens: np.ndarray, device: torch.device) -> Tensor:
    """Copy tokens out of their file, as indices."""
    return torch.from_numpy(tokens.astype(np.int64)).to(device)


def _postfix(metrics: Mapping[str, Any]) -> dict[str, str]:
    names = {"loss": "loss", "accuracy": "acc", "self_iterations": "iters"}
    shown = {short: f"{metrics[name]:.3g}" for name, short in names.items() if name in metrics}
    return shown | {"tok/s": f"{metrics['tokens_per_second']:,.0f}"}
