"""The kernels in C against the reference: values and every gradient."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from implicit_models.equilibrium.stopping import relative_residual
from implicit_models.kernels.dispatch import Kernels, native_kernels, reference_kernels
from implicit_models.kernels.mixer import MixerSettings, MixerWeights
from tests.kernels import twins
from tests.kernels.twins import assert_near, poison

VALUES, GRADIENTS = 1e-5, 1e-4
LENGTHS = (1, 2, 7, 31, 33, 70)
NAMES = ("projected", "tail", "state", *MixerWeights._fields)
REFERENCE = reference_kernels()

try:
    NATIVE = native_kernels()
except OSError as missing:
    pytest.skip(f"the kernels in C do not run here: {missing}", allow_module_level=True)


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    poison(monkeypatch)


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return twins.draw(*shape, seed=seed, dtype=dtype).cpu()


def mixer_inputs(
    length: int,
    *,
    groups: int = 2,
    heads: int = 4,
    width: int = 3,
    size: int = 5,
    taps: int = 4,
    batch: int = 2,
    carried: bool = True,
    dtype: torch.dtype = torch.float32,
) -> list[Any]:
    """Draw projected, tail, state and weights, in the order of `NAMES`."""
    inner = heads * width
    channels = inner + 2 * groups * size
    return [
        draw(batch, length, inner + channels + heads, dtype=dtype),
        draw(batch, taps - 1, channels, seed=7, dtype=dtype) if carried else None,
        draw(batch, heads, width, size, seed=8) if carried else None,
        draw(channels, taps, seed=1, dtype=dtype),
        draw(channels, seed=2, dtype=dtype),
        draw(heads, seed=3, dtype=dtype),
        -draw(heads, seed=4).exp(),
        draw(heads, seed=5, dtype=dtype),
        draw(inner, seed=6, dtype=dtype),
    ]


def settings_of(groups: int = 2, chunk: int | None = None) -> MixerSettings:
    return MixerSettings(groups, 1e-5, chunk)


def mix_of(kernels: Kernels, settings: MixerSettings) -> Callable[..., Tensor]:
    """Return the mixer as a function of tensors in the order of `NAMES`."""

    def mix(projected: Tensor, tail: Any, state: Any, *weights: Tensor) -> Tensor:
        return kernels.mix(projected, MixerWeights(*weights), settings, tail, state)

    return mix


def advance_of(
    kernels: Kernels, settings: MixerSettings, counts: Tensor | None = None
) -> Callable[..., tuple[Tensor, Tensor]]:
    def advance(
        projected: Tensor, tail: Any, state: Any, *weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        return kernels.advance(projected, MixerWeights(*weights), settings, tail, state, counts)

    return advance


def gradients(
    function: Callable[..., Any], tensors: Sequence[Any], **options: Any
) -> list[Tensor | None]:
    """Return the gradient of every tensor there is."""
    leaves = [x if x is None else x.detach().requires_grad_() for x in tensors]
    outputs = function(*leaves)
    upstream = draw(*outputs.shape, seed=9, dtype=outputs.dtype)
    present = [x for x in leaves if x is not None]
    found = torch.autograd.grad(outputs, present, upstream, materialize_grads=True, **options)
    rest = iter(found)
    return [None if x is None else next(rest) for x in leaves]


def assert_mixes(
    tensors: Sequence[Any],
    settings: MixerSettings,
    values: float = VALUES,
    slopes: float = GRADIENTS,
) -> None:
    """Compare values, with and without a gradient, and every gradient."""
    native, twin = mix_of(NATIVE, settings), mix_of(REFERENCE, settings)
    expected = twin(*tensors)
    assert_near(native(*tensors), expected, values)
    needing = [x if x is None else x.detach().requires_grad_() for x in tensors]
    assert_near(native(*needing).detach(), expected, values)
    assert_all_near(gradients(native, tensors), gradients(twin, tensors), slopes)


def assert_all_near(found: Sequence[Any], expected: Sequence[Any], tolerance: float) -> None:
    for name, one, other in zip(NAMES, found, expected, strict=False):
        try:
            assert_near(one, other, tolerance)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error
    assert len(found) == len(expected)


def assert_same(found: Sequence[Any], expected: Sequence[Any]) -> None:
    assert_all_near(found, expected, 0.0)


def no_gradient(*tensors: Any) -> list[Any]:
    return [x if x is None else x.detach() for x in tensors]


@pytest.mark.parametrize("carried", [False, True])
@pytest.mark.parametrize("length", LENGTHS)
def test_mix(length: int, carried: bool) -> None:
    assert_mixes(mixer_inputs(length, carried=carried), settings_of())


@pytest.mark.parametrize("chunk", [1, 7, 16, 100])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_mix_in_chunks(groups: int, chunk: int) -> None:
    assert_mixes(mixer_inputs(33, groups=groups), settings_of(groups, chunk))


@pytest.mark.parametrize("carried", [False, True])
@pytest.mark.parametrize(
    ("width", "size"),
    [(1, 1), (3, 5), (5, 3), (20, 33), (33, 20), (48, 64), (64, 48), (16, 16)],
    ids=str,
)
def test_mix_of_another_width(width: int, size: int, carried: bool) -> None:
    tensors = mixer_inputs(18, width=width, size=size, batch=1, carried=carried)
    assert_mixes(tensors, settings_of(chunk=7))


@pytest.mark.parametrize("carried", [False, True])
@pytest.mark.parametrize("length", [1, 2, 7])
@pytest.mark.parametrize("taps", [1, 2, 3, 4])
def test_mix_with_a_convolution_of_another_width(taps: int, length: int, carried: bool) -> None:
    assert_mixes(mixer_inputs(length, taps=taps, carried=carried), settings_of())


@pytest.mark.parametrize("batch", [1, 3, 9])
@pytest.mark.parametrize(("heads", "groups"), [(1, 1), (3, 1), (6, 2), (8, 1), (8, 8)], ids=str)
def test_mix_however_heads_are_shared_out(heads: int, groups: int, batch: int) -> None:
    tensors = mixer_inputs(9, heads=heads, groups=groups, batch=batch)
    assert_mixes(tensors, settings_of(groups))


@pytest.mark.parametrize("given", ["tail", "state"])
@pytest.mark.parametrize("length", [1, 9])
def test_mix_with_half_a_carry(length: int, given: str) -> None:
    tensors = mixer_inputs(length)
    tensors[2 if given == "tail" else 1] = None
    assert_mixes(tensors, settings_of())


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize(("width", "size"), [(3, 5), (20, 33), (64, 48)], ids=str)
def test_a_single_token(width: int, size: int, groups: int) -> None:
    tensors = mixer_inputs(1, groups=groups, width=width, size=size, batch=3)
    before = [x.clone() for x in tensors]
    settings = settings_of(groups)
    assert_mixes(tensors, settings)
    found = advance_of(NATIVE, settings)(*tensors)
    for one, other in zip(found, advance_of(REFERENCE, settings)(*tensors), strict=True):
        assert_near(one, other, VALUES)
    assert_same(tensors, before)


@pytest.mark.parametrize("counts", [None, [0, 1, 33], [33, 0, 0], [32, 31, 7]], ids=str)
@pytest.mark.parametrize("chunk", [None, 7, 16])
def test_advance(chunk: int | None, counts: list[int] | None) -> None:
    tensors, settings = mixer_inputs(33, batch=3), settings_of(chunk=chunk)
    before = [x.clone() for x in tensors]
    tokens = None if counts is None else torch.tensor(counts)
    found = advance_of(NATIVE, settings, tokens)(*tensors)
    expected = advance_of(REFERENCE, settings, tokens)(*tensors)
    for one, other in zip(found, expected, strict=True):
        assert_near(one, other, VALUES)
    for row, count in enumerate(counts or ()):
        if not count:
            assert torch.equal(found[0][row], tensors[1][row])
            assert torch.equal(found[1][row], tensors[2][row])
    assert_same(tensors, before)


@pytest.mark.parametrize("counts", [[0, 1], [1, 0]], ids=str)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_advance_by_a_token_or_none(counts: list[int], dtype: torch.dtype) -> None:
    tensors, tokens = mixer_inputs(1), torch.tensor(counts, dtype=dtype)
    found = advance_of(NATIVE, settings_of(), tokens)(*tensors)
    expected = advance_of(REFERENCE, settings_of(), tokens)(*tensors)
    for one, other in zip(found, expected, strict=True):
        assert_near(one, other, VALUES)
    assert torch.equal(found[1][counts.index(0)], tensors[2][counts.index(0)])


def test_advance_for_a_gradient() -> None:
    tensors = mixer_inputs(7)

    def flat(kernels: Kernels) -> Callable[..., Tensor]:
        advance = advance_of(kernels, settings_of(), torch.tensor([3, 7]))
        return lambda *tensors: torch.cat([x.flatten() for x in advance(*tensors)])

    assert_all_near(
        gradients(flat(NATIVE), tensors), gradients(flat(REFERENCE), tensors), GRADIENTS
    )


@pytest.mark.parametrize("taps", [1, 4])
def test_pieces_give_the_whole(taps: int) -> None:
    projected, tail, state, *weights = mixer_inputs(33, taps=taps)
    settings = settings_of(chunk=16)
    mix, advance = mix_of(NATIVE, settings), advance_of(NATIVE, settings)
    expected = mix(projected, tail, state, *weights)
    after, found = (tail, state), []
    for first, last in pairwise((0, 1, 2, 9, 33)):
        piece = projected[:, first:last]
        found.append(mix(piece, *after, *weights))
        after = advance(piece, *after, *weights)
    assert_near(torch.cat(found, 1), expected, VALUES)
    for one, other in zip(after, advance(projected, tail, state, *weights), strict=True):
        assert_near(one, other, VALUES)


@pytest.mark.parametrize("carried", [False, True])
@pytest.mark.parametrize(("batch", "length"), [(0, 3), (0, 1), (2, 0)])
def test_mix_of_nothing(batch: int, length: int, carried: bool) -> None:
    tensors = mixer_inputs(length, batch=batch, carried=carried)
    assert_mixes(tensors, settings_of())


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize(("batch", "length"), [(0, 3), (0, 1), (2, 0)])
def test_advance_by_nothing(batch: int, length: int, counted: bool) -> None:
    tensors = mixer_inputs(length, batch=batch)
    counts = torch.zeros(batch, dtype=torch.int64) if counted else None
    found = advance_of(NATIVE, settings_of(), counts)(*tensors)
    assert_same(found, tensors[1:3])


@pytest.mark.parametrize(("length", "carried"), [(1, True), (2, False), (40, False), (40, True)])
@pytest.mark.parametrize("groups", [1, 2])
def test_bfloat16(groups: int, length: int, carried: bool) -> None:
    """As near to the reference in float32 as the reference in bfloat16, up to a rounding."""
    tensors = mixer_inputs(length, groups=groups, carried=carried, dtype=torch.bfloat16)
    precise = [x if x is None else x.float() for x in tensors]
    settings, rounding = settings_of(groups, 16), torch.finfo(torch.bfloat16).eps
    native, twin = mix_of(NATIVE, settings), mix_of(REFERENCE, settings)
    found = [native(*tensors), *gradients(native, tensors)]
    rounded = [twin(*tensors), *gradients(twin, tensors)]
    expected = [twin(*precise), *gradients(twin, precise)]
    if carried:
        found += advance_of(NATIVE, settings)(*tensors)
        rounded += advance_of(REFERENCE, settings)(*tensors)
        expected += advance_of(REFERENCE, settings)(*precise)
    for one, half, truth in zip(found, rounded, expected, strict=True):
        if truth is not None:
            assert one.dtype == half.dtype
            allowed = (half.float() - truth).abs().max() + rounding * truth.abs().max()
            assert (one.float() - truth).abs().max() <= allowed


def test_bfloat16_with_weights_in_float32() -> None:
    tensors = [x.bfloat16().float() for x in mixer_inputs(9)]
    projected, tail, state, *weights = tensors
    native, settings = mix_of(NATIVE, settings_of()), settings_of()
    found = native(projected.bfloat16(), tail.bfloat16(), state, *weights)
    tolerance = 4 * torch.finfo(torch.bfloat16).eps
    assert found.dtype == torch.bfloat16
    assert_near(found.float(), mix_of(REFERENCE, settings)(*tensors), tolerance)


@pytest.mark.parametrize("needed", range(len(NAMES)), ids=NAMES)
def test_a_gradient_of_one_input_alone(needed: int) -> None:
    tensors = mixer_inputs(9)

    def alone(kernels: Kernels) -> Callable[..., Tensor]:
        mix = mix_of(kernels, settings_of())
        return lambda x: mix(*tensors[:needed], x, *tensors[needed + 1 :])

    found, expected = (gradients(alone(each), [tensors[needed]]) for each in (NATIVE, REFERENCE))
    assert_all_near(found, expected, GRADIENTS)


def test_a_gradient_may_be_asked_for_twice() -> None:
    leaves = [x.requires_grad_() for x in mixer_inputs(9)]
    outputs = mix_of(NATIVE, settings_of())(*leaves)
    upstream = draw(*outputs.shape, seed=9)
    first = torch.autograd.grad(outputs, leaves, upstream, retain_graph=True)
    assert_same(torch.autograd.grad(outputs, leaves, upstream), first)


def second_derivatives(function: Callable[..., Tensor], tensors: Sequence[Any]) -> list[Any]:
    """Return the gradients, and those of a sum of them, also with respect to what flows back."""
    leaves = [x if x is None else x.detach().requires_grad_() for x in tensors]
    present = [x for x in leaves if x is not None]
    outputs = function(*leaves)
    upstream = draw(*outputs.shape, seed=9).requires_grad_()
    slopes = torch.autograd.grad(outputs, present, upstream, create_graph=True)
    total = torch.stack([(x * draw(*x.shape, seed=10)).sum() for x in slopes]).sum()
    return no_gradient(*slopes, *torch.autograd.grad(total, [*present, upstream]))


@pytest.mark.parametrize(("length", "carried"), [(1, True), (5, False), (5, True)])
def test_second_derivatives(length: int, carried: bool) -> None:
    tensors = mixer_inputs(length, carried=carried)
    found, expected = (
        second_derivatives(mix_of(each, settings_of()), tensors) for each in (NATIVE, REFERENCE)
    )
    assert_all_near(found, expected, GRADIENTS)


def test_second_derivatives_where_one_input_is_computed_from_another() -> None:
    """As in a search of several self-iterations that all apply the same weights."""

    def twice(kernels: Kernels) -> Callable[..., Tensor]:
        mix = mix_of(kernels, settings_of())

        def folded(projected: Tensor, *others: Tensor) -> Tensor:
            mixed = mix(projected, *others)
            return mix(projected * mixed.mean(-1, keepdim=True), *others)

        return folded

    tensors = mixer_inputs(5)
    found, expected = (second_derivatives(twice(each), tensors) for each in (NATIVE, REFERENCE))
    assert_all_near(found, expected, GRADIENTS)


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
def test_transforms_of_torch_func_see_the_reference() -> None:
    projected, *others = mixer_inputs(3, batch=1)

    def jacobian(kernels: Kernels) -> Tensor:
        return torch.func.jacrev(lambda x: mix_of(kernels, settings_of())(x, *others))(projected)

    def mapped(kernels: Kernels) -> Tensor:
        rows = draw(4, *projected.shape)
        return torch.func.vmap(lambda x: mix_of(kernels, settings_of())(x, *others))(rows)

    def normed(kernels: Kernels) -> Tensor:
        return torch.func.jacrev(lambda x: kernels.rms_norm(x, draw(6, seed=1), 1e-5))(draw(2, 6))

    def directional(kernels: Kernels) -> Tensor:
        mix = mix_of(kernels, settings_of())
        return torch.func.jvp(lambda x: mix(x, *others), (projected,), (projected + 1,))[1]

    def updated(kernels: Kernels) -> Tensor:
        def update(hidden: Tensor) -> Tensor:
            return kernels.normed_update(hidden, draw(6, seed=1), 1e-5, draw(2, 6), 0.5)[0]

        return torch.func.jacrev(update)(draw(2, 6))

    for each in (jacobian, mapped, normed, directional, updated):
        assert_near(each(NATIVE), each(REFERENCE), VALUES)


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
def test_several_gradients_at_once() -> None:
    tensors = mixer_inputs(3)

    def several(kernels: Kernels) -> list[Tensor]:
        leaves = [x.detach().requires_grad_() for x in tensors]
        outputs = mix_of(kernels, settings_of())(*leaves)
        upstream = draw(3, *outputs.shape, seed=9)
        return list(torch.autograd.grad(outputs, leaves, upstream, is_grads_batched=True))

    def several_of_a_norm(kernels: Kernels) -> list[Tensor]:
        leaves = [draw(2, 6).requires_grad_(), draw(6, seed=1).requires_grad_()]
        outputs = kernels.rms_norm(*leaves, 1e-5)
        upstream = draw(3, *outputs.shape, seed=9)
        return list(torch.autograd.grad(outputs, leaves, upstream, is_grads_batched=True))

    for each in (several, several_of_a_norm):
        assert_all_near(each(NATIVE), each(REFERENCE), GRADIENTS)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
def test_derivatives_in_forward_mode() -> None:
    """No kernel may drop a tangent in silence."""
    projected, *others = mixer_inputs(3)

    def tangents(kernels: Kernels) -> list[Any]:
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(projected, projected + 1)
            mixed = mix_of(kernels, settings_of())(dual, *others)
            hidden = forward_ad.make_dual(draw(2, 6), draw(2, 6, seed=1))
            normed = kernels.rms_norm(hidden, draw(6, seed=2), 1e-5)
            following, _ = kernels.normed_update(hidden, draw(6, seed=2), 1e-5, draw(2, 6), 0.5)
            outputs = [mixed, normed, following]
            return [forward_ad.unpack_dual(x).tangent for x in outputs]

    assert_all_near(tangents(NATIVE), tangents(REFERENCE), GRADIENTS)


@contextmanager
def threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("length", "heads"), [(1, 4), (70, 4), (300, 4)])
def test_threads_change_no_bit(length: int, heads: int) -> None:
    tensors = mixer_inputs(length, heads=heads, width=33, size=48, batch=3)
    counts = torch.arange(3) * (length // 2)
    value = draw(300, 70, seed=2)

    def everything() -> list[Any]:
        mix = mix_of(NATIVE, settings_of())
        return [
            mix(*tensors),
            *gradients(mix, tensors),
            *advance_of(NATIVE, settings_of())(*tensors),
            *advance_of(NATIVE, settings_of(), counts)(*tensors),
            NATIVE.rms_norm(value, draw(70), 1e-5),
            *NATIVE.normed_update(value, draw(70), 1e-5, value - 1, 0.5),
        ]

    with threads(1):
        expected = everything()
    for number in (2, 5):
        with threads(number):
            for one, other in zip(everything(), expected, strict=True):
                assert torch.equal(one, other)


@pytest.mark.parametrize(("heads", "groups"), [(8, 8), (4, 1)], ids=str)
@pytest.mark.parametrize("length", [1, 9, 40])
def test_batch_mates_change_nothing(length: int, heads: int, groups: int) -> None:
    """Values to the bit; gradients too where the batch does not change how heads are shared out."""
    tensors = mixer_inputs(length, heads=heads, groups=groups, batch=3)
    settings = settings_of(groups)
    mix, advance = mix_of(NATIVE, settings), advance_of(NATIVE, settings)
    together, after = mix(*tensors), advance(*tensors)
    slopes: list[Any] = gradients(mix, tensors)[:3]
    upstream = draw(*together.shape, seed=9)
    for row in range(3):
        alone: list[Any] = [x[row : row + 1] for x in tensors[:3]] + tensors[3:]
        assert torch.equal(mix(*alone)[0], together[row])
        for one, other in zip(advance(*alone), after, strict=True):
            assert torch.equal(one[0], other[row])
        leaves = [x.detach().requires_grad_() for x in alone]
        found = torch.autograd.grad(mix(*leaves), leaves[:3], upstream[row : row + 1])
        for one, other in zip(found, slopes, strict=True):
            assert_near(one[0], other[row], 0.0 if heads == groups else 1e-6)


def test_the_same_call_gives_the_same_bits() -> None:
    tensors, mix = mixer_inputs(33), mix_of(NATIVE, settings_of())
    assert torch.equal(mix(*tensors), mix(*tensors))
    assert_same(gradients(mix, tensors), gradients(mix, tensors))


def test_double_precision_is_the_reference() -> None:
    tensors = [x.double() for x in mixer_inputs(9)]
    native, twin = mix_of(NATIVE, settings_of()), mix_of(REFERENCE, settings_of())
    assert torch.equal(native(*tensors), twin(*tensors))
    assert_same(gradients(native, tensors), gradients(twin, tensors))
    after = (advance_of(each, settings_of())(*tensors) for each in (NATIVE, REFERENCE))
    assert_same(*after)
    hidden, weight = draw(3, 6, dtype=torch.float64), draw(6, dtype=torch.float64)
    expected = REFERENCE.rms_norm(hidden, weight, 1e-5)
    assert torch.equal(NATIVE.rms_norm(hidden, weight, 1e-5), expected)
    found = NATIVE.normed_update(hidden, weight, 1e-5, hidden, 0.5)
    assert_same(found, REFERENCE.normed_update(hidden, weight, 1e-5, hidden, 0.5))


@pytest.mark.parametrize("length", [1, 9])
def test_any_strides_and_an_expanded_gradient(length: int) -> None:
    tensors = [x.mT.contiguous().mT if x.dim() > 1 else x for x in mixer_inputs(length)]
    tensors[0] = draw(2, length, tensors[0].shape[2] + 9)[..., 4:-5]
    tensors[7] = tensors[7][:1].expand(4)
    assert not any(x.is_contiguous() for x in (tensors[0], *tensors[2:4], tensors[7]))
    assert_mixes(tensors, settings_of())
    for counts in (None, torch.tensor([0, length])):
        found = advance_of(NATIVE, settings_of(), counts)(*tensors)
        expected = advance_of(REFERENCE, settings_of(), counts)(*tensors)
        for one, other in zip(found, expected, strict=True):
            assert_near(one, other, VALUES)

    def summed(kernels: Kernels) -> Callable[..., Tensor]:
        return lambda *tensors: mix_of(kernels, settings_of())(*tensors).sum()

    found, expected = (gradients(summed(each), tensors) for each in (NATIVE, REFERENCE))
    assert_all_near(found, expected, GRADIENTS)


def test_a_long_decay_overflows_nowhere() -> None:
    """Against float64: the reference's own gradients of a long decay cancel in float32."""
    tensors = mixer_inputs(70, heads=4)
    tensors[0][..., -4:] = tensors[0][..., -4:].abs() * 200
    precise = [x.double() for x in tensors]
    native, twin = mix_of(NATIVE, settings_of()), mix_of(REFERENCE, settings_of())
    assert_near(native(*tensors).double(), twin(*precise), VALUES)
    found = [x.double() for x in gradients(native, tensors) if x is not None]
    assert_all_near(found, gradients(twin, precise), GRADIENTS)
    after = [x.double() for x in advance_of(NATIVE, settings_of())(*tensors)]
    for one, other in zip(after, advance_of(REFERENCE, settings_of())(*precise), strict=True):
        assert_near(one, other, VALUES)


