"""The training loop."""

import dataclasses
import logging
import signal
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import nn

from implicit_models.bars import bar
from implicit_models.training.carried import Carried
from implicit_models.training.checkpoints import CheckpointFolder
from implicit_models.training.definition import Training
from implicit_models.training.distributed import Execution, Processes, whole_weights
from implicit_models.training.interruption import Stopped, StopRequest
from implicit_models.training.loading import Batch, Loader, read_batch
from implicit_models.training.progress import Progress
from implicit_models.training.record import Record
from implicit_models.training.step import training_step

log = logging.getLogger(__name__)


@runtime_checkable
class MetricLog(Protocol):
    """Where metrics go besides the history."""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Take the metrics of a step."""
        ...


def train(
    training: Training,
    start: Progress,
    module: nn.Module,
    optimiser: torch.optim.Optimizer,
    checkpoints: CheckpointFolder,
    metric_log: MetricLog,
    execution: Execution = Execution(),  # noqa: B008 (frozen)
) -> Progress:
    """Train a model to the end of a segment.

    The weights depend on ``training`` and on the state handed in alone: killed at any moment
    and started again from the newest of ``checkpoints``, they come out the same (to the bit, on
    one machine's CPU and with as many processes). All processes call this alike.

    Parameters
    ----------
    start
        How far the state handed in has come: what a checkpoint said, or what was done before this
        segment.
    module
        What `distribute` returns for the model.

    Raises
    ------
    FloatingPointError
        Where too many steps in a row had to be left out.
    Stopped
        Where the process was asked to stop (SIGTERM, SIGHUP); a checkpoint has been kept.
    """
    segment, monitoring, processes = training.segment, training.monitoring, execution.processes
    start = dataclasses.replace(start, carried=_carried(training, start, processes))
    record = Record(training, start, processes)
    batches = Loader(_reader(training, start, execution), range(start.step, segment.last_step))
    module.train()
    counted = bar(segment.last_step, segment.name, "step", start=start.step)
    # Whatever ends the training, a SIGTERM does not break off what is being written.
    with StopRequest() as stop, checkpoints, counted, batches:
        for step, batch in batches:
            done = step + 1
            is_last = done == segment.last_step
            is_logged = done % monitoring.log_every == 0 or is_last
            outcome = training_step(
                training,
                step,
                batch,
                module,
                optimiser,
                execution,
                stop,
                measured=is_logged,
                carried=record.progress.carried,
            )
            record.add(outcome)
            if is_logged:
                metrics = outcome.metrics(processes) | record.metrics()
                if done % monitoring.validate_every == 0 or is_last:
                    metrics |= _validate(training, module, execution)
                metrics = record.log(metrics)
                metric_log.log_metrics(metrics, step=done)
                counted.note(**_notes(metrics))
            is_stopping = outcome.is_asked_to_stop and not is_last
            if is_stopping or (done % monitoring.checkpoint_every == 0 and not is_last):
                checkpoints.save(module, optimiser, record.now())
            if is_stopping:
                checkpoints.wait()
                number = signal.Signals(stop.number or signal.SIGTERM)  # of another process
                log.warning(
                    "stopped after step %d by %s; the checkpoint is kept, and the training "
                    "goes on from it when it is started again",
                    done,
                    number.name,
                )
                raise Stopped(done, number)
            counted.update()
    module.eval()
    return record.now()


def _reader(training: Training, start: Progress, execution: Execution) -> Callable[[int], Batch]:
    """Return the function that reads a step's batch: this process's share, in micro-batches."""
    processes = execution.processes

    def read_step(step: int) -> Batch:
        position = start.sequences + (step - start.step) * training.batch_size
        rows, begins = _chosen(training, step, position)
        return read_batch(
            training.sequences,
            rows,
            training.segment.length_at(step, training.seed),
            rank=processes.rank,
            size=processes.size,
            at_once=execution.micro_batch,
            pinned=processes.device.type == "cuda",
            begins=begins,
        )

    return read_step


def _chosen(training: Training, step: int, position: int) -> tuple[np.ndarray, np.ndarray | None]:
    """Return which sequences a step has, and which of them begin anew."""
    if training.segment.passing_at(step) is None:
        return training.batch_indices(position), None
    assert training.continuation is not None
    begins = training.segment.begins_at(step, training.seed, training.batch_size)
    if not training.continuation.is_ordered:
        return training.batch_indices(position), begins
    assert training.stream_indices is not None
    rows = training.stream_indices(position)
    return rows, begins | (rows == 0)  # nothing goes on from the last to the first


def _carried(training: Training, start: Progress, processes: Processes) -> Carried | None:
    """Return this process's share of what was carried; None where it is another batch's."""
    if start.carried is None:
        return None
    own = start.carried.share(processes, training.batch_size)
    if own is None and processes.is_main:
        log.warning(
            "what was carried is of %d sequences, and a step has %d: all begin anew",
            len(start.carried),
            training.batch_size,
        )
    return own


def _validate(training: Training, module: nn.Module, execution: Execution) -> dict[str, float]:
    with whole_weights(module):
        found = training.validate(module, execution)
    return {f"validation_{name}": value for name, value in found.items()}


def _notes(metrics: Mapping[str, Any]) -> dict[str, str]:
    names = {"loss": "loss", "accuracy": "accuracy", "self_iterations": "iterations"}
    shown = {short: f"{metrics[name]:.3g}" for name, short in names.items() if name in metrics}
    return shown | {"tokens/s": f"{metrics['tokens_per_second']:,.0f}"}
