"""One step of training: a batch's gradients, added up over micro-batches, and the optimiser's."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from implicit_models.equilibrium.phase import Phase
from implicit_models.equilibrium.solution import Result, Solution
from implicit_models.families.family import initial_memory
from implicit_models.language_models.forward import forward_labelled, language_model_of
from implicit_models.language_models.labelled import Continuation
from implicit_models.training.carried import Carried, begin, carry_on, joined
from implicit_models.training.curriculum import Passing
from implicit_models.training.definition import Training
from implicit_models.training.distributed import Execution, Processes, accumulating
from implicit_models.training.interruption import StopRequest
from implicit_models.training.loading import Batch, MicroBatch
from implicit_models.training.metrics import ACCURACIES, Mean, accuracies, averaged, search_metrics


@dataclass(frozen=True)
class MicroBatchOutcome:
    """What a micro-batch leaves behind.

    Attributes
    ----------
    loss
        Its share of the global batch's: of the labels alone.
    penalty, center
        Its share of what is added to that; None where nothing is.
    right
        Of the labelled tokens; empty where the step is not measured.
    carried, went_on
        What its sequences carry on, and how many went on from something; None where they do not.
    """

    loss: Tensor
    penalty: Tensor | None
    center: Tensor | None
    search: Solution | None
    right: Mapping[str, Mean]
    carried: Carried | None = None
    went_on: Tensor | None = None


@dataclass(frozen=True)
class StepOutcome:
    """What a step leaves behind.

    Attributes
    ----------
    loss, search_evaluations
        Of all processes: the mean over the global batch's labels, and the evaluations of tokens.
    penalty, center
        What is added to the loss, which is minimised with it.
    fault
        Why the step was left out; None where it was not.
    micro_batches
        Those of this process.
    carried
        What its sequences carry on into the next step; None where they carry nothing.
    """

    batch: Batch
    loss: float
    search_evaluations: float
    penalty: float | None
    center: float | None
    gradient_norm: float
    learning_rate: float
    fault: str | None
    is_asked_to_stop: bool
    micro_batches: Sequence[MicroBatchOutcome]
    gradient_steps: int
    carried: Carried | None

    def metrics(self, processes: Processes) -> dict[str, float]:
        """Return the metrics of a step that was measured; every process calls this."""
        metrics = {"loss": self.loss} if self.batch.num_labels else {}
        metrics |= averaged(ACCURACIES, [each.right for each in self.micro_batches], processes)
        metrics |= {
            "learning_rate": self.learning_rate,
            "gradient_norm": self.gradient_norm,
            "sequence_length": self.batch.length,
            "batch_tokens": self.batch.num_tokens,
        }
        if self.penalty is not None:
            metrics["jacobian_penalty"] = self.penalty
        if self.center is not None:
            metrics["center_loss"] = self.center
        if self.micro_batches[0].went_on is not None:
            counts = [each.went_on for each in self.micro_batches if each.went_on is not None]
            (went_on,) = processes.total(torch.stack(counts).sum())
            metrics["share_carried"] = went_on / self.batch.num_sequences
        searches, num_tokens = _searches(self.micro_batches), self.batch.num_tokens
        return metrics | search_metrics(searches, self.gradient_steps, num_tokens, processes)


def training_step(
    training: Training,
    step: int,
    batch: Batch,
    module: nn.Module,
    optimiser: torch.optim.Optimizer,
    execution: Execution,
    stop: StopRequest,
    *,
    measured: bool,
    carried: Carried | None = None,
) -> StepOutcome:
    """Make one optimiser step, or leave it out where something in it is not finite.

    Parameters
    ----------
    measured
        Whether the metrics of the step will be asked for.
    carried
        What the step before has carried on; None where all sequences begin.
    """
    segment, optimisation, processes = training.segment, training.optimisation, execution.processes
    learning_rate = segment.learning_rate_at(step, optimisation)
    for group in optimiser.param_groups:
        group["lr"] = learning_rate
    _seed_dropout(processes.device, _seed_of(training.seed, step, processes.rank))
    optimiser.zero_grad(set_to_none=True)
    passing = segment.passing_at(step)
    outcomes = []
    for micro_batch in batch.micro_batches:
        phase = _checkpointed(segment.phase_at(step, training.seed, micro_batch.first), execution)
        is_last = micro_batch.first == batch.micro_batches[-1].first
        before = None
        if passing is not None:
            assert training.continuation is not None
            start = micro_batch.first - batch.micro_batches[0].first
            rows = slice(start, start + len(micro_batch.inputs))
            known = None if carried is None else carried.rows(rows)
            before = _Before(passing, training.continuation, known)
        with accumulating(module, is_last=is_last):
            outcomes.append(
                _add_gradients(
                    *(module, micro_batch, batch, phase, processes, measured, before),
                    segment.center_weight,
                )
            )
    norm = nn.utils.clip_grad_norm_(module.parameters(), optimisation.clip_norm)
    norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
    penalties = [each.penalty for each in outcomes if each.penalty is not None]
    centers = [each.center for each in outcomes if each.center is not None]
    searches = _searches(outcomes)
    # Nothing that a process decides alone may decide what the others wait for.
    loss, penalty, center, evaluations, diverged, asked = processes.total(
        torch.stack([each.loss for each in outcomes]).sum(),
        torch.stack(penalties).sum() if penalties else 0.0,
        torch.stack(centers).sum() if centers else 0.0,
        sum((search.token_evaluations.sum() for search in searches), 0),
        sum(((search.result == Result.NON_FINITE).sum() for search in searches), 0),
        float(stop.is_made),
    )
    fault = _fault(loss + penalty + center, norm.item(), diverged)
    if fault is None:
        optimiser.step()
    parts = [each.carried for each in outcomes if each.carried is not None]
    return StepOutcome(
        batch=batch,
        loss=loss,
        search_evaluations=evaluations,
        penalty=penalty if penalties else None,
        center=center if centers else None,
        gradient_norm=norm.item(),
        learning_rate=learning_rate,
        fault=fault,
        is_asked_to_stop=asked > 0,
        micro_batches=outcomes,
        gradient_steps=segment.phase.num_following if segment.phase is not None else 0,
        carried=joined(parts) if parts and fault is None else None,
    )


@dataclass(frozen=True)
class _Before:
    """What a micro-batch's sequences go on from; ``carried`` None: all begin."""

    passing: Passing
    continuation: Continuation
    carried: Carried | None