@pytest.mark.parametrize("length", [1, 4])
def test_a_kernel_reads_and_writes_subnormal_numbers_as_zeros(length: int) -> None:
    """Which take Intel's processors a hundred times as long; outside they are what they were."""
    tensors = mixer_inputs(length)
    tensors[0] = torch.zeros_like(tensors[0])
    tensors[4] = torch.zeros_like(tensors[4])  # the convolution's bias and its tail: no inputs
    tensors[1] = torch.zeros_like(tensors[1])
    tensors[0][..., -4:] = 20.0 / length
    tensors[6], least = -torch.ones(4), torch.finfo(torch.float32).smallest_normal
    tensors[5] = torch.zeros(4)
    tensors[2] = torch.full_like(tensors[2], 1e-30)
    tensors[2][1] = 1.0
    _, expected = advance_of(REFERENCE, settings_of())(*tensors)
    assert expected[0].min() > 0 and expected[0].max() < least
    _, found = advance_of(NATIVE, settings_of())(*tensors)
    assert not found[0].any()
    assert_near(found[1], expected[1], VALUES)
    assert expected[0].mul(0.5).min() > 0  # the caller's arithmetic is as before


def test_small_time_steps_keep_their_digits() -> None:
    tensors = mixer_inputs(33)
    tensors[0][..., -4:] -= 12.0
    tensors[7], tensors[2] = torch.zeros_like(tensors[7]), torch.zeros_like(tensors[2])
    settings = MixerSettings(2, 1e-20)  # nothing but the time step sets the size of what is normed
    assert_near(
        mix_of(NATIVE, settings)(*tensors), mix_of(REFERENCE, settings)(*tensors), GRADIENTS
    )


