"""The C kernels as functions of tensors, with their gradients.

They take float32 and bfloat16 on CPUs. Anything else, torch.func's transforms, and second
derivatives go to the reference.
"""

import math
import threading
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.jit._trace import is_tracing

from implicit_models.kernels import reference
from implicit_models.kernels.double_backward import (
    backward_needs_twin,
    needs_gradient,
    transformed,
    twin_gradients,
)
from implicit_models.kernels.mixer import REFERENCE_MIXER, MixerSettings, MixerWeights
from implicit_models.kernels.native.library import (
    Attention,
    Convolution,
    Norm,
    Scan,
    library,
    norm_rows,
    padding,
)

# Tokens per chunk; more make larger products, and more of them. A shorter sequence is one chunk.
CHUNK_LENGTH = 64
# Bytes up to which memory is kept for the next pass; asking for more anew costs little beside.
_LARGEST_WORKSPACE = 2**24
_threads = threading.local()


def mix(
    projected: Float[Tensor, "B L projection"],
    weights: MixerWeights,
    settings: MixerSettings,
    tail: Float[Tensor, "B tail C"] | None,
    state: Float[Tensor, "B H P N"] | None,
) -> Float[Tensor, "B L inner"]:
    """Mix tokens, as `ComposedMixer.mix`."""
    if not _takes(projected):
        return REFERENCE_MIXER.mix(projected, weights, settings, tail, state)
    if needs_gradient(projected, *weights, tail, state):
        return _Mix.apply(settings, projected, tail, state, *weights)
    pass_ = _Pass(projected, weights, settings, tail, state)
    mixed = pass_.mixed(pass_.activated(), None)
    return pass_.normed(mixed, mixed)


def advance(
    projected: Float[Tensor, "B L projection"],
    weights: MixerWeights,
    settings: MixerSettings,
    tail: Float[Tensor, "B tail C"],
    state: Float[Tensor, "B H P N"],
    counts: Int[Tensor, " B"] | None = None,
) -> tuple[Float[Tensor, "B tail C"], Float[Tensor, "B H P N"]]:
    """Return the carry after some tokens, as `ComposedMixer.advance`."""
    if not _takes(projected) or needs_gradient(projected, *weights, tail, state):
        return REFERENCE_MIXER.advance(projected, weights, settings, tail, state, counts)
    pass_ = _Pass(projected, weights, settings, tail, state)
    after = pass_.advanced(pass_.activated(), counts)
    return reference.advance_convolution(pass_.channels, tail, counts), after


def rms_norm(
    hidden: Float[Tensor, "*rows D"], weight: Float[Tensor, " D"], epsilon: float
) -> Float[Tensor, "*rows D"]:
    """Normalise rows, as `reference.rms_norm`."""
    if not (_takes(hidden) and hidden.dtype == torch.float32):
        return reference.rms_norm(hidden, weight, epsilon)
    _check_size("weight", weight, hidden.shape[-1:])
    if needs_gradient(hidden, weight):
        return _RmsNorm.apply(hidden, weight, epsilon)
    return _plain_norm(hidden, weight, epsilon)


def normed_update(
    hidden: Float[Tensor, "*rows D"],
    weight: Float[Tensor, " D"],
    epsilon: float,
    value: Float[Tensor, "*rows D"],
    damping: float,
) -> tuple[Float[Tensor, "*rows D"], Float[Tensor, " *rows"]]:
    """End an iteration, as `reference.normed_update`."""
    tensors = (hidden, weight, value)
    if not (_takes(hidden) and all(tensor.dtype == torch.float32 for tensor in tensors)):
        return reference.normed_update(hidden, weight, epsilon, value, damping)
    if needs_gradient(*tensors):
        return reference.normed_update(hidden, weight, epsilon, value, damping)
    _check_size("weight", weight, hidden.shape[-1:])
    _check_size("value", value, hidden.shape)
    hidden, value, weight = hidden.contiguous(), value.contiguous(), _precise(weight)
    following, residual = torch.empty_like(value), value.new_empty(value.shape[:-1])
    norm = _norm(hidden, None, weight, epsilon, 1)
    library().update(norm, value.data_ptr(), damping, *_pointers(following, residual))
    return following, residual


