"""Each fused kernel beside its twin in PyTorch, torch.compile of that, and mamba-ssm's kernels.

At the sizes of one block of the 350m models; Mamba2's inputs are slices of a projection. Bytes are
those of inputs and outputs; backward those of inputs, outputs and the gradients of both on top.
The error is that of the outputs, or the largest of the gradients', against the twin in float32.
"""

import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_baseline import mamba_ssm_functions
from benchmarks.gpu_counts import widths
from benchmarks.gpu_device import Row, Scale, attempt, device, kernel_seconds
from implicit_models.families.llama.configuration import ImplicitLlamaConfig
from implicit_models.families.mamba2.configuration import ImplicitMamba2Config
from implicit_models.kernels import mamba_ssm, reference

MODEL, OTHER = "mamba2-350m", "llama-350m"
CHUNK_LENGTHS, COMPARED_CHUNK = (32, 64, 128), 64
PEER_CHUNKS = (64, 128, mamba_ssm.CHUNK_LENGTH)


@dataclass(frozen=True)
class Case:
    """A kernel and its inputs.

    Attributes
    ----------
    fused, twin
        Take the inputs, give the outputs; a length of chunk may be one that no fused kernel takes.
    peer
        mamba-ssm's function, where it has one and is installed.
    differentiable
        Whether there is a backward to measure.
    compared
        Whether the twins are measured too.
    """

    name: str
    fused: Callable[..., Any] | None
    twin: Callable[..., Any]
    inputs: Sequence[Any]
    differentiable: bool = True
    compared: bool = True
    peer: Callable[..., Any] | None = None

    def implementations(self) -> dict[str, Callable[..., Any]]:
        """Return what is measured."""
        made = {"fused": self.fused, "mamba-ssm": self.peer}
        if self.compared:
            made |= {"reference": self.twin, "torch.compile": self.twin}
        return {name: function for name, function in made.items() if function is not None}


def measure_kernels(scale: Scale) -> Iterator[Row]:
    """Measure all kernels: first the fused ones, last what takes long to compile."""
    for implementation in ("fused", "mamba-ssm", "reference", "torch.compile"):
        for case in cases(scale):
            function = case.implementations().get(implementation)
            if function is None:
                continue
            if implementation == "torch.compile":
                function = _compiled(function)
            for backward in (False, True) if case.differentiable else (False,):
                row: Row = {
                    "part": "kernel",
                    "kernel": case.name,
                    "pass": "forward and backward" if backward else "forward",
                    "implementation": implementation,
                }
                yield from attempt(
                    row,
                    lambda case=case, function=function, backward=backward: _measure(
                        case, function, backward
                    ),
                )


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    torch.compiler.reset()
    # On a CPU all this shows is that the flow is right.
    return torch.compile(function, backend="eager" if device().type == "cpu" else "inductor")


def _measure(case: Case, function: Callable[..., Any], backward: bool) -> Row:
    outputs, gradients = _call(function, case.inputs, backward)
    exact = _call(case.twin, _precise(case.inputs), backward, gradients)
    pairs = zip(outputs, exact[0], strict=True)
    error = max((a.float() - b).norm().item() / b.norm().item() for a, b in pairs)
    del exact, pairs
    moved = sum(x.numel() * x.itemsize for x in case.inputs if isinstance(x, Tensor))
    moved = 3 * moved if backward else moved  # read twice, and as much written
    given = gradients if backward else outputs
    moved += sum(x.numel() * x.itemsize for x in given) * (2 if backward else 1)
    seconds = kernel_seconds(lambda: _call(function, case.inputs, backward, gradients))
    return {
        "seconds": seconds,
        "gigabytes_per_second": moved / seconds / 1e9,
        "relative_error": error,
    }