@pytest.mark.parametrize("scale", [1e3, 1e6])
def test_large_numbers_overflow_nowhere(scale: float) -> None:
    tensors = mixer_inputs(9)
    tensors[0] = tensors[0] * torch.tensor(scale)
    tensors[0][..., -4:] /= scale
    found = mix_of(NATIVE, settings_of())(*tensors)
    assert found.isfinite().all()
    assert_near(found, mix_of(REFERENCE, settings_of())(*tensors), VALUES)


PLACES = {
    "gate": ("projected", (0, 3, 2)),
    "inputs": ("projected", (0, 3, 14)),
    "input_map": ("projected", (0, 3, 25)),
    "output_map": ("projected", (0, 3, 40)),
    "time_step": ("projected", (0, 3, -2)),
    "tail": ("tail", (0, 1, 4)),
    "state": ("state", (0, 1, 2, 3)),
    "convolution": ("convolution", (5, 2)),
    "convolution_bias": ("convolution_bias", (5,)),
    "time_step_bias": ("time_step_bias", (1,)),
    "decay_rate": ("decay_rate", (1,)),
    "skip": ("skip", (1,)),
    "norm": ("norm", (5,)),
}


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf], ids=str)
@pytest.mark.parametrize("place", PLACES)
def test_what_is_not_finite_stays_so(place: str, value: float) -> None:
    """A token's group that the recurrence, token by token, leaves not finite, no kernel does.

    Which numbers of it are not depends on the order of sums: the norm makes 0 of others.
    """
    tensors = mixer_inputs(9)
    name, index = PLACES[place]
    tensors[NAMES.index(name)][index] = value
    native = mix_of(NATIVE, settings_of())
    # In chunks of one token nothing flows back in time, as it does through a masked product.
    recurrence = mix_of(REFERENCE, settings_of(chunk=1))
    for projected in (tensors[0], tensors[0][:, 3:4]):
        inputs = (projected, *tensors[1:])
        expected, found = recurrence(*inputs), native(*inputs)
        assert not (finite_groups(found) & ~finite_groups(expected)).any()
        if name in ("projected", "tail", "state"):
            assert found[1].isfinite().all()
        if (place, value) == ("decay_rate", -torch.inf):
            continue  # what decays at once is finite, though the reference subtracts infinities
        after = advance_of(NATIVE, settings_of())(*inputs)
        for one, other in zip(after, advance_of(REFERENCE, settings_of())(*inputs), strict=True):
            assert torch.equal(one.isfinite(), other.isfinite())


