"""Mamba2's state space with decays between -1 and 1, in plain PyTorch.

A decay of ``2 a - 1`` in place of ``a = exp(dt * decay_rate)`` (Grazzi et al. 2025): with a
negative one the state can alternate, which parity needs and decays between 0 and 1 cannot give.
Products of decays are not sums of logarithms here, so that a decay of 0 is as exact as any.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from implicit_models.kernels.autocast import without_autocast
from implicit_models.kernels.reference import accumulation_dtype, positive_time_step

CHUNK_LENGTH = 16  # about the root of the lengths that are read: products are taken token by token


@without_autocast
def state_space_scan(
    inputs: Float[Tensor, "B L H P"],
    time_step: Float[Tensor, "B L H"],
    time_step_bias: Float[Tensor, " H"],
    decay_rate: Float[Tensor, " H"],
    input_map: Float[Tensor, "B L G N"],
    output_map: Float[Tensor, "B L G N"],
    skip: Float[Tensor, " H"],
    initial_state: Float[Tensor, "B H P N"] | None = None,
    *,
    chunk_length: int | None = None,
    return_final_state: bool = True,
) -> tuple[Float[Tensor, "B L H P"], Float[Tensor, "B H P N"] | None]:
    """Run the state space over a sequence, as `reference.state_space_scan` but for the decays."""
    batch, length, heads, width = inputs.shape
    dtype, precise = inputs.dtype, accumulation_dtype(inputs.dtype)
    dt, decay = _signed(time_step, time_step_bias, decay_rate)
    state = initial_state
    if state is None:
        state = inputs.new_zeros(batch, heads, width, input_map.shape[-1], dtype=precise)
    x, b, c = inputs.to(precise), _by_head(input_map, heads), _by_head(output_map, heads)
    outputs, size = [], max(1, chunk_length or CHUNK_LENGTH)
    for start in range(0, length, size):
        part = slice(start, start + size)
        of_part = (each[:, part] for each in (x, dt, decay, b, c))
        found, state = _chunk(next(of_part), *of_part, state=state)
        outputs.append(found)
    mixed = torch.cat(outputs, dim=1) if outputs else torch.zeros_like(x)
    mixed = torch.addcmul(mixed, x, skip[:, None].to(precise))
    return mixed.to(dtype), state if return_final_state else None


@without_autocast
def advance_state(
    inputs: Float[Tensor, "B L H P"],
    time_step: Float[Tensor, "B L H"],
    time_step_bias: Float[Tensor, " H"],
    decay_rate: Float[Tensor, " H"],
    input_map: Float[Tensor, "B L G N"],
    state: Float[Tensor, "B H P N"],
    counts: Int[Tensor, " B"] | None = None,
) -> Float[Tensor, "B H P N"]:
    """Return the state after each sequence's first ``counts`` tokens; None means all."""
    if not inputs.shape[1]:
        return state
    dt, decay = _signed(time_step, time_step_bias, decay_rate)
    if counts is not None:
        # A token beyond neither decays the state nor writes to it.
        tokens = torch.arange(inputs.shape[1], device=counts.device)
        is_in = (tokens < counts[:, None])[..., None]
        dt, decay = dt * is_in, torch.where(is_in, decay, 1)
    # From behind each token to the end.
    after = F.pad(decay[:, 1:], (0, 0, 0, 1), value=1.0).flip(1).cumprod(1).flip(1)
    weighted = inputs.to(dt.dtype) * (after * dt)[..., None]
    written = torch.einsum("blhp,blhn->bhpn", weighted, _by_head(input_map, inputs.shape[2]))
    return torch.addcmul(written, decay.prod(1)[..., None, None], state)


def _signed(
    time_step: Float[Tensor, "B L H"],
    time_step_bias: Float[Tensor, " H"],
    decay_rate: Float[Tensor, " H"],
) -> tuple[Float[Tensor, "B L H"], Float[Tensor, "B L H"]]:
    """Return the positive time steps, and the decays."""
    dt = positive_time_step(time_step, time_step_bias)
    return dt, 2 * (dt * decay_rate).exp() - 1


def _by_head(maps: Float[Tensor, "B L G N"], heads: int) -> Float[Tensor, "B L H N"]:
    precise = maps.to(accumulation_dtype(maps.dtype))
    return precise.repeat_interleave(heads // maps.shape[2], dim=2)


def _chunk(
    x: Float[Tensor, "B T H P"],
    dt: Float[Tensor, "B T H"],
    decay: Float[Tensor, "B T H"],
    b: Float[Tensor, "B T H N"],
    c: Float[Tensor, "B T H N"],
    state: Float[Tensor, "B H P N"],
) -> tuple[Float[Tensor, "B T H P"], Float[Tensor, "B H P N"]]:
    """Return the outputs of a chunk's tokens, without the skip, and the state after them."""
    products = _products(decay.transpose(1, 2))
    scores = torch.einsum("bthn,bshn->bhts", c, b) * products
    outputs = torch.einsum("bhts,bsh,bshp->bthp", scores, dt, x)
    from_start = products[..., 0] * decay[:, :1].transpose(1, 2)
    past = torch.einsum("bthn,bhpn->bthp", c, state)
    outputs = outputs + past * from_start.transpose(1, 2)[..., None]
    to_end = products[:, :, -1].transpose(1, 2) * dt
    written = torch.einsum("bsh,bshp,bshn->bhpn", to_end, x, b)
    return outputs, torch.addcmul(written, from_start[:, :, -1, None, None], state)


def _products(decay: Float[Tensor, "B H T"]) -> Float[Tensor, "B H T T"]:
    """Return the product of the decays of the tokens behind s up to t, at [t, s]; 0 where s > t."""
    length = decay.shape[-1]
    ones = torch.eye(length, dtype=decay.dtype, device=decay.device)
    rows, row = [], torch.zeros_like(decay)
    for t in range(length):
        row = row * decay[..., t : t + 1] + ones[t]
        rows.append(row)
    return torch.stack(rows, dim=-2)
