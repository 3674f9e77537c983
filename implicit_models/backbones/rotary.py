"""Rotary position embeddings (Su et al. 2021): positions as rotations of queries and keys."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

Frequencies = Callable[[torch.device], Float[Tensor, " half"]]


@dataclass(frozen=True)
class Rotary:
    """Rotation by angles ``position * frequency``.

    Attributes
    ----------
    frequencies
        Gives the angles per position of a head's ``head_dim / 2`` pairs, on a device.
    scaling
        Multiplies cosine and sine; 1 for the embeddings as published.
    """

    frequencies: Frequencies
    scaling: float = 1.0

    def angles(
        self, positions: Int[Tensor, "B L"], dtype: torch.dtype
    ) -> tuple[Float[Tensor, "B L 1 P"], Float[Tensor, "B L 1 P"]]:
        """Return cosine and sine, for `kernels.reference.rotate`; computed in float32 at least."""
        precise = torch.promote_types(dtype, torch.float32)
        frequencies = self.frequencies(positions.device).to(precise)
        angles = positions[..., None, None].to(precise) * frequencies.repeat(2)
        return (angles.cos() * self.scaling).to(dtype), (angles.sin() * self.scaling).to(dtype)


def no_rotation(head_dim: int, device: torch.device) -> Float[Tensor, " half"]:
    """Return frequencies of zero: the angles of all positions are zero."""
    return torch.zeros(head_dim // 2, device=device)


def inverse_powers(theta: float, head_dim: int, device: torch.device) -> Float[Tensor, " half"]:
    """Return the published frequencies, ``theta ** (-2 i / head_dim)``."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim
    return 1.0 / theta**exponents