def causal_attention(
    queries: Float[Tensor, "B L H P"],
    keys: Float[Tensor, "B L G P"],
    values: Float[Tensor, "B L G P"],
    cosine: Float[Tensor, "1 L 1 P"],
    sine: Float[Tensor, "1 L 1 P"],
) -> Float[Tensor, "B L H P"]:
    """Attend to all tokens so far, as `reference.causal_attention`."""
    tensors = (queries, keys, values, cosine, sine)
    if not all(_takes(tensor) and tensor.dtype == torch.float32 for tensor in tensors):
        return reference.causal_attention(*tensors)
    _check_heads(*tensors)
    if needs_gradient(queries, keys, values):
        return _CausalAttention.apply(*tensors)
    return _attend([tensor.contiguous() for tensor in tensors], None)


def swiglu(gate: Float[Tensor, "*rows I"], up: Float[Tensor, "*rows I"]) -> Tensor:
    """Gate, as `reference.swiglu`."""
    if not all(_takes(tensor) and tensor.dtype == torch.float32 for tensor in (gate, up)):
        return reference.swiglu(gate, up)
    _check_size("up", up, gate.shape)
    if needs_gradient(gate, up):
        return _SwiGLU.apply(gate, up)
    gate, up = gate.contiguous(), up.contiguous()
    library().swiglu_forward(gate.numel(), *_pointers(gate, up, gate))
    return gate


def cross_entropy(
    logits: Float[Tensor, "rows V"],
    labels: Int[Tensor, " rows"],
    num_classes: int,
    scale: Float[Tensor, ""] | None,
) -> tuple[Float[Tensor, " rows"], Int[Tensor, " rows"]]:
    """Return losses, and gradients in place of the logits, as `reference.cross_entropy`."""
    if not (_takes(logits) and logits.dtype == torch.float32 and logits.is_contiguous()):
        return reference.cross_entropy(logits, labels, num_classes, scale)
    _check_size("labels", labels, logits.shape[:1])
    labels = labels.to(torch.int64).contiguous()
    losses, predictions = logits.new_empty(len(logits)), torch.empty_like(labels)
    library().cross_entropy(
        *(*logits.shape, num_classes, *_pointers(logits, labels)),
        *(scale is not None, 0.0 if scale is None else scale.item()),
        *_pointers(losses, predictions),
    )
    return losses, predictions


