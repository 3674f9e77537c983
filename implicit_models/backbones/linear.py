"""Weights that may be normalised: direction and length learned apart."""

import torch
from jaxtyping import Float
from torch import Tensor, nn


class NormalisedWeight(nn.Module):
    """A weight ``scale * weight / |weight|`` per output row (Salimans & Kingma 2016).

    Without normalisation it is the plain parameter ``weight``. The effective weight is asked
    for once a solve with `effective` and handed to every iteration. The module that owns it
    initialises it, with `reset`.

    Shapes: weight (rows, ...), scale (rows, 1, ...).
    """

    scale: nn.Parameter | None

    def __init__(self, *size: int, normalised: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        ones = (1,) * (len(size) - 1)
        self.scale = nn.Parameter(torch.empty(size[0], *ones)) if normalised else None

    @torch.no_grad()
    def reset(self, bound: float) -> None:
        """Draw the weight uniformly from +-bound; normalising changes nothing yet."""
        nn.init.uniform_(self.weight, -bound, bound)
        if self.scale is not None:
            set_initial(self.scale, _row_length(self.weight))

    def effective(self) -> Float[Tensor, "rows *rest"]:
        """Return the effective weight, which multiplies the inputs."""
        if self.scale is None:
            return self.weight
        return self.weight * (self.scale / _row_length(self.weight))


@torch.no_grad()
def set_initial(parameter: nn.Parameter, value: Tensor) -> None:
    """Set a parameter as torch.nn.init would: transformers marks what it has loaded, to be kept."""
    if not getattr(parameter, "_is_hf_initialized", False):
        parameter.copy_(value)


def _row_length(weight: Tensor) -> Tensor:
    dimensions = tuple(range(1, weight.dim()))
    return torch.linalg.vector_norm(weight, dim=dimensions, keepdim=True)