def finite_groups(mixed: Tensor) -> Tensor:
    return mixed.isfinite().unflatten(-1, (2, -1)).all(-1)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf], ids=str)
def test_what_is_not_finite_flows_back(value: float) -> None:
    tensors = mixer_inputs(9)
    leaves = [x.requires_grad_() for x in tensors]
    outputs = mix_of(NATIVE, settings_of())(*leaves)
    upstream = torch.ones_like(outputs)
    upstream[0, 3, 2] = value
    found = torch.autograd.grad(outputs, leaves, upstream)
    outputs = mix_of(REFERENCE, settings_of(chunk=1))(*leaves)
    expected = torch.autograd.grad(outputs, leaves, upstream)
    for one, other in zip(found, expected, strict=True):
        assert not (one.isfinite() & ~other.isfinite()).any()


@pytest.mark.parametrize("rows", [(), (1,), (2, 7), (2, 3, 1), (130,)])
@pytest.mark.parametrize("width", [2, 3, 17, 48, 70])
def test_norm(rows: tuple[int, ...], width: int) -> None:
    tensors = [draw(*rows, width + 2)[..., :width], draw(width, seed=1)]

    def norm(kernels: Kernels) -> Callable[..., Tensor]:
        return lambda hidden, weight: kernels.rms_norm(hidden, weight, 1e-5)

    assert_near(norm(NATIVE)(*tensors), norm(REFERENCE)(*tensors), VALUES)
    found, expected = (gradients(norm(each), tensors) for each in (NATIVE, REFERENCE))
    assert_all_near(found, expected, GRADIENTS)


