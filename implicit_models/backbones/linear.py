"""Weights that may be normalised: direction and length learned apart."""

import torch
from jaxtyping import Float
from torch import Tensor, nn


class NormalisedWeight(nn.Module):
    """A weight ``scale * weight / |weight|`` per output row (Salimans & Kingma 2016).

    Without normalisation it is the plain parameter ``weight``. The effective weight is asked
    for once a solve with `effective` and handed to every iteration.

    Shapes: weight (rows, ...), scale (rows, 1, ...).
    """

    scale: nn.Parameter | None

    def __init__(self, initial: Float[Tensor, "rows *rest"], normalised: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(initial)
        self.scale = nn.Parameter(_row_length(initial)) if normalised else None

    def effective(self) -> Float[Tensor, "rows *rest"]:
        """Give the weight that multiplies."""
        if self.scale is None:
            return self.weight
        return self.weight * (self.scale / _row_length(self.weight))


def _row_length(weight: Tensor) -> Tensor:
    dimensions = tuple(range(1, weight.dim()))
    return torch.linalg.vector_norm(weight, dim=dimensions, keepdim=True)
