"""The attention and the gate in C against the reference: values and every gradient."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from implicit_models.kernels import reference
from implicit_models.kernels.dispatch import native_kernels
from implicit_models.kernels.native import kernels as native
from tests.kernels import twins
from tests.kernels.twins import assert_near, assert_twins, poison

# Around the tile of 64 tokens and the rows that a product takes at once.
LENGTHS = (1, 2, 3, 5, 17, 63, 64, 65, 130)
GRADIENTS = 1e-5

try:
    NATIVE = native_kernels()
except OSError as missing:
    pytest.skip(f"the kernels in C do not run here: {missing}", allow_module_level=True)


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    poison(monkeypatch)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return twins.draw(*shape, seed=seed).cpu()


def angles(length: int, width: int) -> tuple[Tensor, Tensor]:
    turned = torch.arange(length)[:, None] * torch.linspace(1, 0.01, width // 2).repeat(2)
    return turned.cos()[None, :, None], turned.sin()[None, :, None]


def attention_inputs(
    length: int, *, heads: int = 4, groups: int = 2, width: int = 6, batch: int = 2
) -> list[Tensor]:
    """Draw queries, keys and values, and return them with the rotations."""
    sizes = (heads, groups, groups)
    drawn = [draw(batch, length, size, width, seed=i) for i, size in enumerate(sizes)]
    return [*drawn, *angles(length, width)]


def without_rotations(function: Callable[..., Tensor], inputs: list[Tensor]) -> Any:
    """Return attention as a function of queries, keys and values alone."""
    return lambda queries, keys, values: function(queries, keys, values, *inputs[3:])


def assert_attends(inputs: list[Tensor], **options: Any) -> None:
    native, twin = (
        without_rotations(kernels, inputs)
        for kernels in (NATIVE.causal_attention, reference.causal_attention)
    )
    assert_near(native(*inputs[:3]), twin(*inputs[:3]), 1e-5)
    assert_twins(native, twin, inputs[:3], tolerance=GRADIENTS, **options)


@pytest.mark.parametrize("length", LENGTHS)
def test_attention(length: int) -> None:
    # One token attends to itself alone: its query and its key have gradients of rounding errors.
    assert_attends(attention_inputs(length), floor=1.0 if length == 1 else 0.0)


@pytest.mark.parametrize("width", [2, 16, 20, 64, 130])
@pytest.mark.parametrize(("heads", "groups"), [(1, 1), (3, 1), (4, 4), (6, 2)], ids=str)
def test_attention_of_another_shape(heads: int, groups: int, width: int) -> None:
    assert_attends(attention_inputs(19, heads=heads, groups=groups, width=width, batch=1))


def test_attention_written_out() -> None:
    queries, keys, values, cosine, sine = attention_inputs(70, heads=2)
    turned = [reference.rotate(x, cosine, sine) for x in (queries, keys)]
    scores = torch.einsum("bihp,bjhp->bhij", *turned) / queries.shape[-1] ** 0.5
    later = torch.ones(70, 70, dtype=torch.bool).triu(1)
    shares = scores.masked_fill(later, -torch.inf).softmax(-1)
    expected = torch.einsum("bhij,bjhp->bihp", shares, values)
    found = NATIVE.causal_attention(queries, keys, values, cosine, sine)
    assert_near(found, expected, 1e-5)


@pytest.mark.parametrize("cut", [1, 30, 64, 100])
def test_later_tokens_change_nothing_to_the_bit(cut: int) -> None:
    inputs = attention_inputs(130)
    whole = NATIVE.causal_attention(*inputs)
    assert torch.equal(whole[:, :cut], NATIVE.causal_attention(*(x[:, :cut] for x in inputs)))


def test_batch_mates_and_threads_change_nothing_to_the_bit() -> None:
    inputs = attention_inputs(70, batch=5)
    leaves = [x.requires_grad_() for x in inputs[:3]]
    upstream, threads = draw(*inputs[0].shape, seed=9), torch.get_num_threads()

    def gradients(rows: slice) -> list[Tensor]:
        outputs = NATIVE.causal_attention(*(x[rows] for x in leaves), *inputs[3:])
        return [outputs.detach(), *torch.autograd.grad(outputs, leaves, upstream[rows])]

    whole = gradients(slice(None))
    try:
        torch.set_num_threads(threads + 2)
        alone = gradients(slice(1, 2))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(alone[0], whole[0][1:2])
    for one, other in zip(alone[1:], whole[1:], strict=True):
        assert torch.equal(one[1:2], other[1:2])


def test_large_scores_do_not_overflow() -> None:
    """As near to the truth as scores of this size can be rounded."""
    queries, keys, values, cosine, sine = attention_inputs(70)
    inputs = [queries * 100, keys * 100, values, cosine, sine]
    truth = reference.causal_attention(*(x.double() for x in inputs))
    largest = inputs[0].norm(dim=-1).max() * inputs[1].norm(dim=-1).max() / 6**0.5
    allowed = torch.finfo(torch.float32).eps * largest * values.abs().max()
    assert allowed < 0.05
    assert (NATIVE.causal_attention(*inputs) - truth).abs().max() <= allowed


@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_what_is_not_finite_shows_from_its_token_on(broken: float) -> None:
    inputs = attention_inputs(70)
    inputs[0][1, 66] = broken
    found = NATIVE.causal_attention(*inputs).isfinite().all(-1).all(-1)
    assert found[0].all()
    assert found[1].tolist() == [token != 66 for token in range(70)]


@pytest.mark.parametrize(("batch", "length"), [(0, 3), (2, 0)])
def test_attention_of_nothing(batch: int, length: int) -> None:
    inputs = attention_inputs(length, batch=batch)
    assert NATIVE.causal_attention(*inputs).shape == inputs[0].shape


def test_strides_do_not_matter() -> None:
    queries, keys, values, *rotations = attention_inputs(9, groups=4)
    inputs = torch.stack((queries, keys, values), -1).unbind(-1)
    assert not inputs[0].is_contiguous()
    assert_attends([*inputs, *rotations])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_another_precision_takes_the_reference(dtype: torch.dtype) -> None:
    inputs = [x.to(dtype) for x in attention_inputs(9)]
    found = NATIVE.causal_attention(*inputs)
    assert torch.equal(found, reference.causal_attention(*inputs))


def test_second_derivatives() -> None:
    inputs = attention_inputs(7)
    with sdpa_kernel(SDPBackend.MATH):  # fused attention has none
        assert_attends(inputs, second=True)


def test_a_transform_takes_the_reference() -> None:
    inputs = attention_inputs(5)
    with sdpa_kernel(SDPBackend.MATH):
        found = vmap(lambda q: NATIVE.causal_attention(q[None], *(x[:1] for x in inputs[1:])))(
            inputs[0]
        )
        expected = reference.causal_attention(inputs[0][:1], *(x[:1] for x in inputs[1:]))
    assert_near(found[0], expected, 1e-5)


def test_sizes_that_do_not_fit_are_refused() -> None:
    """What the annotations say is checked in tests alone."""
    queries, keys, values, cosine, sine = attention_inputs(9)
    with pytest.raises(ValueError, match="values has the shape"):
        native._check_heads(queries, keys, values[:, :8], cosine, sine)
    with pytest.raises(ValueError, match="sine has the shape"):
        native._check_heads(queries, keys, values, cosine, sine[:, :8])
    with pytest.raises(ValueError, match="3 heads of 6 numbers with keys of 2 heads"):
        native._check_heads(queries[:, :, :3], keys, values, cosine, sine)


@pytest.mark.parametrize("size", [(1,), (3, 17), (2, 3, 4099)], ids=str)
def test_swiglu(size: tuple[int, ...]) -> None:
    gate, up = draw(*size), draw(*size, seed=1)

    def twin(gate: Tensor, up: Tensor) -> Tensor:
        return F.silu(gate) * up

    assert_twins(NATIVE.swiglu, twin, [gate, up], tolerance=GRADIENTS)
    assert_twins(NATIVE.swiglu, twin, [gate, up], tolerance=GRADIENTS, second=True)
    expected = twin(gate, up)
    assert_near(reference.swiglu(gate.clone().requires_grad_(), up).detach(), expected, 1e-6)
    with torch.no_grad():
        assert_near(reference.swiglu(gate.clone(), up), expected, 1e-6)
        assert_near(NATIVE.swiglu(gate.clone(), up), expected, 1e-6)


def test_swiglu_of_large_numbers() -> None:
    gate = torch.tensor([-200.0, -90.0, 0.0, 90.0, 200.0])
    with torch.no_grad():
        found = NATIVE.swiglu(gate.clone(), torch.ones(5))
    torch.testing.assert_close(found, torch.tensor([0.0, 0.0, 0.0, 90.0, 200.0]))
