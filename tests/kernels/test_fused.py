"""Every fused kernel against its twin in plain PyTorch."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is there on Linux only")

from implicit_models.kernels import reference
from implicit_models.kernels.fused import convolution, norm
from implicit_models.kernels.fused.convolution import causal_convolution
from implicit_models.kernels.fused.norm import gated_rms_norm, rms_norm
from implicit_models.kernels.fused.step import mixer_step
from implicit_models.kernels.fused.update import normed_update
from tests.kernels.twins import DEVICE, LENGTHS, assert_near, assert_twins, draw, poison

HALVES = [torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    poison(monkeypatch)


def convolution_inputs(
    length: int,
    width: int = 4,
    *,
    carried: bool = True,
    batch: int = 2,
    channels: int = 5,
    dtype: torch.dtype = torch.float32,
) -> list[Any]:
    """Draw a convolution's inputs: the channels are a slice of a projection, as in a mixer."""
    projected = draw(batch, length, 3 + channels + 2, dtype=dtype)
    carry = draw(batch, width - 1, channels, seed=3, dtype=dtype) if carried else None
    weight, bias = draw(channels, width, seed=1, dtype=dtype), draw(channels, seed=2, dtype=dtype)
    return [projected[..., 3 : 3 + channels], weight, bias, carry]


@pytest.mark.parametrize("carried", [False, True])
@pytest.mark.parametrize("length", LENGTHS)
def test_convolution(length: int, carried: bool) -> None:
    inputs = convolution_inputs(length, carried=carried)
    assert_twins(causal_convolution, reference.causal_convolution, inputs)


@pytest.mark.parametrize("carried", [False, True])
@pytest.mark.parametrize("width", [1, 2, 3, 8])
def test_convolution_of_another_width(width: int, carried: bool) -> None:
    inputs = convolution_inputs(7, width, carried=carried)
    assert_twins(causal_convolution, reference.causal_convolution, inputs)


@pytest.mark.parametrize("strip", [8, 32])  # shorter than a tile, and longer
@pytest.mark.parametrize(("length", "channels"), [(2, 131), (70, 2)])
def test_convolution_of_several_tiles(
    length: int, channels: int, strip: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convolution, "STRIP", strip)
    inputs = convolution_inputs(length, batch=1, channels=channels)
    assert_twins(causal_convolution, reference.causal_convolution, inputs)


@pytest.mark.parametrize("carried", [False, True])
@pytest.mark.parametrize(("batch", "length"), [(0, 3), (2, 0)])
def test_convolution_of_nothing(batch: int, length: int, carried: bool) -> None:
    inputs = convolution_inputs(length, batch=batch, carried=carried)
    assert_twins(causal_convolution, reference.causal_convolution, inputs)


@pytest.mark.parametrize("carried", [False, True])
def test_second_derivatives_of_the_convolution(carried: bool) -> None:
    inputs = convolution_inputs(3, carried=carried)
    assert_twins(causal_convolution, reference.causal_convolution, inputs, second=True)


def test_convolution_of_any_strides_and_an_expanded_gradient() -> None:
    inputs, weight, bias, carry = convolution_inputs(7)
    inputs = inputs.transpose(1, 2).contiguous().transpose(1, 2)
    weight = weight.t().contiguous().t()

    def summed(function: Any) -> Any:
        return lambda *tensors: function(*tensors).sum()

    fused, twin = summed(causal_convolution), summed(reference.causal_convolution)
    assert_twins(fused, twin, [inputs, weight, bias, carry])


def test_convolution_in_double_precision() -> None:
    inputs = convolution_inputs(7, dtype=torch.float64)
    assert_twins(causal_convolution, reference.causal_convolution, inputs, tolerance=1e-12)


def test_convolution_of_large_numbers_overflows_nowhere() -> None:
    inputs, weight, bias, carry = convolution_inputs(7)
    tensors = [1e3 * inputs, weight, bias, carry]
    assert_twins(causal_convolution, reference.causal_convolution, tensors)


