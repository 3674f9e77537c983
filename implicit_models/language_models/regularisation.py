"""What training adds to a forward pass so that states of one label meet and errors fade."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Regularisation:
    """Two terms that nothing but a training uses.

    Attributes
    ----------
    center_weight
        Of the targets' `losses.center_loss` over the hidden states.
    embedding_noise
        Standard deviation of the normal noise on each number of a token's embedding, over the
        embedding's root mean square. It is drawn from torch's generator, once for a forward pass:
        a search seeks the fixed point of the noisy embeddings, as do the steps with gradient.
    """

    center_weight: float = 0.0
    embedding_noise: float = 0.0

    def noisy(self, embedded: Float[Tensor, "B L D"]) -> Float[Tensor, "B L D"]:
        """Return embeddings with noise on them; themselves where there is to be none."""
        if not self.embedding_noise:
            return embedded
        scale = embedded.square().mean(-1, keepdim=True).sqrt()
        return embedded + self.embedding_noise * scale * torch.randn_like(embedded)
