"""The kernels in plain PyTorch: the truth that every faster twin is compared with.

Shapes: B batch, L length, C channels, K convolution width, H heads, P head width,
G groups (heads that share B and C), N state size, T chunk length.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor


def causal_convolution(
    inputs: Float[Tensor, "B L C"],
    weight: Float[Tensor, "C K"],
    bias: Float[Tensor, " C"],
    carry: Float[Tensor, "B K-1 C"] | None = None,
) -> tuple[Float[Tensor, "B L C"], Float[Tensor, "B K-1 C"]]:
    """Convolve each channel with its own filter over the present and the K - 1 past tokens.

    ``carry`` holds the last K - 1 inputs before this piece (zeros where None); the second
    result is the same for the next piece, so that pieces give what the whole gives.

    A sum of K shifted products: on a CPU this beats a grouped ``conv1d``, which wants channels
    before length and a copy each way.
    """
    length, width = inputs.shape[1], weight.shape[1]
    if carry is None:
        padded = F.pad(inputs, (0, 0, width - 1, 0))
    else:
        padded = torch.cat((carry, inputs), dim=1)
    outputs = torch.addcmul(bias, padded[:, :length], weight[:, 0])
    for k in range(1, width):
        outputs.addcmul_(padded[:, k : k + length], weight[:, k])
    return outputs, padded[:, length:]


def state_space_scan(
    inputs: Float[Tensor, "B L H P"],
    time_step: Float[Tensor, "B L H"],
    decay_rate: Float[Tensor, " H"],
    input_map: Float[Tensor, "B L G N"],
    output_map: Float[Tensor, "B L G N"],
    initial_state: Float[Tensor, "B H P N"] | None = None,
    *,
    chunk_length: int = 32,
    return_final_state: bool = True,
) -> tuple[Float[Tensor, "B L H P"], Float[Tensor, "B H P N"] | None]:
    """Run Mamba2's selective state space over a sequence, chunk by chunk.

    Per head, with ``a_t = exp(time_step_t * decay_rate)``::

        state_t  = a_t * state_{t-1} + time_step_t * outer(inputs_t, input_map_t)
        output_t = state_t @ output_map_t

    Inside a chunk this is a masked T x T matrix product; only states pass between chunks
    (Dao & Gu 2024, section 6). ``decay_rate`` is negative. The D skip is the caller's.

    Returns
    -------
    outputs, and the state after the last token (None unless ``return_final_state``).
    """
    batch, length, heads, width = inputs.shape
    groups, size = input_map.shape[2:]
    if length == 1 and initial_state is not None:
        output, state = state_space_step(
            inputs[:, 0],
            time_step[:, 0],
            decay_rate,
            input_map[:, 0],
            output_map[:, 0],
            initial_state,
        )
        return output[:, None], state if return_final_state else None
    if not inputs.numel():
        state = inputs.new_zeros(batch, heads, width, size)
        state = state if initial_state is None else initial_state
        return torch.zeros_like(inputs), state if return_final_state else None
    chunk_length = min(chunk_length, length)
    num_chunks = -(-length // chunk_length)
    padding = num_chunks * chunk_length - length
    if padding:
        # A padded token has time step 0: it neither decays the state nor writes to it.
        inputs = F.pad(inputs, (0, 0, 0, 0, 0, padding))
        time_step = F.pad(time_step, (0, 0, 0, padding))
        input_map = F.pad(input_map, (0, 0, 0, 0, 0, padding))
        output_map = F.pad(output_map, (0, 0, 0, 0, 0, padding))
    chunks = (batch, num_chunks, chunk_length)

    # Heads before time from here on: (B, chunks, H or G, T, ...).
    x = inputs.reshape(*chunks, heads, width).transpose(2, 3)
    dt = time_step.reshape(*chunks, heads).transpose(2, 3)
    b = input_map.reshape(*chunks, groups, size).transpose(2, 3)
    c = output_map.reshape(*chunks, groups, size).transpose(2, 3)
    log_decay = (dt * decay_rate[:, None]).cumsum(-1)  # from the chunk's start to t, inclusive

    # The mask is added before the exponential, so that a future token cannot overflow it.
    future = torch.full((chunk_length, chunk_length), -torch.inf, device=x.device, dtype=x.dtype)
    future = future.triu(1)
    decay = (log_decay[..., :, None] - log_decay[..., None, :] + future).exp()
    scores = _repeat_groups(c @ b.transpose(-1, -2), heads)
    within = scores * decay * dt[..., None, :]
    outputs = within @ x

    before, final_state = initial_state, None
    if num_chunks > 1 or return_final_state:
        to_end = (log_decay[..., -1:] - log_decay).exp() * dt
        written = (x * to_end[..., None]).transpose(-1, -2) @ _repeat_groups(b, heads)
        kept = log_decay[..., -1].exp()[..., None, None]
        state = written.new_zeros(batch, heads, width, size)
        if initial_state is not None:
            state = initial_state
        starts = []
        for chunk in range(num_chunks):
            starts.append(state)
            state = kept[:, chunk] * state + written[:, chunk]
        before = torch.stack(starts, 1) if num_chunks > 1 else initial_state
        final_state = state if return_final_state else None
    if before is not None:
        states = before.reshape(batch, num_chunks, heads, width, size)
        from_past = _repeat_groups(c, heads) @ states.transpose(-1, -2)
        outputs = torch.addcmul(outputs, from_past, log_decay.exp()[..., None])

    outputs = outputs.transpose(2, 3).reshape(batch, num_chunks * chunk_length, heads, width)
    return outputs[:, :length], final_state


def state_space_step(
    inputs: Float[Tensor, "B H P"],
    time_step: Float[Tensor, "B H"],
    decay_rate: Float[Tensor, " H"],
    input_map: Float[Tensor, "B G N"],
    output_map: Float[Tensor, "B G N"],
    state: Float[Tensor, "B H P N"],
) -> tuple[Float[Tensor, "B H P"], Float[Tensor, "B H P N"]]:
    """Advance the state space by one token: the recurrence of `state_space_scan`, literally."""
    heads = inputs.shape[1]
    kept = (time_step * decay_rate).exp()[..., None, None] * state
    b, c = _repeat_heads(input_map, heads), _repeat_heads(output_map, heads)
    state = kept + (time_step[..., None] * inputs)[..., None] * b[:, :, None, :]
    return (state @ c[..., None])[..., 0], state


def advance_convolution(
    inputs: Float[Tensor, "B L C"],
    carry: Float[Tensor, "B tail C"],
    counts: Int[Tensor, " B"] | None = None,
) -> Float[Tensor, "B tail C"]:
    """Give the carry of `causal_convolution` after each sequence's first ``counts`` tokens.

    All of them where ``counts`` is None.
    """
    width = carry.shape[1]
    if counts is None:
        # A carry is kept: it must not be a view of all inputs.
        recent = inputs[:, max(0, inputs.shape[1] - width) :]
        return torch.cat((carry, recent), dim=1)[:, recent.shape[1] :]
    padded = torch.cat((carry, inputs), dim=1)
    tokens = counts[:, None] + torch.arange(width, device=counts.device)
    return padded.gather(1, tokens[..., None].expand(-1, -1, padded.shape[2]))


def advance_state(
    inputs: Float[Tensor, "B L H P"],
    time_step: Float[Tensor, "B L H"],
    decay_rate: Float[Tensor, " H"],
    input_map: Float[Tensor, "B L G N"],
    state: Float[Tensor, "B H P N"],
    counts: Int[Tensor, " B"] | None = None,
) -> Float[Tensor, "B H P N"]:
    """Give the state of `state_space_scan` after each sequence's first ``counts`` tokens.

    All of them where ``counts`` is None. After none of them it is ``state``, to the bit.
    """
    if not inputs.shape[1]:
        return state
    if counts is not None:
        # A token beyond has time step 0: it neither decays the state nor writes to it.
        tokens = torch.arange(inputs.shape[1], device=counts.device)
        time_step = time_step * (tokens < counts[:, None])[..., None]
    log_decay = (time_step * decay_rate).cumsum(1)
    total = log_decay[:, -1:]
    weight = (total - log_decay).exp() * time_step
    written = torch.matmul(
        (inputs * weight[..., None]).permute(0, 2, 3, 1),
        _repeat_groups(input_map.transpose(1, 2)[:, None], inputs.shape[2])[:, 0],
    )
    return torch.addcmul(written, total[:, 0].exp()[..., None, None], state)


def gated_rms_norm(
    inputs: Float[Tensor, "*rows D"],
    gate: Float[Tensor, "*rows D"],
    weight: Float[Tensor, " D"],
    epsilon: float,
    num_groups: int = 1,
) -> Float[Tensor, "*rows D"]:
    """Root-mean-square norm of ``inputs * silu(gate)``: Mamba2's norm before its output.

    The mean square is each group's own.
    """
    gated = inputs * F.silu(gate)
    if num_groups == 1:
        return F.rms_norm(gated, weight.shape, weight, epsilon)
    grouped = gated.unflatten(-1, (num_groups, -1))
    return F.rms_norm(grouped, grouped.shape[-1:], None, epsilon).flatten(-2) * weight


def _repeat_groups(grouped: Tensor, heads: int) -> Tensor:
    """Give each head its group's matrix: (B, chunks, G, ...) to (B, chunks, H, ...)."""
    groups = grouped.shape[2]
    if groups in (1, heads):
        return grouped  # one group broadcasts over the heads
    return grouped.repeat_interleave(heads // groups, dim=2)


def _repeat_heads(grouped: Float[Tensor, "B G N"], heads: int) -> Float[Tensor, "B H N"]:
    """Give each head its group's row."""
    return grouped.repeat_interleave(heads // grouped.shape[1], dim=1)
