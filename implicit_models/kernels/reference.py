"""The kernels in plain PyTorch: the truth that every faster kernel is compared with.

Shapes: B batch, L length, C channels, K convolution width, H heads, P head width,
G groups (heads that share B and C), N state size, T chunk length.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from implicit_models.kernels.autocast import without_autocast

CHUNK_LENGTH = 32


def causal_convolution(
    inputs: Float[Tensor, "B L C"],
    weight: Float[Tensor, "C K"],
    bias: Float[Tensor, " C"],
    carry: Float[Tensor, "B K-1 C"] | None = None,
) -> Float[Tensor, "B L C"]:
    """Convolve each channel with its own filter over the present and the K - 1 past tokens; SiLU.

    ``carry`` holds the last K - 1 inputs before this piece, zeros where None; for the next piece's
    see `advance_convolution`.

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
    return F.silu(outputs)


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
    """Run Mamba2's selective state space over a sequence, chunk by chunk.

    Per head, with ``dt_t = softplus(time_step_t + time_step_bias)`` and
    ``a_t = exp(dt_t * decay_rate)``::

        state_t  = a_t * state_{t-1} + dt_t * outer(inputs_t, input_map_t)
        output_t = state_t @ output_map_t + skip * inputs_t

    Inside a chunk this is a masked T x T matrix product; only states pass between chunks
    (Dao & Gu 2024, section 6). ``decay_rate`` is negative. Everything is computed in float32 at
    least, and the state stays so; the outputs come back in the dtype of ``inputs``.

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
            time_step_bias,
            decay_rate,
            input_map[:, 0],
            output_map[:, 0],
            skip,
            initial_state,
        )
        return output[:, None], state if return_final_state else None
    dtype, precise = inputs.dtype, accumulation_dtype(inputs.dtype)
    if not inputs.numel():
        state = inputs.new_zeros(batch, heads, width, size, dtype=precise)
        state = state if initial_state is None else initial_state
        return torch.zeros_like(inputs), state if return_final_state else None
    inputs, input_map, output_map = (x.to(precise) for x in (inputs, input_map, output_map))
    time_step = positive_time_step(time_step, time_step_bias)
    skipped = inputs
    chunk_length = min(chunk_length or CHUNK_LENGTH, length)
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
    outputs = torch.addcmul(outputs[:, :length], skipped, skip[:, None].to(precise))
    return outputs.to(dtype), final_state


@without_autocast
def state_space_step(
    inputs: Float[Tensor, "B H P"],
    time_step: Float[Tensor, "B H"],
    time_step_bias: Float[Tensor, " H"],
    decay_rate: Float[Tensor, " H"],
    input_map: Float[Tensor, "B G N"],
    output_map: Float[Tensor, "B G N"],
    skip: Float[Tensor, " H"],
    state: Float[Tensor, "B H P N"],
) -> tuple[Float[Tensor, "B H P"], Float[Tensor, "B H P N"]]:
    """Advance the state space by one token: the recurrence of `state_space_scan`, literally."""
    heads = inputs.shape[1]
    precise = inputs.to(accumulation_dtype(inputs.dtype))
    dt = positive_time_step(time_step, time_step_bias)
    kept = (dt * decay_rate).exp()[..., None, None] * state
    b, c = (_repeat_heads(x.to(precise.dtype), heads) for x in (input_map, output_map))
    state = kept + (dt[..., None] * precise)[..., None] * b[:, :, None, :]
    output = (state @ c[..., None])[..., 0]
    output = torch.addcmul(output, precise, skip[:, None].to(precise.dtype))
    return output.to(inputs.dtype), state


def advance_convolution(
    inputs: Float[Tensor, "B L C"],
    carry: Float[Tensor, "B tail C"],
    counts: Int[Tensor, " B"] | None = None,
) -> Float[Tensor, "B tail C"]:
    """Return the carry of `causal_convolution` after each sequence's first ``counts`` tokens.

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
    """Return the state of `state_space_scan` after each sequence's first ``counts`` tokens.

    All of them where ``counts`` is None. After none of them it is ``state``, to the bit.
    """
    if not inputs.shape[1]:
        return state
    time_step = positive_time_step(time_step, time_step_bias)
    if counts is not None:
        # A token beyond has time step 0: it neither decays the state nor writes to it.
        tokens = torch.arange(inputs.shape[1], device=counts.device)
        time_step = time_step * (tokens < counts[:, None])[..., None]
    log_decay = (time_step * decay_rate).cumsum(1)
    total = log_decay[:, -1:]
    weight = (total - log_decay).exp() * time_step
    written = torch.matmul(
        (inputs * weight[..., None]).permute(0, 2, 3, 1),
        _repeat_groups(input_map.to(weight.dtype).transpose(1, 2)[:, None], inputs.shape[2])[:, 0],
    )
    return torch.addcmul(written, total[:, 0].exp()[..., None, None], state)