@pytest.mark.parametrize("dtype", HALVES)
def test_convolution_in_half_precision_rounds_once(dtype: torch.dtype) -> None:
    inputs = convolution_inputs(7, dtype=dtype)
    assert_rounded_once(causal_convolution, reference.causal_convolution, inputs)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("width", [2, 6, 26])
@pytest.mark.parametrize("rows", [(3,), (2, 7), (2, 3, 1)])
def test_gated_norm(rows: tuple[int, ...], width: int, groups: int) -> None:
    gate = draw(*rows, width + 9, seed=1)[..., 4 : 4 + width]
    inputs = [draw(*rows, width), gate, draw(width, seed=2), 1e-5, groups]
    assert_twins(gated_rms_norm, reference.gated_rms_norm, inputs)


@pytest.mark.parametrize("rows", [(1,), (2, 7), (2, 3, 1)])
@pytest.mark.parametrize("width", [2, 3, 17])
def test_norm(rows: tuple[int, ...], width: int) -> None:
    inputs = [draw(*rows, width + 2)[..., :width], draw(width, seed=1), 1e-5]
    assert_twins(rms_norm, reference.rms_norm, inputs)


@pytest.mark.parametrize("groups", [1, 2])
def test_norm_of_several_tiles(groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(norm, "TILE", 16)
    monkeypatch.setattr(norm, "MOST_STRIPS", 2)
    inputs = [draw(17, 6), draw(17, 6, seed=1), draw(6, seed=2), 1e-5, groups]
    assert_twins(gated_rms_norm, reference.gated_rms_norm, inputs)


@pytest.mark.parametrize("rows", [(0,), (2, 0)])
def test_norm_of_nothing(rows: tuple[int, ...]) -> None:
    inputs, gate, weight = draw(*rows, 6), draw(*rows, 6), draw(6)
    assert_twins(gated_rms_norm, reference.gated_rms_norm, [inputs, gate, weight, 1e-5, 2])
    assert_twins(rms_norm, reference.rms_norm, [inputs, weight, 1e-5])


def test_second_derivatives_of_the_norms() -> None:
    inputs, gate, weight = draw(3, 6), draw(3, 6, seed=1), draw(6, seed=2)
    tensors = [inputs, gate, weight, 1e-5, 2]
    assert_twins(gated_rms_norm, reference.gated_rms_norm, tensors, second=True)
    assert_twins(rms_norm, reference.rms_norm, [inputs, weight, 1e-5], second=True)


def test_second_derivatives_where_one_input_is_computed_from_another() -> None:
    def folded(function: Any) -> Any:
        return lambda x, weight: function(x, x * weight, weight, 1e-5)

    tensors = [draw(3, 6), draw(6, seed=2)]
    fused, twin = folded(gated_rms_norm), folded(reference.gated_rms_norm)
    assert_twins(fused, twin, tensors, second=True)


def test_norm_in_double_precision() -> None:
    inputs, gate = (draw(3, 6, seed=i, dtype=torch.float64) for i in range(2))
    tensors = [inputs, gate, draw(6, dtype=torch.float64), 1e-5, 2]
    assert_twins(gated_rms_norm, reference.gated_rms_norm, tensors, tolerance=1e-12)


def test_norm_of_a_gate_far_from_zero_overflows_nowhere() -> None:
    gate = torch.tensor([[-1e4, -100.0, 0.0, 100.0, 95.0, 3.0]], device=DEVICE)
    tensors = [draw(1, 6), gate, draw(6), 1e-5]
    assert_twins(gated_rms_norm, reference.gated_rms_norm, tensors)


@pytest.mark.parametrize("dtype", HALVES)
def test_norms_in_half_precision_round_once(dtype: torch.dtype) -> None:
    tensors = [draw(3, 6, seed=i, dtype=dtype) for i in range(2)]
    weight = draw(6, seed=2)
    assert_rounded_once(gated_rms_norm, reference.gated_rms_norm, [*tensors, weight, 1e-5, 2])
    hidden, weight = draw(3, 6), weight.to(dtype)
    found, expected = rms_norm(hidden, weight, 1e-5), reference.rms_norm(hidden, weight, 1e-5)
    assert_near(found, expected, torch.finfo(dtype).eps)


@pytest.mark.parametrize("damping", [1.0, 0.7, 0.3])
@pytest.mark.parametrize("rows", [(), (3,), (2, 7), (2, 3, 1)])
def test_update(rows: tuple[int, ...], damping: float) -> None:
    hidden, weight = draw(*rows, 8)[..., :5], draw(5, seed=1)
    value = draw(*rows, 9, seed=2)[..., 2:7]
    found = normed_update(hidden, weight, 1e-5, value, damping)
    assert_each_near(found, reference.normed_update(hidden, weight, 1e-5, value, damping))


@pytest.mark.parametrize("rows", [(0,), (2, 0)])
def test_update_of_nothing(rows: tuple[int, ...]) -> None:
    tensors = (draw(*rows, 5), draw(5), 1e-5, draw(*rows, 5), 0.5)
    assert_each_near(normed_update(*tensors), reference.normed_update(*tensors))


@pytest.mark.filterwarnings("ignore:(overflow|invalid):RuntimeWarning")
@pytest.mark.parametrize("damping", [1.0, 0.5])
def test_update_at_the_ends_of_the_range(damping: float) -> None:
    """A row each: f vanishes, f and the value do, f is NaN, the value is, f's size overflows."""
    hidden, value, weight = draw(5, 4), draw(5, 4, seed=1), draw(4, seed=2)
    hidden[:2], value[1] = 0.0, 0.0
    hidden[2, 1], value[3, 2] = torch.nan, torch.nan
    ordinary = (hidden, weight, 1e-5, value, damping)
    found, expected = normed_update(*ordinary), reference.normed_update(*ordinary)
    assert_each_near(found, expected)
    assert found[1][1:4].tolist()[0] == 0.0
    assert found[1].isnan().tolist() == [False, False, True, True, False]

    beyond = (hidden[4:], 1e30 * weight, 1e-5, value[4:], damping)
    found = normed_update(*beyond)
    assert_each_near(found, reference.normed_update(*beyond))
    assert found[1].tolist() == [torch.inf]


def test_update_for_a_gradient_is_the_twin() -> None:
    tensors = [draw(3, 5), draw(5, seed=1), 1e-5, draw(3, 5, seed=2), 0.5]
    assert_twins(normed_update, reference.normed_update, tensors, tolerance=0.0)


def step_inputs(
    groups: int,
    *,
    batch: int = 3,
    heads: int = 4,
    width: int = 3,
    size: int = 5,
    taps: int = 4,
    dtype: torch.dtype = torch.float32,
) -> list[Any]:
    inner = heads * width
    channels = inner + 2 * groups * size
    return [
        draw(batch, inner + channels + heads + 3, dtype=dtype)[:, : inner + channels + heads],
        draw(channels, taps, seed=1, dtype=dtype),
        draw(channels, seed=2, dtype=dtype),
        draw(heads, seed=3, dtype=dtype) - 5.0,
        -draw(heads, seed=4).exp(),
        draw(heads, seed=5, dtype=dtype),
        draw(inner, seed=6, dtype=dtype),
        1e-5,
        draw(batch, taps - 1, channels, seed=7, dtype=dtype),
        draw(batch, heads, width, size, seed=8),
        groups,
    ]


@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"batch": 0},
        {"batch": 1, "heads": 2, "width": 1, "size": 1},
        {"batch": 1, "heads": 2, "width": 17, "size": 7},
        {"taps": 1},
        {"taps": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("groups", [1, 2])
def test_step(groups: int, sizes: dict[str, Any]) -> None:
    tensors = step_inputs(groups, **sizes)
    before = tensors[9].clone()
    assert_near(mixer_step(*tensors), reference.mixer_step(*tensors), 1e-5)
    torch.testing.assert_close(tensors[9], before, rtol=0, atol=0)


def test_step_reads_tail_and_state_of_any_strides() -> None:
    tensors = step_inputs(2)
    expected = reference.mixer_step(*tensors)
    for i in (1, 8, 9):
        tensors[i] = tensors[i].transpose(-1, -2).contiguous().transpose(-1, -2)
    assert_near(mixer_step(*tensors), expected, 1e-5)


def test_step_keeps_the_digits_of_a_small_time_step() -> None:
    tensors = step_inputs(1)
    tensors[3] = torch.full_like(tensors[3], -12.0)
    tensors[5], tensors[9] = torch.zeros_like(tensors[5]), torch.zeros_like(tensors[9])
    tensors[7] = 1e-20  # nothing but the time step sets the size that the norm divides by
    assert_near(mixer_step(*tensors), reference.mixer_step(*tensors), 1e-5)


@pytest.mark.parametrize("dtype", HALVES)
def test_step_in_half_precision(dtype: torch.dtype) -> None:
    tensors = step_inputs(2, dtype=dtype)
    assert_near(mixer_step(*tensors), reference.mixer_step(*tensors), 8 * torch.finfo(dtype).eps)


def test_step_for_a_gradient_is_the_twin() -> None:
    assert_twins(mixer_step, reference.mixer_step, step_inputs(2), tolerance=0.0)


def test_nothing_is_followed_without_gradients() -> None:
    inputs = [x.requires_grad_() for x in convolution_inputs(3)]
    with torch.no_grad():
        assert causal_convolution(*inputs).grad_fn is None
        assert gated_rms_norm(inputs[0], inputs[0], inputs[2], 1e-5).grad_fn is None


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")  # of a GPU's norm
def test_transforms_of_torch_func_see_the_twins() -> None:
    inputs, weight, bias, carry = convolution_inputs(2, batch=1, channels=2)

    def run(kernels: Any, x: Tensor) -> Tensor:
        convolve, normalise = kernels
        return normalise(convolve(x, weight, bias, carry), inputs, bias, 1e-5)

    fused = partial(run, (causal_convolution, gated_rms_norm))
    twin = partial(run, (reference.causal_convolution, reference.gated_rms_norm))
    expected = torch.func.jacrev(twin)(inputs)
    assert_near(torch.func.jacrev(fused)(inputs), expected, 1e-5)

    leaf = inputs.detach().requires_grad_()
    outputs = fused(leaf)
    directions = torch.eye(leaf.numel(), device=DEVICE).view(-1, *leaf.shape)
    rows = torch.vmap(lambda direction: torch.autograd.grad(outputs, leaf, direction)[0])(
        directions
    )
    assert_near(rows, expected.flatten(0, 2), 1e-5)


def assert_each_near(found: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert_near(one, other, 1e-5)


def assert_rounded_once(fused: Any, twin: Any, inputs: list[Any]) -> None:
    """Compare with the twin in float32: the gradients too are rounded only when stored."""
    halves = [x.detach().requires_grad_() if isinstance(x, Tensor) else x for x in inputs]
    leaves = [x for x in halves if isinstance(x, Tensor)]
    precise = [x.float() if isinstance(x, Tensor) else x for x in halves]
    found, expected = fused(*halves), twin(*precise)
    upstream = draw(*found.shape, seed=5, dtype=found.dtype)
    gradients = torch.autograd.grad(found, leaves, upstream)
    expected_gradients = torch.autograd.grad(expected, leaves, upstream.float())
    assert found.dtype == halves[0].dtype
    tolerance = torch.finfo(found.dtype).eps
    assert_near(found, expected.to(found.dtype), tolerance)
    for one, other in zip(gradients, expected_gradients, strict=True):
        assert_near(one, other, tolerance)