@pytest.mark.parametrize("rows", [(0,), (2, 0)])
def test_norm_and_update_of_nothing(rows: tuple[int, ...]) -> None:
    tensors = [draw(*rows, 6), draw(6)]
    found, expected = (
        gradients(lambda *x, each=each: each.rms_norm(*x, 1e-5), tensors)
        for each in (NATIVE, REFERENCE)
    )
    assert_same(found, expected)
    arguments = (*tensors, 1e-5, draw(*rows, 6), 0.5)
    assert_same(NATIVE.normed_update(*arguments), REFERENCE.normed_update(*arguments))


def test_second_derivatives_of_the_norm() -> None:
    def norm(kernels: Kernels, *, folded: bool) -> Callable[..., Tensor]:
        def apply(hidden: Tensor, weight: Tensor) -> Tensor:
            return kernels.rms_norm(hidden * weight if folded else hidden, weight, 1e-5)

        return apply

    for folded in (False, True):
        found, expected = (
            second_derivatives(norm(each, folded=folded), [draw(3, 6), draw(6, seed=1)])
            for each in (NATIVE, REFERENCE)
        )
        assert_all_near(found, expected, GRADIENTS)


@pytest.mark.parametrize(
    ("hidden", "weight"),
    [
        (torch.float32, torch.bfloat16),
        (torch.bfloat16, torch.bfloat16),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float64),
    ],
    ids=str,
)
def test_norm_of_mixed_precision(hidden: torch.dtype, weight: torch.dtype) -> None:
    tensors = [draw(3, 20, dtype=hidden), draw(20, seed=1, dtype=weight)]
    tolerance = max(VALUES, *(torch.finfo(x.dtype).eps for x in tensors))
    found, expected = NATIVE.rms_norm(*tensors, 1e-5), REFERENCE.rms_norm(*tensors, 1e-5)
    assert_near(found, expected, tolerance)
    found, expected = (
        gradients(lambda *x, each=each: each.rms_norm(*x, 1e-5), tensors)
        for each in (NATIVE, REFERENCE)
    )
    assert_all_near(found, expected, 4 * tolerance)


