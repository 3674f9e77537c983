"""The training loop."""

import dataclasses
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import nn
from torch.distributed.tensor import DTensor
from tqdm import tqdm

from implicit_models.cost.meter import peak_memory
from implicit_models.equilibrium.gradients import Phantom, Unrolled
from implicit_models.equilibrium.phase import Phase
from implicit_models.equilibrium.solution import Result, Solution, joined
from implicit_models.language_models.labelled import Sequences
from implicit_models.language_models.reading import read_labelled
from implicit_models.training.checkpoints import CheckpointFolder, Progress
from implicit_models.training.curriculum import Segment
from implicit_models.training.distributed import Execution, Processes, accumulating, whole_weights
from implicit_models.training.interruption import Stopped, StopRequest
from implicit_models.training.loading import Batch, Loader, Part, read_batch
from implicit_models.training.objectives import accuracies
from implicit_models.training.parameters import MonitoringParameters, OptimisationParameters

log = logging.getLogger(__name__)


@runtime_checkable
class MetricLog(Protocol):
    """Where metrics go besides the history."""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Take the metrics of a step."""
        ...


Validate = Callable[[nn.Module, Execution], Mapping[str, float]]


class BatchIndices(Protocol):
    """Says which sequences a step trains on: a function of the position in the data alone."""

    def __call__(self, position: int) -> np.ndarray:
        """Give the sequences of the global batch that follows the first ``position`` many."""
        ...


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
    batch_size
        Sequences of a step, those of all processes together.
    batch_indices
        Which these are.
    validate
        Metrics of the model on held-out data, logged under ``validation_``.
    count_flops
        Floating-point operations of a training step.
    peak_flops
        The most floating-point operations a second of a process's device; None where the model
        FLOP utilisation is not to be known.
    start
        What was done before this segment: its steps, sequences, tokens and operations.
    """

    segment: Segment
    optimisation: OptimisationParameters
    monitoring: MonitoringParameters
    sequences: Sequences
    batch_size: int
    batch_indices: BatchIndices
    validate: Validate
    count_flops: CountFlops
    start: Progress
    seed: int
    peak_flops: float | None = None


def train(
    training: Training,
    module: nn.Module,
    optimiser: torch.optim.Optimizer,
    checkpoints: CheckpointFolder,
    metric_log: MetricLog,
    execution: Execution = Execution(),  # noqa: B008 (frozen)
    resumed: Progress | None = None,
) -> Progress:
    """Train a model through one segment, from its newest checkpoint where there is one.

    The weights depend on ``training`` and on the state handed in alone: killed at any moment
    and started again, they come out the same (to the bit, on one machine's CPU and with as many
    processes). All processes call this alike.

    Parameters
    ----------
    module
        What `distribute` gives for the model.
    resumed
        Where the state handed in comes from a checkpoint elsewhere: what that says.

    Raises
    ------
    FloatingPointError
        Where too many steps in a row had to be left out.
    Stopped
        Where the process was asked to stop (SIGTERM); a checkpoint has been kept.
    """
    segment, monitoring, processes = training.segment, training.monitoring, execution.processes
    progress = checkpoints.resume(module, optimiser) or resumed or training.start
    tokens, flops, history = progress.tokens, progress.flops, list(progress.history)
    skipped, in_a_row = progress.skipped_steps, 0

    module.train()
    bar = tqdm(
        total=segment.last_step,
        initial=progress.step,
        desc=segment.name,
        unit="step",
        disable=None if processes.is_main else True,
        dynamic_ncols=True,
    )
    began, before = time.perf_counter(), progress.seconds
    logged, sequences = (before, tokens, flops), progress.sequences

    def reached(step: int) -> Progress:
        seconds = before + time.perf_counter() - began
        return Progress(
            step=step,
            sequences=sequences,
            tokens=tokens,
            flops=flops,
            seconds=seconds,
            skipped_steps=skipped,
            history=history,
        )

    steps = range(progress.step, segment.last_step)
    read_step = _reader(training, progress, execution)
    with checkpoints, bar, StopRequest() as stop, Loader(read_step, steps) as loader:
        for step, batch in loader:
            done = step + 1
            is_last = done == segment.last_step
            logs = done % monitoring.log_every == 0 or is_last
            outcome = _training_step(
                training, step, batch, module, optimiser, execution, stop, logs
            )
            tokens += batch.num_tokens
            sequences += batch.num_sequences
            flops += training.count_flops(
                batch.num_sequences, batch.length, outcome.search_evaluations
            )
            in_a_row = in_a_row + 1 if outcome.fault else 0
            if outcome.fault:
                skipped += 1
                log.warning("step %d (%s) is left out: %s", step, segment.name, outcome.fault)
            if in_a_row > training.optimisation.max_skipped_steps:
                raise FloatingPointError(
                    f"{outcome.fault} in step {step} ({segment.name}), and {in_a_row} steps in a "
                    "row were left out for such reasons; the weights before them are in the last "
                    "checkpoint. Lower learning_rate or clip_norm, or allow more with "
                    "optimisation.max_skipped_steps"
                )
            if logs:
                seconds = before + time.perf_counter() - began
                metrics = outcome.metrics(processes)
                took = seconds - logged[0]
                metrics["tokens_per_second"] = (tokens - logged[1]) / took
                if training.peak_flops is not None:
                    most = training.peak_flops * processes.size
                    metrics["model_flop_utilisation"] = (flops - logged[2]) / took / most
                metrics |= {"tokens": tokens, "training_flops": flops, "seconds": seconds}
                metrics |= {"sequences": sequences, "skipped_steps": skipped}
                metrics["epoch"] = sequences / len(training.sequences.inputs)
                metrics["peak_memory_bytes"] = peak_memory(processes.device)
                logged = (seconds, tokens, flops)
                if done % monitoring.validate_every == 0 or is_last:
                    with whole_weights(module):
                        values = training.validate(module, execution)
                    metrics |= {f"validation_{name}": value for name, value in values.items()}
                metrics = _finite(metrics)
                metric_log.log_metrics(metrics, step=done)
                history.append({"step": done, "phase": segment.name, **metrics})
                bar.set_postfix(_postfix(metrics), refresh=False)
            if outcome.is_asked_to_stop and not is_last:
                checkpoints.save(module, optimiser, reached(done))
                checkpoints.wait()
                log.warning(
                    "stopped after step %d by SIGTERM; the checkpoint is kept, and the training "
                    "goes on from it when it is started again",
                    done,
                )
                raise Stopped(done)
            if done % monitoring.checkpoint_every == 0 and not is_last:
                checkpoints.save(module, optimiser, reached(done))
            bar.update()
    module.eval()
    return reached(segment.last_step)


