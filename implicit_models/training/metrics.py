"""How right a model is over the tokens that have a label, and how long it searched."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from implicit_models.equilibrium.solution import Solution, joined
from implicit_models.language_models.labelled import LAST_TOKENS
from implicit_models.language_models.losses import IGNORED
from implicit_models.training.distributed import Processes

_PLACES = {"accuracy": slice(None), "accuracy_last_10": slice(-LAST_TOKENS, None)}
ACCURACIES = tuple(_PLACES)


@dataclass(frozen=True)
class Mean:
    """A mean over labelled tokens, and how many these are; the value of none is 0."""

    value: float
    num_labels: int


def count_labels(labels: Int[Tensor, "B L"]) -> int:
    """Count the labels that a loss counts."""
    return int((labels != IGNORED).sum())


@torch.no_grad()
def accuracies(predictions: Int[Tensor, "B L"], labels: Int[Tensor, "B L"]) -> dict[str, Mean]:
    """Return the share of right answers over all labelled tokens, and over those of the last 10."""
    right, found = predictions == labels, {}
    for name, places in _PLACES.items():
        num_labels = count_labels(labels[:, places])
        share = (right[:, places].sum() / max(num_labels, 1)).item()
        found[name] = Mean(share, num_labels)
    return found


def averaged(
    names: Iterable[str], micro_batches: Sequence[Mapping[str, Mean]], processes: Processes
) -> dict[str, float]:
    """Average over the micro-batches of all processes; what has no labelled token is left out."""
    names = tuple(names)
    sums = [
        sum(each[name].value * each[name].num_labels for each in micro_batches) for name in names
    ]
    counts = [sum(each[name].num_labels for each in micro_batches) for name in names]
    totals = processes.total(*sums, *counts)
    found = zip(names, totals[: len(names)], totals[len(names) :], strict=True)
    return {name: total / count for name, total, count in found if count}


def search_metrics(
    searches: Sequence[Solution], gradient_steps: int, num_tokens: int, processes: Processes
) -> dict[str, float]:
    """Return how long the searches of a batch took; nothing where no process has searched.

    Parameters
    ----------
    searches
        Of this process.
    gradient_steps, num_tokens
        Evaluations of each token that follow on the search, and the tokens of all processes.
    """
    search = gathered(searches, processes)
    if search is None:
        return {}
    found = {"self_iterations": 0.0, "token_evaluations": 0.0} | search.metrics()
    found["self_iterations"] += gradient_steps
    found["token_evaluations"] += gradient_steps * num_tokens
    return found


def gathered(searches: Sequence[Solution], processes: Processes) -> Solution | None:
    """Join the searches of all processes into that of one batch, without their values.

    None where there is none; a process without any takes part all the same.
    """
    own = [search.to(torch.device("cpu")) for search in searches]
    found = [search for each in processes.gathered(own) for search in each]
    return joined(found) if found else None