def _call(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    backward: bool,
    gradients: Sequence[Tensor] | None = None,
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the outputs, or the inputs' gradients and the upstream gradients behind them."""
    if not backward:
        with torch.no_grad():
            return _tensors(function(*inputs)), []
    leaves = [x.detach().requires_grad_() if isinstance(x, Tensor) else x for x in inputs]
    with torch.enable_grad():
        outputs = _tensors(function(*leaves))
    if gradients is None:
        gradients = [torch.randn_like(output) for output in outputs]
    taken = [gradient.to(output.dtype) for gradient, output in zip(gradients, outputs, strict=True)]
    wanted = [x for x in leaves if isinstance(x, Tensor)]
    return list(torch.autograd.grad(outputs, wanted, taken)), list(gradients)


def _precise(inputs: Sequence[Any]) -> list[Any]:
    return [x.float() if isinstance(x, Tensor) else x for x in inputs]


def _tensors(outputs: Any) -> list[Tensor]:
    return [x for x in (outputs if isinstance(outputs, tuple) else (outputs,)) if x is not None]


def cases(scale: Scale) -> list[Case]:
    """Draw each kernel's inputs."""
    config = scale.config(MODEL)
    assert isinstance(config, ImplicitMamba2Config)
    draw = torch.Generator(device()).manual_seed(2)

    def new(*size: int, dtype: torch.dtype = scale.dtype) -> Tensor:
        return torch.randn(size, generator=draw, device=device(), dtype=dtype)

    batch = scale.batches[MODEL.rpartition("-")[2]]
    w, heads, groups = widths(config), config.num_heads, config.n_groups
    maps, taps = groups * config.state_size, config.conv_kernel
    channels, epsilon = w.inner + 2 * maps, config.rms_norm_eps
    projected = new(batch, scale.length, w.projection)
    gate, convolved, time_step = projected.split((w.inner, channels, heads), -1)
    activated = new(batch, scale.length, channels)
    scanned, input_map, output_map = activated.split((w.inner, maps, maps), -1)
    rates = -torch.rand(heads, generator=draw, device=device()) * 15 - 1
    bias = new(heads) - 4.0
    filters, norm = (new(channels, taps) * 0.3, new(channels) * 0.3), new(w.inner)
    scan = (
        scanned.unflatten(-1, (heads, -1)),
        time_step,
        bias,
        rates,
        input_map.unflatten(-1, (groups, -1)),
        output_map.unflatten(-1, (groups, -1)),
        new(heads),
    )
    hidden = new(batch, scale.length, w.model, dtype=torch.float32)
    value, weight = new(batch, scale.length, w.model), new(w.model)
    mixed = new(batch, scale.length, w.inner)
    tail = new(scale.decoded, taps - 1, channels)
    state = new(scale.decoded, heads, config.head_dim, config.state_size, dtype=torch.float32)
    step = (new(scale.decoded, w.projection), *filters, bias, rates, new(heads), norm)

    peers = mamba_ssm_functions() if device().type == "cuda" else {}
    made = []
    for chunk_length in sorted({*CHUNK_LENGTHS, *PEER_CHUNKS}):
        fused = _scan_of(_fused("scan", "state_space_scan"), chunk_length)
        compared = chunk_length == COMPARED_CHUNK
        peer = peers.get("scan") if chunk_length in PEER_CHUNKS else None
        made.append(
            Case(
                f"scan, chunk {chunk_length}",
                fused if chunk_length in CHUNK_LENGTHS else None,
                _scan_of(reference.state_space_scan, min(chunk_length, max(CHUNK_LENGTHS))),
                scan,
                compared=compared,
                peer=peer and _scan_of(peer, chunk_length),
            )
        )
    for name, module, function, inputs, differentiable in (
        ("convolution", "convolution", "causal_convolution", (convolved, *filters), True),
        ("gated norm", "norm", "gated_rms_norm", (mixed, gate, norm, epsilon, groups), True),
        ("norm", "norm", "rms_norm", (hidden, weight, epsilon), True),
        ("update", "update", "normed_update", (hidden, weight, epsilon, value, 0.8), False),
        ("step", "step", "mixer_step", (*step, epsilon, tail, state, groups), False),
    ):
        twin, fused = getattr(reference, function), _fused(module, function)
        made.append(Case(name, fused, twin, inputs, differentiable, peer=peers.get(name)))
    llama = scale.config(OTHER)
    assert isinstance(llama, ImplicitLlamaConfig) and llama.head_dim
    heads_of_all = new(batch, scale.length, llama.num_attention_heads, llama.head_dim)
    angles = [new(1, scale.length, 1, llama.head_dim) for _ in range(2)]
    gate_and_up = [new(batch, scale.length, llama.intermediate_size) for _ in range(2)]
    rotate, swiglu = _fused("rotary", "rotate"), _fused("swiglu", "swiglu")
    turned = _with_angles(rotate, angles), _with_angles(reference.rotate, angles)
    made.append(Case("rotation", *turned, (heads_of_all,)))
    gates = _leaving_its_inputs(swiglu), _leaving_its_inputs(reference.swiglu)
    made.append(Case("swiglu", *gates, gate_and_up))
    return sorted(made, key=lambda case: case.name.startswith("scan"))


def _fused(module: str, function: str) -> Callable[..., Any]:
    """Return a fused kernel, imported only when it is called."""

    def call(*inputs: Any, **options: Any) -> Any:
        found = importlib.import_module(f"implicit_models.kernels.fused.{module}")
        return getattr(found, function)(*inputs, **options)

    return call


def _with_angles(function: Callable[..., Any], angles: Sequence[Tensor]) -> Callable[..., Any]:
    def call(heads: Tensor) -> Tensor:
        return function(heads, *(x.to(heads.dtype) for x in angles))

    return call


def _leaving_its_inputs(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*inputs: Tensor) -> Tensor:
        with torch.enable_grad():  # without, it may write over the first
            return function(*inputs)

    return call


def _scan_of(function: Callable[..., Any], chunk_length: int) -> Callable[..., Any]:
    def call(*inputs: Any) -> Tensor:
        return function(*inputs, chunk_length=chunk_length, return_final_state=False)[0]

    return call