def _reader(training: Training, progress: Progress, execution: Execution) -> Callable[[int], Batch]:
    """Give the function that reads a step's batch: this process's share, in parts."""
    processes = execution.processes

    def read_step(step: int) -> Batch:
        position = progress.sequences + (step - progress.step) * training.batch_size
        return read_batch(
            training.sequences,
            training.batch_indices(position),
            training.segment.length_at(step, training.seed),
            rank=processes.rank,
            size=processes.size,
            at_once=execution.micro_batch,
            pinned=processes.device.type == "cuda",
        )

    return read_step


@dataclass(frozen=True)
class _Outcome:
    """What a step leaves behind.

    Attributes
    ----------
    loss, search_evaluations
        Of all processes: the mean over the global batch's tokens, and the evaluations of tokens.
    fault
        Why the step was left out; None where it was not.
    right
        Shares of right answers of this process, where the step is logged.
    searches
        Of this process.
    """

    batch: Batch
    loss: float
    search_evaluations: float
    penalty: float | None
    gradient_norm: float
    learning_rate: float
    fault: str | None
    is_asked_to_stop: bool
    right: Mapping[str, float]
    searches: Sequence[Solution]
    gradient_steps: int

    def metrics(self, processes: Processes) -> dict[str, float]:
        """Give the metrics of the step; every process calls this."""
        totals = processes.total(*self.right.values())
        right = (total / processes.size for total in totals)
        metrics = {
            "loss": self.loss,
            **dict(zip(self.right, right, strict=True)),
            "learning_rate": self.learning_rate,
            "gradient_norm": self.gradient_norm,
            "sequence_length": self.batch.length,
            "batch_tokens": self.batch.num_tokens,
        }
        if self.penalty is not None:
            metrics["jacobian_penalty"] = self.penalty
        if self.searches:
            found = {"self_iterations": 0.0, "token_evaluations": 0.0}
            search = gathered(self.searches, processes)
            found |= search.metrics() if search is not None else {}
            found["self_iterations"] += self.gradient_steps
            found["token_evaluations"] += self.gradient_steps * self.batch.num_tokens
            metrics |= found
        return metrics


def gathered(searches: Sequence[Solution], processes: Processes) -> Solution | None:
    """Put the searches of all processes together as that of one batch, without their values.

    None where there is none; a process without any takes part all the same.
    """
    own = [search.to(torch.device("cpu")) for search in searches]
    found = [search for each in processes.gathered(own) for search in each]
    return joined(found) if found else None


