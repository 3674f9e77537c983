"""Mamba2's selective state space in Triton: the chunked scan of Dao & Gu 2024, section 6.

A chunk of T tokens is a masked T x T matrix product; only states pass between chunks. With
``dt_t = softplus(time_step_t + bias)`` and ``l_t`` the sum of ``dt * decay_rate`` from the chunk's
start to t, both recomputed wherever they are needed, the scan takes two launches:

1. the state before each chunk: a program holds a tile of a head's state and adds, chunk by chunk,
   ``sum_t w_t outer(x_t, b_t)`` with ``w_t = exp(l_T - l_t) dt_t``. What is kept of each chunk is
   in the precision that products read it in; the state that goes on is float32;
2. the outputs: ``sum_{s<=t} (c_t . b_s) exp(l_t - l_s) dt_s x_s + exp(l_t) S c_t + skip x_t``.

Backward takes the first for the states, which are not kept; once more for the gradients of the
states, with ``w_t = exp(l_t)``, output gradients and c in the place of x and b, and the chunks from
the last to the first; then one launch for the gradients of a head's own numbers and one for those
of b and c, which several heads share. Nothing is added atomically, so the same call gives the same
bits.
"""

from typing import Any, NamedTuple, no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from implicit_models.kernels import reference
from implicit_models.kernels.double_backward import backward_needs_twin, transformed, twin_gradients
from implicit_models.kernels.fused.activations import sigmoid, softplus
from implicit_models.kernels.fused.launch import block_size, configurations, num_blocks, tuned

