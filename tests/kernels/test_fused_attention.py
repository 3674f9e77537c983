"""Rotary positions and SwiGLU in Triton against their twins in plain PyTorch."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytest.importorskip("triton", reason="Triton is there on Linux only")

from implicit_models.kernels import reference
from implicit_models.kernels.fused.rotary import causal_attention, rotate
from implicit_models.kernels.fused.swiglu import swiglu
from tests.kernels.twins import DEVICE, assert_near, assert_twins, draw, poison

# Where a thread of autograd is the first to multiply matrices.
pytestmark = pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS:UserWarning")

HALVES = [torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    poison(monkeypatch)


def heads_and_angles(
    length: int, heads: int = 3, width: int = 6, batch: int = 2, *, own: bool = False
) -> list[Tensor]:
    """Draw heads, and the cosine and sine of all sequences or, where each has its own, of each."""
    angles = draw(batch if own else 1, length, 1, width, seed=1)
    return [draw(batch, length, heads, width), angles.cos(), angles.sin()]


def with_angles(function: Any, cosine: Tensor, sine: Tensor) -> Any:
    return lambda heads: function(heads, cosine, sine)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize(("length", "width"), [(1, 2), (2, 6), (33, 6), (70, 64)])
def test_rotation(length: int, width: int, own: bool) -> None:
    heads, *angles = heads_and_angles(length, width=width, own=own)
    twins = (with_angles(function, *angles) for function in (rotate, reference.rotate))
    assert_twins(*twins, [heads])


def test_rotation_of_any_strides_and_second_derivatives() -> None:
    heads, *angles = (x.mT.contiguous().mT for x in heads_and_angles(5))
    ours, twin = (with_angles(function, *angles) for function in (rotate, reference.rotate))
    assert_twins(ours, twin, [heads], second=True)
    assert_twins(lambda x: ours(x).sum(), lambda x: twin(x).sum(), [heads])


def test_angles_that_have_a_gradient_take_the_twin() -> None:
    assert_twins(rotate, reference.rotate, heads_and_angles(3), tolerance=0.0)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_a_rotation_is_rounded_once(dtype: torch.dtype) -> None:
    heads, cosine, sine = (x.to(dtype) for x in heads_and_angles(9))
    found = rotate(heads, cosine, sine)
    expected = reference.rotate(heads.double(), cosine.double(), sine.double())
    assert found.dtype == dtype
    rounding = 1.01 * torch.finfo(dtype).eps  # the interpreter's bfloat16 drops digits
    torch.testing.assert_close(found.double(), expected, rtol=rounding, atol=1e-6)


@pytest.mark.parametrize("length", [1, 7, 40])
def test_attention(length: int) -> None:
    queries, *angles = heads_and_angles(length, heads=4)
    keys, values = (draw(2, length, 2, 6, seed=seed) for seed in (3, 4))

    def attend(function: Any) -> Any:
        return lambda *inputs: function(*inputs, *angles)

    twins = attend(causal_attention), attend(reference.causal_attention)
    floor = 1.0 if length == 1 else 0.0  # a lone query's gradient is rounding errors
    assert_twins(*twins, [queries, keys, values], floor=floor)


@pytest.mark.parametrize("size", [(1,), (3, 17), (2, 3, 411), (0, 4)], ids=str)
def test_swiglu(size: tuple[int, ...]) -> None:
    gate, up = draw(*size), draw(*size, seed=1)
    assert_twins(swiglu, reference.swiglu, [gate, up])
    expected = F.silu(gate) * up
    with torch.no_grad():
        memory = gate.clone()
        found = swiglu(memory, up)
    assert found.data_ptr() == memory.data_ptr()
    assert_near(found, expected, 1e-6)


def test_swiglu_takes_the_gates_memory_without_gradients_alone_and_says_so() -> None:
    gate, up = draw(3, 4), draw(3, 4, seed=1)
    before = gate.clone()
    swiglu(gate, up)
    assert torch.equal(gate, before)
    leaf = draw(3, 4).requires_grad_()
    gate = leaf.exp()  # whose gradient reads it
    with torch.no_grad():
        swiglu(gate, up)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        gate.sum().backward()


def test_mixed_precisions_take_the_twins() -> None:
    gate, up = draw(3, 4), draw(3, 4, seed=1)
    assert swiglu(gate.bfloat16(), up).dtype == torch.float32
    heads, cosine, sine = heads_and_angles(5)
    assert rotate(heads.bfloat16(), cosine, sine).dtype == torch.float32


def test_second_derivatives_of_swiglu_and_any_strides() -> None:
    gate, up = draw(4, 5), draw(5, 4, seed=1).T
    assert_twins(swiglu, reference.swiglu, [gate, up], second=True)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_swiglu_is_rounded_once(dtype: torch.dtype) -> None:
    inputs = [draw(3, 50, seed=seed, dtype=dtype) for seed in range(3)]
    gate, up = (x.requires_grad_() for x in inputs[:2])
    precise = [x.detach().double().requires_grad_() for x in (gate, up)]
    found, expected = swiglu(gate, up), reference.swiglu(*precise)
    gradients = torch.autograd.grad(found, (gate, up), inputs[2])
    exact = torch.autograd.grad(expected, precise, inputs[2].double())
    for one, other in zip((found, *gradients), (expected, *exact), strict=True):
        assert one.dtype == dtype
        assert_near(one.double(), other, torch.finfo(dtype).eps)


def test_swiglu_of_large_numbers() -> None:
    gate = torch.tensor([-200.0, -90.0, 0.0, 90.0, 200.0], device=DEVICE)
    with torch.no_grad():
        found = swiglu(gate.clone(), torch.ones(5, device=DEVICE))
    torch.testing.assert_close(found.cpu(), torch.tensor([0.0, 0.0, 0.0, 90.0, 200.0]))


def test_transforms_of_torch_func_see_the_twins() -> None:
    heads, *angles = heads_and_angles(2, heads=1, width=2, batch=1)

    def run(functions: Any) -> Any:
        turn, gate = functions
        return torch.func.jacrev(lambda x: gate(turn(x, *angles), x))(heads)

    assert_near(run((rotate, swiglu)), run((reference.rotate, reference.swiglu)), 1e-6)