def _add_gradients(
    module: nn.Module,
    micro_batch: MicroBatch,
    batch: Batch,
    phase: Phase | None,
    processes: Processes,
    measured: bool,
    before: _Before | None,
    center_weight: float,
) -> MicroBatchOutcome:
    """Add the gradients of a micro-batch's share of the loss to those of the ones before."""
    micro_batch = micro_batch.to(processes.device)
    labels, memory, begun = micro_batch.labels, None, None
    if before is not None:
        start = initial_memory(language_model_of(module), len(labels))
        begun = begin(labels, before.carried, micro_batch.begins, start, before.continuation)
        labels, memory = begun.labels, begun.memory
    # The mean over the labels of all processes; a batch without any has none to divide by.
    num_labels = max(batch.num_labels, 1)
    output = forward_labelled(
        *(module, micro_batch.inputs, labels, phase, num_labels, memory, center_weight),
        asked=micro_batch.asked,
    )
    loss, num_sequences = output.loss, 0 if micro_batch.is_idle else len(micro_batch.inputs)
    share = num_sequences / max(batch.num_computed, 1)
    search = None if micro_batch.is_idle else output.search
    penalty, center = (
        None if each is None else each * share for each in (output.penalty, output.center)
    )
    minimised = loss
    for each in (penalty, center):
        minimised = minimised if each is None else minimised + each
    (minimised * processes.size).backward()  # gradients are averaged over the processes
    carried = None
    if before is not None:
        assert output.memory is not None
        carried = carry_on(output.memory, labels, output.predictions(), before.passing)
    return MicroBatchOutcome(
        loss=loss.detach(),
        penalty=None if penalty is None else penalty.detach(),
        center=None if center is None else center.detach(),
        search=None if search is None else search.without_value(),
        right=accuracies(output.predictions(), labels) if measured else {},
        carried=carried,
        went_on=None if begun is None else begun.went_on,
    )


def _searches(outcomes: Sequence[MicroBatchOutcome]) -> list[Solution]:
    return [each.search for each in outcomes if each.search is not None]


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
    return phase.with_checkpointing()


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