def gated_rms_norm(
    inputs: Float[Tensor, "*rows D"],
    gate: Float[Tensor, "*rows D"],
    weight: Float[Tensor, " D"],
    epsilon: float,
    num_groups: int = 1,
) -> Float[Tensor, "*rows D"]:
    """Return the root-mean-square norm of ``inputs * silu(gate)``, before Mamba2's output.

    The mean square is each group's own. Computed in float32 at least.
    """
    precise = accumulation_dtype(inputs.dtype)
    gated = inputs.to(precise) * F.silu(gate.to(precise))
    grouped = gated.unflatten(-1, (num_groups, -1))
    weights = weight.to(precise).unflatten(0, (num_groups, -1))
    if num_groups == 1:
        normed = F.rms_norm(grouped, weights.shape[1:], weights[0], epsilon)
    else:
        normed = F.rms_norm(grouped, weights.shape[1:], None, epsilon) * weights
    return normed.flatten(-2).to(inputs.dtype)


def rms_norm(
    hidden: Float[Tensor, "*rows D"], weight: Float[Tensor, " D"], epsilon: float
) -> Float[Tensor, "*rows D"]:
    """Return the RMS norm, computed in the precision of ``hidden``, in the dtype of ``weight``."""
    return F.rms_norm(hidden, weight.shape, weight.to(hidden.dtype), epsilon).to(weight.dtype)


def normed_update(
    hidden: Float[Tensor, "*rows D"],
    weight: Float[Tensor, " D"],
    epsilon: float,
    value: Float[Tensor, "*rows D"],
    damping: float,
) -> tuple[Float[Tensor, "*rows D"], Float[Tensor, " *rows"]]:
    """End an iteration: the last norm ``f = rms_norm(hidden)``, the step and the residual.

    Returns
    -------
    ``value + damping * (f - value)``, and each token's ``|f - value| / |f|``, which is a large
    finite number where f vanishes and infinite where it overflows.
    """
    evaluated = rms_norm(hidden, weight, epsilon).to(value.dtype)
    following = evaluated if damping == 1.0 else value.lerp(evaluated, damping)
    precise = accumulation_dtype(value.dtype)
    size = torch.linalg.vector_norm(evaluated, dim=-1, dtype=precise)
    distance = torch.linalg.vector_norm(evaluated - value, dim=-1, dtype=precise)
    limits = torch.finfo(precise)
    ratio = distance / torch.maximum(size, distance * limits.eps).clamp_min(limits.tiny)
    return following, ratio.masked_fill(size.isinf(), torch.inf)


def causal_attention(
    queries: Float[Tensor, "B L H P"],
    keys: Float[Tensor, "B L G P"],
    values: Float[Tensor, "B L G P"],
    cosine: Float[Tensor, "1 L 1 P"],
    sine: Float[Tensor, "1 L 1 P"],
) -> Float[Tensor, "B L H P"]:
    """Attend to all tokens so far, with rotary positions; heads in groups share keys and values.

    For a text from its start; torch's scaled-dot-product attention does the work.
    """
    return attend(rotate(queries, cosine, sine), rotate(keys, cosine, sine), values)


def attend(
    queries: Float[Tensor, "B L H P"],
    keys: Float[Tensor, "B L G P"],
    values: Float[Tensor, "B L G P"],
) -> Float[Tensor, "B L H P"]:
    """Attend to all tokens so far; what has positions is rotated already."""
    mixed = F.scaled_dot_product_attention(
        queries.transpose(1, 2),
        keys.transpose(1, 2),
        values.transpose(1, 2),
        is_causal=True,
        enable_gqa=keys.shape[2] != queries.shape[2],
    )
    return mixed.transpose(1, 2)


