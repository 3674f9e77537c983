"""What an evaluation has cost."""

import dataclasses
from collections.abc import Iterable

from implicit_models.cost.meter import Measurement
from implicit_models.cost.passes import cost


def total_cost(
    readings: Iterable[tuple[int, float, float]], measured: Measurement
) -> dict[str, float | int | None]:
    """Return the costs of readings, of which each has so many tokens, FLOPs and seconds.

    Parameters
    ----------
    measured
        Of the readings alone, or without energy, which is not told apart.
    """
    num_tokens, flops, seconds = (sum(each) for each in zip(*readings, strict=True))
    return cost(flops, int(num_tokens), dataclasses.replace(measured, seconds=seconds))