class _Pass:
    """One mixer's C calls over some tokens; tensors are kept alive as long as it lives."""

    def __init__(
        self,
        projected: Tensor,
        weights: MixerWeights,
        settings: MixerSettings,
        tail: Tensor | None,
        state: Tensor | None,
    ) -> None:
        _check_sizes(projected, weights, settings, tail, state)
        self.projected = projected = projected.contiguous()
        self.dtype, self.settings = projected.dtype, settings
        self.weights = MixerWeights(*(_precise(weight) for weight in weights))
        self.taps = self.weights.convolution.t().contiguous()
        self.tail = None if tail is None else tail.to(self.dtype).contiguous()
        self.state = None if state is None else _precise(state)
        self.inner, self.num_channels = len(weights.norm), len(weights.convolution)
        self.heads, self.groups = len(weights.skip), settings.num_groups
        self.size = (self.num_channels - self.inner) // 2 // self.groups
        self.width = self.inner // self.heads
        # Heads of a group go to so many tasks; a choice by shapes alone.
        self.blocks = 1
        heads = self.heads // self.groups
        while len(projected) * self.groups * self.blocks < 8 and not heads % (2 * self.blocks):
            self.blocks *= 2
        self.chunk_length = min(settings.chunk_length or CHUNK_LENGTH, max(projected.shape[1], 1))

    @property
    def channels(self) -> Tensor:
        return self.projected[..., self.inner : self.inner + self.num_channels]

    @property
    def convolution(self) -> Convolution:
        batch, length, row = self.projected.shape
        return Convolution(
            *(batch, length, self.num_channels, len(self.taps), self.dtype == torch.bfloat16),
            *(row, length * row, self._part(self.inner)),
            *_pointers(self.tail, self.taps, self.weights.convolution_bias),
        )

    def scan(self, activated: Tensor, counts: Tensor | None = None) -> Scan:
        batch, length, row = self.projected.shape
        channels, weights = self.num_channels, self.weights
        return Scan(
            *(batch, length, self.heads, self.width, self.groups, self.size, self.chunk_length),
            *(self.blocks, self.dtype == torch.bfloat16, channels, length * channels),
            *(row, length * row, activated.data_ptr(), self._part(self.inner + channels)),
            *_pointers(weights.time_step_bias, weights.decay_rate, weights.skip),
            *_pointers(self.state, counts),
        )

    def activated(self) -> Tensor:
        """Convolve, into memory that the thread's next pass uses again."""
        outputs = _workspace(self.projected, *self.projected.shape[:2], self.num_channels)
        library().convolution_forward(self.convolution, outputs.data_ptr())
        return outputs

    def mixed(self, activated: Tensor, states: Tensor | None) -> Tensor:
        """Scan; ``states`` takes those before each chunk."""
        outputs = activated.new_empty(*activated.shape[:2], self.inner)
        if states is None and activated.shape[1] == 1 and self.state is not None:
            library().scan_step(self.scan(activated), outputs.data_ptr(), None)
        else:
            library().scan_forward(self.scan(activated), *_pointers(outputs, None, states))
        return outputs

    def advanced(self, activated: Tensor, counts: Tensor | None) -> Tensor:
        """Return the state after some tokens."""
        assert self.state is not None
        after = torch.empty_like(self.state)
        if counts is None and activated.shape[1] == 1:
            library().scan_step(self.scan(activated), *_pointers(None, after))
            return after
        if counts is not None:
            counts = counts.to(torch.int64).contiguous()
        library().scan_forward(self.scan(activated, counts), *_pointers(None, after, None))
        return after

    def norm(self, mixed: Tensor) -> Norm:
        gate = self.projected.flatten(0, 1)[:, : self.inner]
        epsilon, weight = self.settings.norm_epsilon, self.weights.norm
        return _norm(mixed, gate, weight, epsilon, self.groups)

    def normed(self, mixed: Tensor, outputs: Tensor) -> Tensor:
        """Gate and norm, into the same place if need be."""
        library().norm_forward(self.norm(mixed), outputs.data_ptr())
        return outputs

    def new_states(self) -> Tensor:
        """Make room for the states before each chunk."""
        batch, length = self.projected.shape[:2]
        sizes = (-(-number // padding()) * padding() for number in (self.size, self.width))
        chunks = -(-length // self.chunk_length)
        return self.taps.new_empty(batch, chunks, self.heads, *sizes)

    def _part(self, first: int) -> int:
        return self.projected.data_ptr() + first * self.projected.element_size()


class _Mix(torch.autograd.Function):
    @staticmethod
    def forward(ctx, settings, projected, tail, state, *weights):
        pass_ = _Pass(projected, MixerWeights(*weights), settings, tail, state)
        states = pass_.new_states()
        mixed = pass_.mixed(pass_.activated(), states)
        ctx.settings = settings
        ctx.save_for_backward(projected, tail, state, *weights, states, mixed)
        return pass_.normed(mixed, torch.empty_like(mixed))

    @staticmethod
    def backward(ctx, outgoing):
        projected, tail, state, *weights, states, mixed = ctx.saved_tensors
        weights = MixerWeights(*weights)
        if backward_needs_twin(outgoing):
            inputs = (ctx.settings, projected, tail, state, *weights)
            return twin_gradients(_mix_again, inputs, ctx.needs_input_grad, (outgoing,))
        pass_ = _Pass(projected, weights, ctx.settings, tail, state)
        return None, *_mix_backward(pass_, states, mixed, outgoing.contiguous(), weights)


def _mix_again(
    settings: MixerSettings,
    projected: Tensor,
    tail: Tensor | None,
    state: Tensor | None,
    *weights: Tensor,
) -> Tensor:
    return REFERENCE_MIXER.mix(projected, MixerWeights(*weights), settings, tail, state)


def _mix_backward(
    pass_: _Pass, states: Tensor, mixed: Tensor, outgoing: Tensor, weights: MixerWeights
) -> tuple[Any, ...]:
    """Return the gradients of projected, tail, state and weights."""
    projected, calls = pass_.projected, library()
    batch, length, row = projected.shape
    inner, heads = pass_.inner, pass_.heads
    bytes_, blocks = projected.element_size(), pass_.blocks
    activated = pass_.activated()
    gradient = torch.empty_like(projected)

    mixed_gradient = torch.empty_like(mixed)
    norm_parts = pass_.taps.new_empty(-(-batch * length // norm_rows()), inner)
    calls.norm_backward(
        pass_.norm(mixed),
        *_pointers(outgoing, mixed_gradient, gradient),
        row,
        norm_parts.data_ptr(),
    )

    activated_gradient = torch.empty_like(activated)
    maps = pass_.taps.new_empty(blocks, 2, batch, length, pass_.groups * pass_.size)
    state_gradient = None if pass_.state is None else torch.empty_like(pass_.state)
    scan_parts = pass_.taps.new_empty(batch, 3, heads)
    step = gradient.data_ptr() + (inner + pass_.num_channels) * bytes_
    calls.scan_backward(
        pass_.scan(activated),
        *_pointers(states, mixed_gradient, None, activated_gradient, maps),
        *(step, row, length * row),
        *_pointers(state_gradient, scan_parts),
    )
    activated_gradient[..., inner:].unflatten(-1, (2, -1)).copy_(maps.sum(0).permute(1, 2, 0, 3))

    tail_gradient = None if pass_.tail is None else torch.empty_like(pass_.tail)
    taps = len(pass_.taps)
    tap_parts = pass_.taps.new_empty(batch, taps + 1, pass_.num_channels)
    calls.convolution_backward(
        pass_.convolution,
        *(activated_gradient.data_ptr(), gradient.data_ptr() + inner * bytes_),
        *(row, length * row),
        *_pointers(tail_gradient, tap_parts),
    )
    tap_gradients, scan_gradients = tap_parts.sum(0), scan_parts.sum(0)
    found = (tap_gradients[:taps].t(), tap_gradients[taps], *scan_gradients, norm_parts.sum(0))
    of_weights = (new.to(old.dtype) for new, old in zip(found, weights, strict=True))
    return gradient, tail_gradient, state_gradient, *of_weights


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, epsilon):
        ctx.save_for_backward(hidden, weight)
        ctx.epsilon = epsilon
        return _plain_norm(hidden, weight, epsilon)

    @staticmethod
    def backward(ctx, outgoing):
        hidden, weight = ctx.saved_tensors
        if backward_needs_twin(outgoing):
            inputs = (hidden, weight, ctx.epsilon)
            return twin_gradients(reference.rms_norm, inputs, ctx.needs_input_grad, (outgoing,))
        outgoing, hidden = outgoing.to(hidden.dtype).contiguous(), hidden.contiguous()
        gradient = torch.empty_like(hidden)
        rows = hidden.numel() // len(weight)
        parts = hidden.new_empty(-(-rows // norm_rows()), len(weight))
        precise = _precise(weight)
        norm = _norm(hidden, None, precise, ctx.epsilon, 1)
        library().norm_backward(norm, *_pointers(outgoing, gradient, None), 0, parts.data_ptr())
        return gradient, parts.sum(0).to(weight.dtype), None


class _CausalAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, queries, keys, values, cosine, sine):
        tensors = [tensor.contiguous() for tensor in (queries, keys, values, cosine, sine)]
        batch, length, heads, _ = queries.shape
        logarithms = queries.new_empty(batch, heads, length)
        outputs = _attend(tensors, logarithms)
        ctx.save_for_backward(queries, keys, values, cosine, sine, outputs, logarithms)
        return outputs

    @staticmethod
    def backward(ctx, outgoing):
        *inputs, outputs, logarithms = ctx.saved_tensors
        if backward_needs_twin(outgoing):
            twin = reference.causal_attention
            return twin_gradients(twin, inputs, ctx.needs_input_grad, (outgoing,))
        inputs = [tensor.contiguous() for tensor in inputs]
        gradients = [torch.empty_like(tensor) for tensor in inputs[:3]]
        outgoing = outgoing.contiguous()
        library().attention_backward(
            _attention(inputs), *_pointers(outputs, logarithms, outgoing, *gradients)
        )
        return *gradients, None, None


def _attend(inputs: Sequence[Tensor], logarithms: Tensor | None) -> Tensor:
    outputs = torch.empty_like(inputs[0])
    library().attention_forward(_attention(inputs), *_pointers(outputs, logarithms))
    return outputs


def _attention(inputs: Sequence[Tensor]) -> Attention:
    (batch, length, heads, width), num_groups = inputs[0].shape, inputs[1].shape[2]
    sizes = (batch, length, heads, num_groups, width)
    return Attention(*sizes, *_pointers(*inputs), width**-0.5)


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gate, up):
        ctx.save_for_backward(gate, up)
        gate, up = gate.contiguous(), up.contiguous()
        outputs = torch.empty_like(gate)
        library().swiglu_forward(gate.numel(), *_pointers(gate, up, outputs))
        return outputs

    @staticmethod
    def backward(ctx, outgoing):
        gate, up = ctx.saved_tensors
        if backward_needs_twin(outgoing):
            inputs = (gate, up)
            return twin_gradients(_swiglu_again, inputs, ctx.needs_input_grad, (outgoing,))
        gate, up, outgoing = (tensor.contiguous() for tensor in (gate, up, outgoing))
        gradients = torch.empty_like(gate), torch.empty_like(gate)
        library().swiglu_backward(gate.numel(), *_pointers(gate, up, outgoing, *gradients))
        return gradients


def _swiglu_again(gate: Tensor, up: Tensor) -> Tensor:
    return nn.functional.silu(gate) * up


def _plain_norm(hidden: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    hidden = hidden.contiguous()
    outputs, precise = torch.empty_like(hidden), _precise(weight)
    library().norm_forward(_norm(hidden, None, precise, epsilon, 1), outputs.data_ptr())
    return outputs.to(weight.dtype)


def _workspace(like: Tensor, *size: int) -> Tensor:
    """Return memory for numbers that nobody keeps; the next call in this thread gives it again."""
    num_bytes = math.prod(size) * like.element_size()
    if num_bytes > _LARGEST_WORKSPACE:
        return like.new_empty(size)
    memory = getattr(_threads, "memory", None)
    if memory is None or len(memory) < num_bytes:
        memory = _threads.memory = torch.empty(num_bytes, dtype=torch.uint8, device="cpu")
    return memory[:num_bytes].view(like.dtype).view(size)


def _norm(
    inputs: Tensor, gate: Tensor | None, weight: Tensor, epsilon: float, num_groups: int
) -> Norm:
    width = inputs.shape[-1]
    gate_row = 0 if gate is None else gate.stride(0)
    return Norm(
        *(inputs.numel() // max(width, 1), width, num_groups, inputs.dtype == torch.bfloat16),
        *(gate_row, *_pointers(inputs, gate, weight), epsilon),
    )


def _takes(tensor: Tensor) -> bool:
    return (
        type(tensor) in (Tensor, nn.Parameter)  # others may have no memory to read
        and tensor.device.type == "cpu"
        and tensor.dtype in (torch.float32, torch.bfloat16)
        and not transformed()
        and not torch.compiler.is_compiling()
        and not is_tracing()
    )


def _check_sizes(
    projected: Tensor,
    weights: MixerWeights,
    settings: MixerSettings,
    tail: Tensor | None,
    state: Tensor | None,
) -> None:
    """Compare all sizes, which C does not."""
    (channels, taps), heads, inner = weights.convolution.shape, len(weights.skip), len(weights.norm)
    size = (channels - inner) // 2 // settings.num_groups
    batch = len(projected)
    expected = {
        "projected": (projected, (*projected.shape[:2], inner + channels + heads)),
        "convolution_bias": (weights.convolution_bias, (channels,)),
        "time_step_bias": (weights.time_step_bias, (heads,)),
        "decay_rate": (weights.decay_rate, (heads,)),
        "tail": (tail, (batch, taps - 1, channels)),
        "state": (state, (batch, heads, inner // heads, size)),
    }
    for name, (tensor, shape) in expected.items():
        if tensor is not None:
            _check_size(name, tensor, shape)
    if (
        inner % heads
        or heads % settings.num_groups
        or inner + 2 * settings.num_groups * size != (channels)
    ):
        raise ValueError(
            f"a mixer of {inner} numbers in {heads} heads, {channels} channels and "
            f"{settings.num_groups} groups does not come out even"
        )


def _check_heads(
    queries: Tensor, keys: Tensor, values: Tensor, cosine: Tensor, sine: Tensor
) -> None:
    batch, length, heads, width = queries.shape
    shared = keys.shape[2]
    for name, tensor in (("keys", keys), ("values", values)):
        _check_size(name, tensor, (batch, length, shared, width))
    for name, tensor in (("cosine", cosine), ("sine", sine)):
        _check_size(name, tensor, (1, length, 1, width))
    if width % 2 or heads % max(shared, 1):
        raise ValueError(
            f"{heads} heads of {width} numbers with keys of {shared} heads do not come out even"
        )


def _check_size(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    if tensor.shape != shape or tensor.device.type != "cpu":
        raise ValueError(
            f"{name} has the shape {tuple(tensor.shape)} on {tensor.device}; it must be {shape} "
            "on the CPU"
        )


def _precise(tensor: Tensor) -> Tensor:
    return tensor.detach().to(torch.float32).contiguous()


def _pointers(*tensors: Tensor | None) -> list[int | None]:
    return [None if tensor is None else tensor.data_ptr() for tensor in tensors]
