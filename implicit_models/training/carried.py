"""What goes from a step's sequences into those that stand in their places in the next step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from implicit_models.language_models.labelled import Continuation
from implicit_models.language_models.losses import IGNORED
from implicit_models.language_models.memory import Memory
from implicit_models.training.curriculum import Passing
from implicit_models.training.distributed import Processes

PREFIX = "carried."  # of its tensors' names in a checkpoint


@dataclass(frozen=True, eq=False)
class Carried:
    """What is passed on, in tensors that have a row for each sequence.

    Attributes
    ----------
    is_passed
        Of each row, whether the next sequence goes on from it, or begins anew.
    labels
        The last ones.
    memory
        The tensors of the model's memory.
    """

    is_passed: Bool[Tensor, " B"]
    labels: Int[Tensor, " B"]
    memory: Mapping[str, Tensor]

    def __len__(self) -> int:
        return len(self.is_passed)

    def rows(self, rows: slice) -> "Carried":
        """Return some of the rows."""
        memory = {name: tensor[rows] for name, tensor in self.memory.items()}
        return Carried(self.is_passed[rows], self.labels[rows], memory)

    def tensors(self) -> dict[str, Tensor]:
        """Return all of it by the names that it has in a checkpoint."""
        own = {"is_passed": self.is_passed, "labels": self.labels}
        memory = {f"memory.{name}": tensor for name, tensor in self.memory.items()}
        return {f"{PREFIX}{name}": tensor for name, tensor in (own | memory).items()}

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, Tensor]) -> "Carried | None":
        """Return what has these `tensors`; None where there are none."""
        found = {k.removeprefix(PREFIX): t for k, t in tensors.items() if k.startswith(PREFIX)}
        if not found:
            return None
        is_passed, labels = found.pop("is_passed"), found.pop("labels")
        memory = {name.removeprefix("memory."): tensor for name, tensor in found.items()}
        return cls(is_passed, labels, memory)

    def gathered(self, processes: Processes) -> "Carried":
        """Return the rows of all processes, in the order of their ranks; all call this."""
        own = {name: tensor.cpu() for name, tensor in self.tensors().items()}
        if processes.size == 1:
            return self
        parts = [part for each in processes.gathered(own) if (part := Carried.of_tensors(each))]
        return joined(parts)

    def share(self, processes: Processes, batch_size: int) -> "Carried | None":
        """Return a process's part of the rows of all; None where they are of another batch."""
        if len(self) != batch_size:
            return None
        share = batch_size // processes.size
        own = self.rows(slice(processes.rank * share, (processes.rank + 1) * share)).tensors()
        return Carried.of_tensors({k: t.to(processes.device) for k, t in own.items()})


def joined(parts: Sequence[Carried]) -> Carried:
    """Return the rows of several, one behind the other."""
    names = parts[0].memory
    return Carried(
        torch.cat([each.is_passed for each in parts]),
        torch.cat([each.labels for each in parts]),
        {name: torch.cat([each.memory[name] for each in parts]) for name in names},
    )


@dataclass(frozen=True)
class Begun:
    """Sequences with what stands before them.

    Attributes
    ----------
    went_on
        How many go on from something.
    labels
        With what they go on from.
    """

    memory: Memory
    labels: Int[Tensor, "B L"]
    went_on: Int[Tensor, ""]


def begin(
    labels: Int[Tensor, "B L"],
    before: Carried | None,
    begins: Bool[Tensor, " B"],
    start: Memory,
    continuation: Continuation,
) -> Begun:
    """Return sequences that go on from what was carried to them.

    Parameters
    ----------
    before
        None where all begin.
    begins
        Which of them begin anew, whatever is before them.
    start
        The memory of a text's start.
    """
    if before is None:
        return Begun(start.resumed(start.tensors()), labels, begins.new_zeros((), dtype=torch.long))
    goes_on = before.is_passed & ~begins
    memory = {
        name: torch.where(_beside(goes_on, initial), before.memory[name], initial)
        for name, initial in start.tensors().items()
    }
    if continuation.labels is not None:
        continued = continuation.labels(labels, before.labels)
        labels = torch.where(goes_on[:, None], continued, labels)
    return Begun(start.resumed(memory), labels, goes_on.sum())


def carry_on(
    memory: Memory,
    labels: Int[Tensor, "B L"],
    predictions: Int[Tensor, "B L"],
    passing: Passing,
) -> Carried:
    """Return what sequences carry on, after the model has read them."""
    is_passed = torch.ones(len(labels), dtype=torch.bool, device=labels.device)
    if passing.if_right is not None:
        last = labels[:, -passing.if_right :]
        is_passed = ((predictions[:, -passing.if_right :] == last) | (last == IGNORED)).all(1)
    tensors = {name: tensor.detach() for name, tensor in memory.tensors().items()}
    return Carried(is_passed, labels[:, -1].clone(), tensors)


def _beside(rows: Tensor, tensor: Tensor) -> Tensor:
    return rows.view(-1, *(1 for _ in tensor.shape[1:]))