@pytest.mark.parametrize("damping", [1.0, 0.7, 0.3])
@pytest.mark.parametrize("rows", [(), (3,), (2, 7), (2, 3, 1), (130,)])
def test_update(rows: tuple[int, ...], damping: float) -> None:
    hidden, weight = draw(*rows, 40)[..., :37], draw(37, seed=1)
    value = draw(*rows, 41, seed=2)[..., 2:39]
    before = value.clone()
    found = NATIVE.normed_update(hidden, weight, 1e-5, value, damping)
    expected = REFERENCE.normed_update(hidden, weight, 1e-5, value, damping)
    assert_all_near(found, expected, VALUES)
    assert torch.equal(value, before)


@pytest.mark.filterwarnings("ignore:(overflow|invalid):RuntimeWarning")
@pytest.mark.parametrize("damping", [1.0, 0.5])
def test_update_at_the_ends_of_the_range(damping: float) -> None:
    """A row each: f vanishes, f and the value do, f is NaN, the value is, f's size overflows."""
    hidden, value, weight = draw(5, 4), draw(5, 4, seed=1), draw(4, seed=2)
    hidden[:2], value[1] = 0.0, 0.0
    hidden[2, 1], value[3, 2] = torch.nan, torch.nan
    ordinary = (hidden, weight, 1e-5, value, damping)
    found, expected = NATIVE.normed_update(*ordinary), REFERENCE.normed_update(*ordinary)
    assert_all_near(found, expected, VALUES)
    assert found[1].isnan().tolist() == [False, False, True, True, False]

    beyond = (hidden[4:], 1e30 * weight, 1e-5, value[4:], damping)
    found = NATIVE.normed_update(*beyond)
    assert_all_near(found, REFERENCE.normed_update(*beyond), VALUES)
    assert found[1].tolist() == [torch.inf]


