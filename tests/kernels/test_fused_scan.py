"""The fused scan against its twin in plain PyTorch: values, gradients and theirs."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is there on Linux only")

from implicit_models.kernels import reference
from implicit_models.kernels.fused import scan
from implicit_models.kernels.fused.scan import state_space_scan
from tests.kernels.twins import DEVICE, assert_near, assert_twins, draw, poison

HEADS, WIDTH, SIZE = 4, 3, 5
VALUES, GRADIENTS = 1e-5, 1e-4


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    poison(monkeypatch)


@pytest.fixture(autouse=True, params=["ieee"])
def products(request: pytest.FixtureRequest) -> Iterator[str]:
    """Set how float32 matrices are multiplied, here and by PyTorch: exactly unless asked."""
    settings, before = torch.backends.cuda.matmul, torch.backends.cuda.matmul.fp32_precision
    settings.fp32_precision = request.param
    yield request.param
    settings.fp32_precision = before


def scan_inputs(
    length: int,
    groups: int = 1,
    *,
    started: bool = True,
    batch: int = 1,
    heads: int = HEADS,
    width: int = WIDTH,
    size: int = SIZE,
    dtype: torch.dtype = torch.float32,
) -> list[Any]:
    """Draw a scan's inputs, cut from a convolution's outputs and a projection as in a mixer."""
    inner, maps = heads * width, groups * size
    convolved = draw(batch, length, inner + 2 * maps, dtype=dtype)
    inputs, input_map, output_map = convolved.split((inner, maps, maps), dim=-1)
    return [
        inputs.unflatten(-1, (heads, width)),
        draw(batch, length, heads + 3, seed=1, dtype=dtype)[..., 3:],
        draw(heads, seed=2),
        -draw(heads, seed=3).exp(),
        input_map.unflatten(-1, (groups, size)),
        output_map.unflatten(-1, (groups, size)),
        draw(heads, seed=4),
        draw(batch, heads, width, size, seed=5) if started else None,
    ]


def assert_scans(tensors: list[Any], **options: Any) -> None:
    """Compare values, and every gradient through outputs and final state."""
    with torch.no_grad():
        found = state_space_scan(*tensors, **options)
        expected = reference.state_space_scan(*tensors, **options)
    for one, other in zip(found, expected, strict=True):
        assert_near(one, other, VALUES)
    twins = state_space_scan, reference.state_space_scan
    assert_twins(*twins, tensors, tolerance=GRADIENTS, **options)


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("length", [1, 2, 7, 16, 17, 33])
def test_scan(length: int, started: bool) -> None:
    assert_scans(scan_inputs(length, heads=2, started=started), chunk_length=16)


@pytest.mark.parametrize("groups", [1, 2, HEADS])
@pytest.mark.parametrize("length", [33, 40])
def test_scan_in_longer_chunks(length: int, groups: int) -> None:
    assert_scans(scan_inputs(length, groups), chunk_length=32)


@pytest.mark.parametrize("groups", [1, 2])
def test_scan_of_several_sequences(groups: int) -> None:
    assert_scans(scan_inputs(17, groups, batch=2, heads=2), chunk_length=16)


@pytest.mark.parametrize(
    ("width", "size"), [(1, 1), (16, 16), (17, 5), (3, 33), (5, 70), (35, 34)], ids=str
)
def test_scan_of_another_width(width: int, size: int) -> None:
    assert_scans(scan_inputs(17, heads=1, width=width, size=size), chunk_length=16)


def test_scan_of_a_length_that_the_chunk_is_left_to() -> None:
    assert_scans(scan_inputs(35, heads=1))


@pytest.mark.parametrize("enough", [1, 3])
def test_scan_where_a_program_adds_up_several_heads(
    enough: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "ENOUGH_PROGRAMS", enough)
    assert_scans(scan_inputs(7, 1, heads=5))


@pytest.mark.parametrize("length", [7, 17])
def test_scan_without_its_final_state(length: int) -> None:
    tensors = scan_inputs(length, started=length > 16, heads=2)
    assert_scans(tensors, chunk_length=16, return_final_state=False)


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("length", [7, 17])
@pytest.mark.parametrize("output", [0, 1], ids=["outputs", "final_state"])
def test_gradients_through_one_output(output: int, length: int, started: bool) -> None:
    tensors = scan_inputs(length, heads=2, started=started)
    found = gradients(state_space_scan, tensors, output, chunk_length=16)
    expected = gradients(reference.state_space_scan, tensors, output, chunk_length=16)
    assert_all_near(found, expected, GRADIENTS)


@pytest.mark.parametrize("needed", range(8))
def test_a_gradient_of_one_input_alone(needed: int) -> None:
    tensors = scan_inputs(7, heads=2)

    def alone(function: Any) -> Any:
        def with_others(tensor: Tensor) -> Tensor:
            outputs, final = function(*tensors[:needed], tensor, *tensors[needed + 1 :])
            return torch.cat((outputs.flatten(), final.flatten()))

        return with_others

    twins = alone(state_space_scan), alone(reference.state_space_scan)
    assert_twins(*twins, [tensors[needed]], tolerance=GRADIENTS)


def test_scan_survives_a_long_decay_without_overflow() -> None:
    """Against float64: the twin's own gradients of a long decay cancel in float32."""
    tensors = scan_inputs(40, heads=2)
    tensors[1] = tensors[1].abs() * 200
    precise = [x.double() for x in tensors]
    found = [*state_space_scan(*tensors), *gradients(state_space_scan, tensors)]
    expected = [
        *reference.state_space_scan(*precise),
        *gradients(reference.state_space_scan, precise),
    ]
    assert_all_near(found, expected, GRADIENTS)