def rotate(
    heads: Float[Tensor, "B L H P"],
    cosine: Float[Tensor, "#B L 1 P"],
    sine: Float[Tensor, "#B L 1 P"],
) -> Float[Tensor, "B L H P"]:
    """Rotate the pairs (i, i + P/2) of each head (Su et al. 2021)."""
    first, second = heads.chunk(2, dim=-1)
    return torch.addcmul(heads * cosine, torch.cat((-second, first), dim=-1), sine)


def swiglu(gate: Float[Tensor, "*rows I"], up: Float[Tensor, "*rows I"]) -> Tensor:
    """Return ``silu(gate) * up``; without a gradient the result may take the gate's memory."""
    if torch.is_grad_enabled():
        return F.silu(gate) * up
    return F.silu(gate, inplace=True).mul_(up)


def cross_entropy(
    logits: Float[Tensor, "rows V"],
    labels: Int[Tensor, " rows"],
    num_classes: int,
    scale: Float[Tensor, ""] | None,
) -> tuple[Float[Tensor, " rows"], Int[Tensor, " rows"]]:
    """Return each row's cross-entropy in nats and its likeliest class; the logits are used up.

    Parameters
    ----------
    logits
        Float32; the columns behind the first ``num_classes`` do not count. With a scale they
        become the gradient, by the logits, of ``scale`` times the summed losses.
    labels
        Classes; -100 where a row has neither loss nor gradient.
    scale
        None where no gradient is asked for.
    """
    logits[:, num_classes:] = -torch.inf
    counted = labels >= 0
    own = labels.clamp_min(0)[:, None]
    predictions, totals = logits.argmax(-1), logits.logsumexp(-1)
    losses = (totals - logits.gather(1, own)[:, 0]).where(counted, 0.0)
    if scale is not None:
        logits.sub_(totals[:, None]).exp_()
        logits.scatter_add_(1, own, logits.new_full(own.shape, -1.0))
        logits.mul_(torch.where(counted, scale, 0.0)[:, None])
    return losses, predictions


def mixer_step(
    projected: Float[Tensor, "B projection"],
    convolution: Float[Tensor, "C K"],
    convolution_bias: Float[Tensor, " C"],
    time_step_bias: Float[Tensor, " H"],
    decay_rate: Float[Tensor, " H"],
    skip: Float[Tensor, " H"],
    norm: Float[Tensor, " inner"],
    epsilon: float,
    tail: Float[Tensor, "B K-1 C"],
    state: Float[Tensor, "B H P N"],
    num_groups: int,
) -> Float[Tensor, "B inner"]:
    """Return all that a Mamba2 block does to one token between its two projections.

    ``projected`` is gate, channels (inputs, B and C) and time step, side by side; ``tail`` and
    ``state`` are the carry before the token, which stays as it is.
    """
    heads, width, size = state.shape[1:]
    inner = heads * width
    gate, channels, time_step = projected.split((inner, convolution.shape[0], heads), dim=-1)
    activated = causal_convolution(channels[:, None], convolution, convolution_bias, tail)[:, 0]
    inputs, input_map, output_map = activated.split((inner, *(num_groups * size,) * 2), dim=-1)
    outputs, _ = state_space_step(
        inputs.unflatten(-1, (heads, width)),
        time_step,
        time_step_bias,
        decay_rate,
        input_map.unflatten(-1, (num_groups, size)),
        output_map.unflatten(-1, (num_groups, size)),
        skip,
        state,
    )
    return gated_rms_norm(outputs.flatten(1), gate, norm, epsilon, num_groups)


def positive_time_step(
    time_step: Float[Tensor, "*rows H"], bias: Float[Tensor, " H"]
) -> Float[Tensor, "*rows H"]:
    """Return ``softplus(time_step + bias)``, in float32 at least."""
    precise = accumulation_dtype(time_step.dtype)
    return F.softplus(time_step.to(precise) + bias.to(precise))


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the precision in which numbers of ``dtype`` are added up: float32 at least."""
    return torch.promote_types(dtype, torch.float32)


def _repeat_groups(grouped: Tensor, heads: int) -> Tensor:
    """Return for each head its group's matrix: (B, chunks, G, ...) to (B, chunks, H, ...)."""
    groups = grouped.shape[2]
    if groups in (1, heads):
        return grouped  # one group broadcasts over the heads
    return grouped.repeat_interleave(heads // groups, dim=2)


def _repeat_heads(grouped: Float[Tensor, "B G N"], heads: int) -> Float[Tensor, "B H N"]:
    """Return for each head its group's row."""
    return grouped.repeat_interleave(heads // grouped.shape[1], dim=1)