@pytest.mark.parametrize("damping", [1.0, 0.5])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf], ids=str)
def test_update_hides_nothing_that_is_not_finite(value: float, damping: float) -> None:
    for place in range(3):
        tensors = [draw(2, 20), draw(20, seed=1), draw(2, 20, seed=2)]
        tensors[place].view(-1)[3] = value
        hidden, weight, before = tensors
        found = NATIVE.normed_update(hidden, weight, 1e-5, before, damping)
        expected = REFERENCE.normed_update(hidden, weight, 1e-5, before, damping)
        assert not expected[1][0].isfinite()
        assert found[1].isfinite().tolist() == expected[1].isfinite().tolist()
        assert found[0].isfinite().all(-1).tolist() == expected[0].isfinite().all(-1).tolist()


def test_update_for_a_gradient_is_the_reference() -> None:
    tensors = [draw(3, 5), draw(5, seed=1), draw(3, 5, seed=2)]

    def flat(kernels: Kernels) -> Callable[..., Tensor]:
        def update(hidden: Tensor, weight: Tensor, value: Tensor) -> Tensor:
            outputs = kernels.normed_update(hidden, weight, 1e-5, value, 0.5)
            return torch.cat([x.flatten() for x in outputs])

        return update

    assert_same(gradients(flat(NATIVE), tensors), gradients(flat(REFERENCE), tensors))