CHUNK_LENGTH, LONGEST_CHUNK = 64, 128
STATE_BLOCK = 64  # of the N columns of a state that one program holds
EXACT_CHUNK, EXACT_STATE_BLOCK = 32, 32  # tensor cores do no float32; without, registers are few
SMALLEST_BLOCK = 16  # tl.dot takes no less
ENOUGH_PROGRAMS = 512  # to fill a large GPU


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

    See `implicit_models.kernels.reference.state_space_scan`, the twin of this kernel.
    Every ``chunk_length`` gives the same numbers up to rounding; it is itself rounded up to a
    power of two from 16 to 128, or to 32 where float32 products are exact.

    States and sums are float32, but for the states that are kept for products of bfloat16. The
    matrix products take bfloat16 factors where inputs and both maps are bfloat16, else float32
    ones: exact ("ieee") unless PyTorch's own products are rounded to TF32
    (``torch.backends.cuda.matmul.allow_tf32``) or the inputs are of a half precision.
    Float64, an empty sequence or batch, and transforms of torch.func go to the reference.

    Returns
    -------
    outputs, and the state after the last token (None unless ``return_final_state``).
    """
    arguments = _Arguments(
        inputs,
        time_step,
        time_step_bias,
        decay_rate,
        input_map,
        output_map,
        skip,
        initial_state,
    )
    double = any(x is not None and x.dtype == torch.float64 for x in arguments)
    if double or not inputs.numel() or transformed():
        return reference.state_space_scan(
            *arguments, chunk_length=chunk_length, return_final_state=return_final_state
        )
    return _StateSpaceScan.apply(*arguments, chunk_length, return_final_state)


class _Arguments(NamedTuple):
    """The tensors of a scan, in the order of its signature."""

    inputs: Tensor
    time_step: Tensor
    time_step_bias: Tensor
    decay_rate: Tensor
    input_map: Tensor
    output_map: Tensor
    skip: Tensor
    initial_state: Tensor | None


class _StateSpaceScan(torch.autograd.Function):
    """The scan and its gradients; what the forward computed on its way is computed again."""

    @staticmethod
    def forward(ctx: Any, *values: Any) -> tuple[Tensor, Tensor | None]:
        *tensors, chunk_length, return_final_state = values
        arguments = _Arguments(*tensors)
        ctx.save_for_backward(*arguments)
        ctx.set_materialize_grads(False)
        ctx.chunk_length, ctx.return_final_state = chunk_length, return_final_state
        scan = _Scan(arguments, chunk_length)
        before, final_state = scan.states(final_too=return_final_state)
        return scan.outputs(before), final_state

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        arguments = _Arguments(*ctx.saved_tensors)
        needed = ctx.needs_input_grad[: len(arguments)]
        if backward_needs_twin(*gradients):
            found = twin_gradients(
                reference.state_space_scan,
                arguments,
                needed,
                gradients,
                chunk_length=ctx.chunk_length,
                return_final_state=ctx.return_final_state,
            )
        else:
            scan = _Scan(arguments, ctx.chunk_length)
            found = scan.gradients(*gradients, initial_state_needed=needed[-1])
        return *found, None, None


class _Scan:
    """One scan, laid out for the kernels: sizes, blocks and the launches."""

    def __init__(self, arguments: _Arguments, chunk_length: int | None) -> None:
        self.inputs, self.time_step = arguments.inputs, arguments.time_step
        self.bias = arguments.time_step_bias.contiguous()
        self.rate, self.skip = arguments.decay_rate.contiguous(), arguments.skip.contiguous()
        self.input_map, self.output_map = arguments.input_map, arguments.output_map
        given = arguments.initial_state
        self.initial_state = None if given is None else given.contiguous()

        self.batch, self.length, self.heads, self.width = self.inputs.shape
        self.groups, self.size = self.input_map.shape[2:]
        factors = {self.inputs.dtype, self.input_map.dtype, self.output_map.dtype}
        self.factor = tl.bfloat16 if factors == {torch.bfloat16} else tl.float32
        rounded = torch.backends.cuda.matmul.fp32_precision == "tf32"
        self.exact = self.inputs.dtype == torch.float32 and not rounded
        longest = EXACT_CHUNK if self.exact else LONGEST_CHUNK
        longest = block_size(chunk_length or CHUNK_LENGTH, longest)
        self.tokens = max(SMALLEST_BLOCK, block_size(self.length, longest))
        self.num_chunks = num_blocks(self.length, self.tokens)
        most = EXACT_STATE_BLOCK if self.exact else STATE_BLOCK
        self.state_block = max(SMALLEST_BLOCK, block_size(self.size, most))
        self.state_blocks = num_blocks(self.size, self.state_block)
        self.programs = (self.batch * self.num_chunks * self.heads,)

    def new(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return memory to write to."""
        return self.inputs.new_empty(shape, dtype=dtype)

    def constants(self) -> dict[str, Any]:
        """Return what the kernels are compiled for."""
        return {
            "HEADS": self.heads,
            "HEADS_PER_GROUP": self.heads // self.groups,
            "WIDTH": self.width,
            "SIZE": self.size,
            "TOKENS": self.tokens,
            "BLOCK_P": max(SMALLEST_BLOCK, block_size(self.width)),
            "BLOCK_N": self.state_block,
            "FACTOR": self.factor,
            "PRECISION": "ieee" if self.exact else "tf32",
        }

    def states(self, *, final_too: bool) -> tuple[Tensor | None, Tensor | None]:
        """Return the state before each chunk, None for zeros, and the one after the last."""
        if self.num_chunks == 1 and not final_too:
            return self.initial_state, None
        before, final = self.pass_states(
            self.inputs, self.input_map, self.initial_state, backward=False
        )
        return before, final if final_too else None

    def pass_states(
        self, rows: Tensor, maps: Tensor, initial: Tensor | None, *, backward: bool
    ) -> tuple[Tensor, Tensor]:
        """Return each chunk's state before it and the last, or the gradients, backward in time."""
        kept = torch.bfloat16 if self.factor == tl.bfloat16 else torch.float32
        chunks = (self.batch, self.num_chunks, self.heads)
        states = self.new(*chunks, self.width, self.size, dtype=kept)
        last = self.new(self.batch, self.heads, self.width, self.size)

        def grid(meta: dict[str, Any]) -> tuple[int, int, int]:
            tiles = num_blocks(self.width, meta["BLOCK_P"]), num_blocks(self.size, meta["BLOCK_N"])
            return self.batch * self.heads, *tiles

        blocks = {"BLOCK_P", "BLOCK_N"}  # which these are tuned for
        _states_kernel[grid](
            rows,
            self.time_step,
            self.bias,
            self.rate,
            maps,
            initial,
            states,
            last,
            self.length,
            self.num_chunks,
            *rows.stride(),
            *self.time_step.stride(),
            *maps.stride(),
            BACKWARD=backward,
            **{name: value for name, value in self.constants().items() if name not in blocks},
        )
        return states, last

    def outputs(self, before: Tensor | None) -> Tensor:
        """Return the outputs, from the state before each chunk."""
        outputs = self.new(*self.inputs.shape, dtype=self.inputs.dtype)
        _outputs_kernel[self.programs](
            self.inputs,
            self.time_step,
            self.bias,
            self.rate,
            self.input_map,
            self.output_map,
            self.skip,
            before,
            outputs,
            self.length,
            self.num_chunks,
            *self.inputs.stride(),
            *self.time_step.stride(),
            *self.input_map.stride(),
            *self.output_map.stride(),
            **self.constants(),
        )
        return outputs

    def gradients(
        self,
        output_gradients: Tensor | None,
        final_gradient: Tensor | None,
        *,
        initial_state_needed: bool,
    ) -> tuple[Tensor | None, ...]:
        """Return the gradients of the scan's arguments, in their order."""
        if output_gradients is None:
            output_gradients = torch.zeros_like(self.inputs)
        output_gradients = output_gradients.contiguous()
        after = None if final_gradient is None else final_gradient.contiguous()
        initial_gradient = None
        if self.num_chunks > 1 or initial_state_needed:
            after, of_initial = self.pass_states(
                output_gradients, self.output_map, after, backward=True
            )
            if self.initial_state is not None and initial_state_needed:
                initial_gradient = of_initial.to(self.initial_state.dtype)
        before, _ = self.states(final_too=False)
        *own, skip = self.head_gradients(output_gradients, before, after)
        maps = self.map_gradients(output_gradients, before, after)
        return *own, *maps, skip, initial_gradient

    def head_gradients(
        self, output_gradients: Tensor, before: Tensor | None, after: Tensor | None
    ) -> tuple[Tensor, ...]:
        """Return the gradients of inputs, time step, bias, decay rate and skip."""
        inputs = self.new(*self.inputs.shape, dtype=self.inputs.dtype)
        time_step = self.new(*self.time_step.shape, dtype=self.time_step.dtype)
        partial = self.new(3, self.batch, self.num_chunks, self.heads)
        _head_gradients_kernel[self.programs](
            self.inputs,
            self.time_step,
            self.bias,
            self.rate,
            self.input_map,
            self.output_map,
            self.skip,
            before,
            after,
            output_gradients,
            inputs,
            time_step,
            *partial,
            self.length,
            self.num_chunks,
            *self.inputs.stride(),
            *self.time_step.stride(),
            *self.input_map.stride(),
            *self.output_map.stride(),
            **self.constants(),
        )
        bias, rate, skip = partial.sum((1, 2))
        return (
            inputs,
            time_step,
            bias.to(self.bias.dtype),
            rate.to(self.rate.dtype),
            skip.to(self.skip.dtype),
        )

    def map_gradients(
        self, output_gradients: Tensor, before: Tensor | None, after: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the gradients of both maps.

        A program adds up the heads of a group, or some of them where there would be too few
        programs otherwise; what those give is added here.
        """
        heads = self.heads // self.groups
        rows = self.batch * self.num_chunks * self.groups
        wanted = num_blocks(ENOUGH_PROGRAMS, rows * self.state_blocks)
        heads_each = num_blocks(heads, min(wanted, heads))
        parts = num_blocks(heads, heads_each)
        shape = (self.batch, self.length, self.groups, parts, self.size)
        maps = (self.input_map, self.output_map)
        input_map, output_map = (
            self.new(*shape, dtype=x.dtype if parts == 1 else torch.float32) for x in maps
        )
        _map_gradients_kernel[(rows, self.state_blocks, parts)](
            self.inputs,
            self.time_step,
            self.bias,
            self.rate,
            self.input_map,
            self.output_map,
            before,
            after,
            output_gradients,
            input_map,
            output_map,
            self.length,
            self.num_chunks,
            heads_each,
            parts,
            *self.inputs.stride(),
            *self.time_step.stride(),
            *self.input_map.stride(),
            *self.output_map.stride(),
            GROUPS=self.groups,
            **self.constants(),
        )
        if parts == 1:
            return input_map[:, :, :, 0], output_map[:, :, :, 0]
        return input_map.sum(3).to(maps[0].dtype), output_map.sum(3).to(maps[1].dtype)


@triton.jit
@no_type_check
def _load_tile(
    pointer,
    rows,
    columns,
    row_stride,
    column_stride,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Load a matrix, zeros beyond its rows and columns."""
    row, column = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    inside = (row < rows) & (column < columns)
    return tl.load(pointer + row * row_stride + column * column_stride, mask=inside, other=0.0)


@triton.jit
@no_type_check
def _store_tile(
    pointer,
    values,
    rows,
    columns,
    row_stride,
    column_stride,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Store a matrix, but for what lies beyond its rows and columns."""
    row, column = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    inside = (row < rows) & (column < columns)
    tl.store(pointer + row * row_stride + column * column_stride, values, mask=inside)


@triton.jit
@no_type_check
def _place(program, num_chunks, COLUMNS: tl.constexpr):
    """Return a program's sequence, chunk, and head or group, in 64 bits for the offsets."""
    row = program // COLUMNS
    batch, chunk, column = row // num_chunks, row % num_chunks, program % COLUMNS
    return batch.to(tl.int64), chunk.to(tl.int64), column.to(tl.int64)


@triton.jit
@no_type_check
def _time_steps(time_step, bias, rate, tokens, stride, TOKENS: tl.constexpr):
    """Return a chunk's time steps, their derivative and the log decay from its start.

    A token beyond the sequence has time step 0: it neither decays the state nor writes to it.
    """
    token = tl.arange(0, TOKENS)
    inside = token < tokens
    raw = tl.load(time_step + token * stride, mask=inside, other=0.0).to(tl.float32) + bias
    dt = tl.where(inside, softplus(raw), 0.0)
    return dt, sigmoid(raw), tl.cumsum(dt * rate, 0)


@triton.jit
@no_type_check
def _last(values, TOKENS: tl.constexpr):
    """Return the last of a vector's numbers: a sum might differ from a cumulative sum's end."""
    return tl.sum(tl.where(tl.arange(0, TOKENS) == TOKENS - 1, values, 0.0), 0)


@triton.jit
@no_type_check
def _decay(log_decay, TOKENS: tl.constexpr):
    """Return the decay from token s (column) to t (row), 0 for the future.

    The future is masked before the exponential, so that it cannot overflow.
    """
    t, s = tl.arange(0, TOKENS)[:, None], tl.arange(0, TOKENS)[None, :]
    return tl.exp(tl.where(s <= t, log_decay[:, None] - log_decay[None, :], float("-inf")))


_KEY = ("TOKENS", "WIDTH", "SIZE", "PRECISION")
_STATE_TILES = (  # small: a program takes all chunks in turn, so that there have to be many
    {"BLOCK_P": 32, "BLOCK_N": 32},
    {"BLOCK_P": 32, "BLOCK_N": 64},
    {"BLOCK_P": 64, "BLOCK_N": 64},
    {"BLOCK_P": 32, "BLOCK_N": 128},
)


@tuned(
    configurations(*_STATE_TILES, warps=(4, 8), stages=(3,)),
    key=(*_KEY, "BACKWARD"),
)
@triton.jit
@no_type_check
def _states_kernel(
    rows,
    time_step,
    bias,
    rate,
    maps,
    initial,
    states,
    last,
    length,
    num_chunks,
    rows_batch,
    rows_token,
    rows_head,
    rows_width,
    time_batch,
    time_token,
    time_head,
    maps_batch,
    maps_token,
    maps_group,
    maps_size,
    HEADS: tl.constexpr,
    HEADS_PER_GROUP: tl.constexpr,
    WIDTH: tl.constexpr,
    SIZE: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_N: tl.constexpr,
    FACTOR: tl.constexpr,
    PRECISION: tl.constexpr,
    BACKWARD: tl.constexpr,
):
    """Keep the state before each chunk, and the one after the last.

    What a chunk adds is its outer products of rows and maps, weighted by the decay to its end.
    Backward these are the gradients of the state after each chunk, weighted by the decay from its
    start, and the chunks come from the last to the first.
    """
    row = tl.program_id(0).to(tl.int64)
    batch, head = row // HEADS, row % HEADS
    p, n = tl.program_id(1) * BLOCK_P, tl.program_id(2) * BLOCK_N
    rows += batch * rows_batch + head * rows_head + p * rows_width
    maps += batch * maps_batch + head // HEADS_PER_GROUP * maps_group + n * maps_size
    time_step += batch * time_batch + head * time_head
    offset, rate_value = tl.load(bias + head).to(tl.float32), tl.load(rate + head).to(tl.float32)
    corner = p * SIZE + n
    state = tl.zeros((BLOCK_P, BLOCK_N), dtype=tl.float32)
    if initial is not None:
        state += _load_tile(
            initial + row * (WIDTH * SIZE) + corner, WIDTH - p, SIZE - n, SIZE, 1, BLOCK_P, BLOCK_N
        ).to(tl.float32)
    for step in range(num_chunks):
        chunk = tl.cast(num_chunks - 1 - step if BACKWARD else step, tl.int64)
        place = (batch * num_chunks + chunk) * HEADS + head
        _store_tile(
            states + place * (WIDTH * SIZE) + corner,
            state,
            WIDTH - p,
            SIZE - n,
            SIZE,
            1,
            BLOCK_P,
            BLOCK_N,
        )
        start = chunk * TOKENS
        tokens = length - start
        dt, _, log_decay = _time_steps(
            time_step + start * time_token, offset, rate_value, tokens, time_token, TOKENS
        )
        total = _last(log_decay, TOKENS)
        weights = tl.exp(log_decay) if BACKWARD else tl.exp(total - log_decay) * dt
        x = _load_tile(
            rows + start * rows_token, tokens, WIDTH - p, rows_token, rows_width, TOKENS, BLOCK_P
        )
        b = _load_tile(
            maps + start * maps_token, tokens, SIZE - n, maps_token, maps_size, TOKENS, BLOCK_N
        )
        weighted = (x.to(tl.float32) * weights[:, None]).to(FACTOR)
        state = tl.dot(
            tl.trans(weighted), b.to(FACTOR), tl.exp(total) * state, input_precision=PRECISION
        )
    _store_tile(
        last + row * (WIDTH * SIZE) + corner, state, WIDTH - p, SIZE - n, SIZE, 1, BLOCK_P, BLOCK_N
    )


@tuned(configurations({}, warps=(4, 8), stages=(2, 3)), key=_KEY)
@triton.jit
@no_type_check
def _outputs_kernel(
    inputs,
    time_step,
    bias,
    rate,
    input_map,
    output_map,
    skip,
    before,
    outputs,
    length,
    num_chunks,
    inputs_batch,
    inputs_token,
    inputs_head,
    inputs_width,
    time_batch,
    time_token,
    time_head,
    b_batch,
    b_token,
    b_group,
    b_size,
    c_batch,
    c_token,
    c_group,
    c_size,
    HEADS: tl.constexpr,
    HEADS_PER_GROUP: tl.constexpr,
    WIDTH: tl.constexpr,
    SIZE: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_N: tl.constexpr,
    FACTOR: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Return the outputs of one head in one chunk."""
    batch, chunk, head = _place(tl.program_id(0), num_chunks, HEADS)
    group = head // HEADS_PER_GROUP
    start = chunk * TOKENS
    tokens = length - start
    place = (batch * num_chunks + chunk) * HEADS + head
    dt, _, log_decay = _time_steps(
        time_step + batch * time_batch + start * time_token + head * time_head,
        tl.load(bias + head).to(tl.float32),
        tl.load(rate + head).to(tl.float32),
        tokens,
        time_token,
        TOKENS,
    )
    input_map += batch * b_batch + start * b_token + group * b_group
    output_map += batch * c_batch + start * c_token + group * c_group
    scores = tl.zeros((TOKENS, TOKENS), dtype=tl.float32)
    result = tl.zeros((TOKENS, BLOCK_P), dtype=tl.float32)
    for n in range(0, SIZE, BLOCK_N):
        b = _load_tile(
            input_map + n * b_size, tokens, SIZE - n, b_token, b_size, TOKENS, BLOCK_N
        ).to(FACTOR)
        c = _load_tile(
            output_map + n * c_size, tokens, SIZE - n, c_token, c_size, TOKENS, BLOCK_N
        ).to(FACTOR)
        scores = tl.dot(c, tl.trans(b), scores, input_precision=PRECISION)
        if before is not None:
            state = _load_tile(
                before + place * (WIDTH * SIZE) + n, WIDTH, SIZE - n, SIZE, 1, BLOCK_P, BLOCK_N
            ).to(FACTOR)
            result = tl.dot(c, tl.trans(state), result, input_precision=PRECISION)
    result *= tl.exp(log_decay)[:, None]
    x = _load_tile(
        inputs + batch * inputs_batch + start * inputs_token + head * inputs_head,
        tokens,
        WIDTH,
        inputs_token,
        inputs_width,
        TOKENS,
        BLOCK_P,
    )
    within = (scores * _decay(log_decay, TOKENS) * dt[None, :]).to(FACTOR)
    result = tl.dot(within, x.to(FACTOR), result, input_precision=PRECISION)
    result += tl.load(skip + head).to(tl.float32) * x.to(tl.float32)
    _store_tile(
        outputs + ((batch * length + start) * HEADS + head) * WIDTH,
        result,
        tokens,
        WIDTH,
        HEADS * WIDTH,
        1,
        TOKENS,
        BLOCK_P,
    )


@tuned(configurations({}, warps=(4, 8), stages=(1, 2)), key=_KEY)
@triton.jit
@no_type_check
def _head_gradients_kernel(
    inputs,
    time_step,
    bias,
    rate,
    input_map,
    output_map,
    skip,
    before,
    after,
    output_gradients,
    input_gradients,
    time_step_gradients,
    bias_gradients,
    rate_gradients,
    skip_gradients,
    length,
    num_chunks,
    inputs_batch,
    inputs_token,
    inputs_head,
    inputs_width,
    time_batch,
    time_token,
    time_head,
    b_batch,
    b_token,
    b_group,
    b_size,
    c_batch,
    c_token,
    c_group,
    c_size,
    HEADS: tl.constexpr,
    HEADS_PER_GROUP: tl.constexpr,
    WIDTH: tl.constexpr,
    SIZE: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_N: tl.constexpr,
    FACTOR: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Return the gradients of what one head has for itself, in one chunk.

    The log decay of token u, ``dt_u * rate``, is part of every path from a token before u to
    itself or a later one: its gradient is the sum of theirs. Taken as such, and not as the end
    of a cumulative sum over ``l``'s gradients, it loses nothing to cancellation.
    """
    batch, chunk, head = _place(tl.program_id(0), num_chunks, HEADS)
    group = head // HEADS_PER_GROUP
    start = chunk * TOKENS
    tokens = length - start
    place = (batch * num_chunks + chunk) * HEADS + head
    rate_value = tl.load(rate + head).to(tl.float32)
    dt, slope, log_decay = _time_steps(
        time_step + batch * time_batch + start * time_token + head * time_head,
        tl.load(bias + head).to(tl.float32),
        rate_value,
        tokens,
        time_token,
        TOKENS,
    )
    total = _last(log_decay, TOKENS)

    input_map += batch * b_batch + start * b_token + group * b_group
    output_map += batch * c_batch + start * c_token + group * c_group
    scores = tl.zeros((TOKENS, TOKENS), dtype=tl.float32)
    from_past = tl.zeros((TOKENS, BLOCK_P), dtype=tl.float32)
    to_state = tl.zeros((TOKENS, BLOCK_P), dtype=tl.float32)
    kept = tl.zeros((BLOCK_P, BLOCK_N), dtype=tl.float32)
    for n in range(0, SIZE, BLOCK_N):
        b = _load_tile(
            input_map + n * b_size, tokens, SIZE - n, b_token, b_size, TOKENS, BLOCK_N
        ).to(FACTOR)
        c = _load_tile(
            output_map + n * c_size, tokens, SIZE - n, c_token, c_size, TOKENS, BLOCK_N
        ).to(FACTOR)
        scores = tl.dot(c, tl.trans(b), scores, input_precision=PRECISION)
        at = place * (WIDTH * SIZE) + n
        if before is not None:
            state = _load_tile(before + at, WIDTH, SIZE - n, SIZE, 1, BLOCK_P, BLOCK_N).to(
                tl.float32
            )
            from_past = tl.dot(c, tl.trans(state.to(FACTOR)), from_past, input_precision=PRECISION)
        if after is not None:
            gradient = _load_tile(after + at, WIDTH, SIZE - n, SIZE, 1, BLOCK_P, BLOCK_N).to(
                tl.float32
            )
            to_state = tl.dot(b, tl.trans(gradient.to(FACTOR)), to_state, input_precision=PRECISION)
        if before is not None and after is not None:
            kept += state * gradient

    x = _load_tile(
        inputs + batch * inputs_batch + start * inputs_token + head * inputs_head,
        tokens,
        WIDTH,
        inputs_token,
        inputs_width,
        TOKENS,
        BLOCK_P,
    )
    own = ((batch * length + start) * HEADS + head) * WIDTH
    dy = _load_tile(output_gradients + own, tokens, WIDTH, HEADS * WIDTH, 1, TOKENS, BLOCK_P)
    precise_x, precise_dy = x.to(tl.float32), dy.to(tl.float32)
    decayed = scores * _decay(log_decay, TOKENS)
    to_end = tl.exp(total - log_decay)

    dx = tl.load(skip + head).to(tl.float32) * precise_dy + (to_end * dt)[:, None] * to_state
    within = tl.trans(decayed * dt[None, :]).to(FACTOR)
    dx = tl.dot(within, dy.to(FACTOR), dx, input_precision=PRECISION)
    _store_tile(input_gradients + own, dx, tokens, WIDTH, HEADS * WIDTH, 1, TOKENS, BLOCK_P)

    # Paths within the chunk, from s (column) to t (row); into the state after; out of the state
    # before; and from the one to the other.
    pairs = tl.dot(dy.to(FACTOR), tl.trans(x.to(FACTOR)), input_precision=PRECISION) * decayed
    into = tl.sum(to_state * precise_x, 1) * to_end
    out_of = tl.sum(from_past * precise_dy, 1) * tl.exp(log_decay)
    through = tl.sum(tl.sum(kept, 1), 0) * tl.exp(total)

    t, s = tl.arange(0, TOKENS)[:, None], tl.arange(0, TOKENS)[None, :]
    d_time_step = tl.sum(pairs, 0) + into
    ending = tl.cumsum(pairs * dt[None, :], 0, reverse=True) + (into * dt)[None, :]
    d_log_decay = tl.sum(tl.where(s < t, ending, 0.0), 1)
    d_log_decay += tl.cumsum(out_of, 0, reverse=True) + through
    d_raw = (d_time_step + d_log_decay * rate_value) * slope

    token = tl.arange(0, TOKENS)
    time_offsets = (batch * length + start + token) * HEADS + head
    tl.store(time_step_gradients + time_offsets, d_raw, mask=token < tokens)
    tl.store(bias_gradients + place, tl.sum(tl.where(token < tokens, d_raw, 0.0), 0))
    tl.store(rate_gradients + place, tl.sum(d_log_decay * dt, 0))
    tl.store(skip_gradients + place, tl.sum(tl.sum(precise_x * precise_dy, 1), 0))


@tuned(configurations({}, warps=(4, 8), stages=(1, 2)), key=_KEY)
@triton.jit
@no_type_check
def _map_gradients_kernel(
    inputs,
    time_step,
    bias,
    rate,
    input_map,
    output_map,
    before,
    after,
    output_gradients,
    input_map_gradients,
    output_map_gradients,
    length,
    num_chunks,
    heads_each,
    parts,
    inputs_batch,
    inputs_token,
    inputs_head,
    inputs_width,
    time_batch,
    time_token,
    time_head,
    b_batch,
    b_token,
    b_group,
    b_size,
    c_batch,
    c_token,
    c_group,
    c_size,
    GROUPS: tl.constexpr,
    HEADS: tl.constexpr,
    HEADS_PER_GROUP: tl.constexpr,
    WIDTH: tl.constexpr,
    SIZE: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_N: tl.constexpr,
    FACTOR: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Return the gradients of both maps in one chunk, summed over some heads of their group."""
    batch, chunk, group = _place(tl.program_id(0), num_chunks, GROUPS)
    n = tl.program_id(1) * BLOCK_N
    part = tl.program_id(2)
    start = chunk * TOKENS
    tokens = length - start
    weights = tl.zeros((TOKENS, TOKENS), dtype=tl.float32)
    db = tl.zeros((TOKENS, BLOCK_N), dtype=tl.float32)
    dc = tl.zeros((TOKENS, BLOCK_N), dtype=tl.float32)
    first = part * heads_each
    for member in range(first, tl.minimum(first + heads_each, HEADS_PER_GROUP)):
        head = group * HEADS_PER_GROUP + member
        dt, _, log_decay = _time_steps(
            time_step + batch * time_batch + start * time_token + head * time_head,
            tl.load(bias + head).to(tl.float32),
            tl.load(rate + head).to(tl.float32),
            tokens,
            time_token,
            TOKENS,
        )
        x = _load_tile(
            inputs + batch * inputs_batch + start * inputs_token + head * inputs_head,
            tokens,
            WIDTH,
            inputs_token,
            inputs_width,
            TOKENS,
            BLOCK_P,
        ).to(FACTOR)
        dy = _load_tile(
            output_gradients + ((batch * length + start) * HEADS + head) * WIDTH,
            tokens,
            WIDTH,
            HEADS * WIDTH,
            1,
            TOKENS,
            BLOCK_P,
        ).to(FACTOR)
        pairs = tl.dot(dy, tl.trans(x), input_precision=PRECISION)
        weights += pairs * _decay(log_decay, TOKENS) * dt[None, :]
        at = ((batch * num_chunks + chunk) * HEADS + head) * (WIDTH * SIZE) + n
        if before is not None:
            state = _load_tile(before + at, WIDTH, SIZE - n, SIZE, 1, BLOCK_P, BLOCK_N).to(FACTOR)
            out_of = tl.dot(dy, state, input_precision=PRECISION)
            dc += out_of * tl.exp(log_decay)[:, None]
        if after is not None:
            state = _load_tile(after + at, WIDTH, SIZE - n, SIZE, 1, BLOCK_P, BLOCK_N).to(FACTOR)
            into = tl.dot(x, state, input_precision=PRECISION)
            to_end = tl.exp(_last(log_decay, TOKENS) - log_decay) * dt
            db += into * to_end[:, None]
    input_map += batch * b_batch + start * b_token + group * b_group
    b = _load_tile(input_map + n * b_size, tokens, SIZE - n, b_token, b_size, TOKENS, BLOCK_N)
    output_map += batch * c_batch + start * c_token + group * c_group
    c = _load_tile(output_map + n * c_size, tokens, SIZE - n, c_token, c_size, TOKENS, BLOCK_N)
    db = tl.dot(tl.trans(weights).to(FACTOR), c.to(FACTOR), db, input_precision=PRECISION)
    dc = tl.dot(weights.to(FACTOR), b.to(FACTOR), dc, input_precision=PRECISION)
    stride = GROUPS * parts * SIZE
    own = (batch * length + start) * stride + (group * parts + part) * SIZE + n
    _store_tile(input_map_gradients + own, db, tokens, SIZE - n, stride, 1, TOKENS, BLOCK_N)
    _store_tile(output_map_gradients + own, dc, tokens, SIZE - n, stride, 1, TOKENS, BLOCK_N)
