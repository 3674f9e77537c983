"""Products with a weight against torch's own."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from implicit_models.kernels.linear import linear

WEIGHTS = {"square": (32, 32), "tall": (96, 32), "a little tall": (40, 32), "wide": (32, 96)}
SHAPES = pytest.mark.parametrize("shape", WEIGHTS.values(), ids=WEIGHTS)
ADDED = pytest.mark.parametrize("has_added", [False, True], ids=["alone", "added"])


def operands(
    rows: tuple[int, ...],
    shape: tuple[int, int],
    has_added: bool,
    dtype: torch.dtype = torch.float32,
) -> list[Tensor]:
    draw = torch.Generator().manual_seed(sum(rows) + shape[0])
    sizes = [(*rows, shape[1]), shape, *([(*rows, shape[0])] if has_added else [])]
    return [torch.randn(size, generator=draw, dtype=torch.float64).to(dtype) for size in sizes]


def expected_of(inputs: Tensor, weight: Tensor, added: Tensor | None = None) -> Tensor:
    product = F.linear(inputs.double(), weight.double())
    return product if added is None else product + added.double()


def assert_near(found: Tensor, expected: Tensor, dtype: torch.dtype = torch.float32) -> None:
    assert found.dtype == dtype
    assert found.is_contiguous()
    size = expected.detach().abs().max().item() if expected.numel() else 0.0
    tolerance = torch.finfo(dtype).eps * 8
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance * size)


@ADDED
@SHAPES
@pytest.mark.parametrize("num_rows", range(11))
def test_product(num_rows: int, shape: tuple[int, int], has_added: bool) -> None:
    tensors = operands((num_rows,), shape, has_added)
    before = [x.clone() for x in tensors]
    with torch.no_grad():
        found = linear(*tensors)
    assert found.shape == (num_rows, shape[0])
    assert_near(found, expected_of(*tensors))
    assert all(torch.equal(x, y) for x, y in zip(tensors, before, strict=True))
    assert all(found.data_ptr() != x.data_ptr() for x in tensors if found.numel())


@ADDED
@SHAPES
@pytest.mark.parametrize("num_rows", [0, 1, 2, 4, 5, 9])
def test_gradients(num_rows: int, shape: tuple[int, int], has_added: bool) -> None:
    tensors = operands((num_rows,), shape, has_added)
    leaves = [x.requires_grad_() for x in tensors]
    found, expected = linear(*leaves), expected_of(*leaves)
    assert_near(found, expected)
    upstream = operands((num_rows,), (shape[1], shape[0]), False)[0]
    slopes = torch.autograd.grad(found, leaves, upstream)
    for one, other in zip(
        slopes, torch.autograd.grad(expected, leaves, upstream.double()), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-4)


@ADDED
@SHAPES
@pytest.mark.parametrize(
    "rows", [(), (1, 1), (1, 3), (2, 1), (2, 2, 2), (3, 7), (0, 4), (2, 0), (2, 3, 4)], ids=str
)
def test_product_of_any_number_of_dimensions(
    rows: tuple[int, ...], shape: tuple[int, int], has_added: bool
) -> None:
    tensors = operands(rows, shape, has_added)
    for follows in (False, True):
        with torch.set_grad_enabled(follows):
            found = linear(*tensors)
        assert found.shape == (*rows, shape[0])
        assert_near(found, expected_of(*tensors))


@ADDED
@SHAPES
@pytest.mark.parametrize("num_rows", [0, 1, 3, 9])
def test_product_in_bfloat16(num_rows: int, shape: tuple[int, int], has_added: bool) -> None:
    tensors = operands((num_rows,), shape, has_added, torch.bfloat16)
    for follows in (False, True):
        with torch.set_grad_enabled(follows):
            found = linear(*tensors)
        assert_near(found, expected_of(*tensors), torch.bfloat16)


@ADDED
@pytest.mark.parametrize("num_rows", [1, 3, 9])
def test_product_of_any_strides(num_rows: int, has_added: bool) -> None:
    inputs, weight, *added = operands((2, num_rows), (40, 32), has_added)
    strided = [x.mT.contiguous().mT for x in (inputs, weight, *added)]
    with torch.no_grad():
        found = linear(*strided)
        last = linear(inputs[:, -1], weight, *(x[:, -1] for x in added))
    expected = expected_of(inputs, weight, *added)
    assert_near(found, expected)
    assert_near(last, expected[:, -1])


def test_batch_mates_change_a_row_by_rounding_alone() -> None:
    inputs, weight = operands((10,), (96, 32), False)
    with torch.no_grad():
        together = linear(inputs, weight)
        for number in range(1, 10):
            torch.testing.assert_close(linear(inputs[:number], weight), together[:number])


@SHAPES
def test_what_is_not_finite_stays_so(shape: tuple[int, int]) -> None:
    for value in (torch.nan, torch.inf):
        inputs, weight = operands((3,), shape, False)
        inputs[1, 2] = value
        with torch.no_grad():
            assert linear(inputs, weight).isfinite().all(-1).tolist() == [True, False, True]