@pytest.mark.parametrize("wrong", ["tail", "state", "convolution_bias", "decay_rate", "projected"])
def test_sizes_that_do_not_fit_are_named(wrong: str) -> None:
    channels, heads, inner, size = 24, 2, 8, 8
    sizes = {
        "projected": (3, 5, inner + channels + heads),
        "tail": (3, 3, channels),
        "state": (3, heads, inner // heads, size),
        "convolution_bias": (channels,),
        "decay_rate": (heads,),
    }
    sizes[wrong] = (*sizes[wrong][:-1], sizes[wrong][-1] + 1)
    projected, tail, state, bias, rate = (torch.zeros(size) for size in sizes.values())
    weights = MixerWeights(
        torch.zeros(channels, 4), bias, torch.zeros(heads), rate, torch.zeros(heads),
        torch.zeros(inner),
    )  # fmt: skip
    with pytest.raises(ValueError, match=f"{wrong} has the shape"):
        NATIVE.mix(projected, weights, MixerSettings(1, 1e-5), tail, state)


def test_tensors_without_memory_go_to_the_reference() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        normed = NATIVE.rms_norm(torch.ones(2, 8), torch.ones(8), 1e-5)
    assert normed.shape == (2, 8)
    with torch.device("meta"):
        hidden = torch.ones(2, 8, device="cpu")
        assert torch.equal(NATIVE.rms_norm(hidden, hidden[0], 0.0), torch.ones(2, 8, device="cpu"))


def test_an_update_is_the_norm_a_step_and_the_relative_residual() -> None:
    draw = torch.Generator().manual_seed(0)
    hidden, value = (torch.randn(3, 7, 12, generator=draw) for _ in "ab")
    weight = torch.randn(12, generator=draw)
    for kernels in (REFERENCE, NATIVE):
        for damping in (0.3, 0.8, 1.0):
            evaluated = torch.nn.functional.rms_norm(hidden, (12,), weight, 1e-5)
            found = kernels.normed_update(hidden, weight, 1e-5, value, damping)
            expected = value.lerp(evaluated, damping), relative_residual(value, evaluated)
            torch.testing.assert_close(found, expected)