def _training_step(
    training: Training,
    step: int,
    batch: Batch,
    module: nn.Module,
    optimiser: torch.optim.Optimizer,
    execution: Execution,
    stop: StopRequest,
    logs: bool,
) -> _Outcome:
    """Make one optimiser step, or leave it out where something in it is not finite."""
    segment, optimisation, processes = training.segment, training.optimisation, execution.processes
    learning_rate = segment.learning_rate_at(step, optimisation)
    for group in optimiser.param_groups:
        group["lr"] = learning_rate
    _seed_dropout(processes.device, _seed_of(training.seed, step, processes.rank))
    optimiser.zero_grad(set_to_none=True)
    losses, penalties, searches, right, phase = [], [], [], [], None
    for part in batch.parts:
        part = part.to(processes.device)
        phase = _checkpointed(segment.phase_at(step, training.seed, part.first), execution)
        with accumulating(module, is_last=part.first == batch.parts[-1].first):
            # The mean over the tokens of all processes; their gradients are averaged.
            output = read_labelled(module, part.inputs, part.labels, phase, batch.num_tokens)
            loss = output.loss
            if output.penalty is not None:
                penalty = output.penalty * (len(part.inputs) / batch.num_sequences)
                penalties.append(penalty.detach())
                loss = loss + penalty
            (loss * processes.size).backward()
        losses.append(loss.detach())
        if output.search is not None:
            searches.append(output.search.without_value())
        if logs:
            right.append((part, accuracies(output.predictions(), part.labels)))
    norm = nn.utils.clip_grad_norm_(module.parameters(), optimisation.clip_norm)
    norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
    evaluations = sum((search.token_evaluations.sum() for search in searches), 0)
    diverged = sum(((search.result == Result.NON_FINITE).sum() for search in searches), 0)
    # Nothing that a process decides alone may decide what the others wait for.
    loss, penalty, evaluations, diverged, asked = processes.total(
        torch.stack(losses).sum(),
        torch.stack(penalties).sum() if penalties else 0.0,
        evaluations,
        diverged,
        float(stop.is_made),
    )
    fault = _fault(loss, norm.item(), diverged)
    if fault is None:
        optimiser.step()
    return _Outcome(
        batch=batch,
        loss=loss,
        search_evaluations=evaluations,
        penalty=penalty if penalties else None,
        gradient_norm=norm.item(),
        learning_rate=learning_rate,
        fault=fault,
        is_asked_to_stop=asked > 0,
        right=_mean(right),
        searches=searches,
        gradient_steps=phase.gradient.num_steps if phase and phase.gradient else 0,
    )


def _fault(loss: float, norm: float, diverged: float) -> str | None:
    if diverged:
        return f"the search of {diverged:.0f} sequences or tokens became non-finite"
    for name, value in (("loss", loss), ("gradient's norm", norm)):
        if not math.isfinite(value):
            return f"the {name} is {value}"
    return None


def _checkpointed(phase: Phase | None, execution: Execution) -> Phase | None:
    if execution.checkpointing != "iterations" or phase is None:
        return phase
    if not isinstance(phase.gradient, Unrolled | Phantom):
        return phase
    gradient = dataclasses.replace(phase.gradient, checkpointing=True)
    return dataclasses.replace(phase, gradient=gradient)


def _mean(right: Sequence[tuple[Part, Mapping[str, float]]]) -> dict[str, float]:
    """Average shares of right answers over parts, each as often as it has sequences."""
    num_sequences = sum(len(part.inputs) for part, _ in right)
    names = right[0][1] if right else ()
    return {
        name: sum(len(part.inputs) * shares[name] for part, shares in right) / num_sequences
        for name in names
    }


def _seed_of(seed: int, step: int, rank: int) -> int:
    return int(np.random.SeedSequence((seed, step, rank)).generate_state(1, np.uint64)[0] >> 1)


def _seed_dropout(device: torch.device, seed: int) -> None:
    """Seed what models with dropout draw from."""
    # Not torch.manual_seed, which notes a call stack for every kind of device that is not in use: a
    # millisecond, and memory that is never given back.
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed_all(seed)
    elif device.type != "cpu":
        torch.get_device_module(device).manual_seed(seed)


def _finite(metrics: Mapping[str, float]) -> dict[str, float]:
    """Leave out what is no number: neither JSON nor the tracking can hold it."""
    left_out = [name for name, value in metrics.items() if not math.isfinite(value)]
    if left_out:
        log.warning("not logged, because not finite: %s", ", ".join(left_out))
    return {name: value for name, value in metrics.items() if name not in left_out}


def _postfix(metrics: Mapping[str, Any]) -> dict[str, str]:
    names = {"loss": "loss", "accuracy": "acc", "self_iterations": "iters"}
    shown = {short: f"{metrics[name]:.3g}" for name, short in names.items() if name in metrics}
    return shown | {"tok/s": f"{metrics['tokens_per_second']:,.0f}"}