def test_scan_keeps_the_digits_of_small_time_steps() -> None:
    tensors = scan_inputs(17, heads=2)
    tensors[1] = tensors[1] - 12.0
    tensors[6], tensors[7] = torch.zeros_like(tensors[6]), torch.zeros_like(tensors[7])
    assert_scans(tensors, chunk_length=16)


def test_scan_of_any_strides_and_an_expanded_gradient() -> None:
    tensors = [x.mT.contiguous().mT if x.dim() > 1 else x for x in scan_inputs(17, 2)]
    tensors[2] = tensors[2][:1].expand(HEADS)

    def summed(function: Any) -> Any:
        return lambda *tensors: function(*tensors, chunk_length=16)[0].sum()

    twins = summed(state_space_scan), summed(reference.state_space_scan)
    assert_twins(*twins, tensors, tolerance=GRADIENTS)


@pytest.mark.parametrize("started", [False, True])
def test_second_derivatives_of_the_scan(started: bool) -> None:
    tensors = scan_inputs(5, 2, started=started)
    twins = state_space_scan, reference.state_space_scan
    assert_twins(*twins, tensors, tolerance=GRADIENTS, second=True)


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize(("batch", "length"), [(0, 3), (2, 0)])
def test_scan_of_nothing(batch: int, length: int, started: bool) -> None:
    tensors = scan_inputs(length, batch=batch, started=started)
    found = state_space_scan(*tensors)
    for one, other in zip(found, reference.state_space_scan(*tensors), strict=True):
        assert_near(one, other, 0.0)


def test_scan_in_double_precision_is_the_twin() -> None:
    tensors = [x.double() for x in scan_inputs(7)]
    twins = state_space_scan, reference.state_space_scan
    assert_twins(*twins, tensors, tolerance=0.0)


def test_transforms_of_torch_func_see_the_twin() -> None:
    inputs, *others = scan_inputs(2, heads=1)

    def jacobian(function: Any) -> Tensor:
        return torch.func.jacrev(lambda x: function(x, *others)[0])(inputs)

    assert_near(jacobian(state_space_scan), jacobian(reference.state_space_scan), VALUES)


def test_the_same_call_gives_the_same_bits() -> None:
    tensors = scan_inputs(17, heads=2)
    assert_twins(state_space_scan, state_space_scan, tensors, tolerance=0.0, chunk_length=16)


def test_scan_in_float16() -> None:
    assert_half(scan_inputs(17, 2, dtype=torch.float16), chunk_length=16)


@pytest.mark.gpu
@pytest.mark.skipif(
    DEVICE.type != "cuda", reason="Triton's interpreter multiplies bfloat16 matrices wrongly"
)
@pytest.mark.parametrize(("length", "chunk"), [(1, 64), (40, 16), (300, 64), (300, 128)])
def test_scan_in_bfloat16(length: int, chunk: int) -> None:
    tensors = scan_inputs(length, 2, batch=2, width=64, size=128, dtype=torch.bfloat16)
    assert_half(tensors, chunk_length=chunk)


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE.type != "cuda", reason="Triton's interpreter would take minutes")
@pytest.mark.parametrize("chunk", [None, 128])
@pytest.mark.parametrize("products", ["ieee", "tf32"], indirect=True)
def test_scan_of_the_size_of_a_model(products: str, chunk: int | None) -> None:
    tensors = scan_inputs(1000, batch=2, heads=8, width=64, size=128)
    precise = [x.double() for x in tensors]
    tolerance = GRADIENTS if products == "ieee" else 1e-2
    values = state_space_scan(*tensors, chunk_length=chunk)
    assert_all_near(values, reference.state_space_scan(*precise), tolerance)
    found = gradients(state_space_scan, tensors, chunk_length=chunk)
    assert_all_near(found, gradients(reference.state_space_scan, precise), tolerance)


def assert_half(tensors: list[Any], **options: Any) -> None:
    """Compare with the twin in float32: values, gradients, and what dtype they come in."""
    dtype, precise = tensors[0].dtype, [x.float() for x in tensors]
    values: Any = state_space_scan(*tensors, **options)
    assert [x.dtype for x in values] == [dtype, torch.float32]
    tolerance = 4 * torch.finfo(dtype).eps
    assert_all_near(values, reference.state_space_scan(*precise), tolerance)
    found = gradients(state_space_scan, tensors, **options)
    assert [x.dtype for x in found] == [x.dtype for x in tensors]
    assert_all_near(found, gradients(reference.state_space_scan, precise), tolerance)


def gradients(
    function: Any, tensors: list[Any], *through: int, **options: Any
) -> tuple[Tensor, ...]:
    """Return every input's gradient through some outputs, all where none is named."""
    leaves = [x if x is None else x.detach().requires_grad_() for x in tensors]
    outputs = function(*leaves, **options)
    flowing = [outputs[i] for i in through or range(2)]
    upstream = [draw(*x.shape, seed=8).to(x.dtype) for x in flowing]
    return torch.autograd.grad(
        flowing, [x for x in leaves if x is not None], upstream, materialize_grads=True
    )


def assert_all_near(found: Sequence[Any], expected: Sequence[Any], tolerance: float) -> None:
    for one, other in zip(found, expected, strict=True):
        assert_near(one.to(other.dtype), other, tolerance)
