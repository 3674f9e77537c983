"""Padding changes nothing: every real token gets what its sequence gets alone."""

import dataclasses
from typing import Any

import pytest
import torch

from implicit_models.equilibrium.anderson import Anderson
from implicit_models.equilibrium.gradients import Gradient, ImplicitFunction, Phantom, Unrolled
from implicit_models.equilibrium.phase import Phase, bounded_phase, search_phase
from implicit_models.equilibrium.solution import Solution
from implicit_models.equilibrium.solvers import Picard
from implicit_models.equilibrium.stopping import FixedSteps, ResidualBelow
from implicit_models.equilibrium.window import Window
from implicit_models.language_models.modelling import Mamba2LanguageModel
from implicit_models.language_models.padding import Alignment
from tests.language_models.models import EXPLICIT, IMPLICIT, small_model, tokens

LENGTH = 7
SPANS = {  # first token and one beyond the last, for each row
    "left": [(4, 7), (1, 7), (0, 7)],
    "right": [(0, 5), (0, 6), (0, 7)],
    "both": [(2, 6), (6, 7), (0, 1)],
    "none": [(0, 7), (0, 7), (0, 7)],
    "a row of padding alone": [(2, 5), (0, 0), (3, 7)],
    "padding alone": [(0, 0), (0, 0), (0, 0)],
}
TIGHT = ResidualBelow(1e-10, 2000)


def phase_with(gradient: Gradient | None, window: Window | None) -> Phase:
    return Phase(Picard(), TIGHT, gradient, window)


PHASES = {
    "explicit": None,
    "search": search_phase(1e-10, 2000, 1.0),
    "window": search_phase(1e-10, 2000, 0.9, Window(3, 1)),
    "one token": search_phase(1e-10, 2000, 1.0, Window(1, 1)),
    "fixed steps": Phase(Picard(), FixedSteps(7), None),
    "anderson": Phase(Anderson(), TIGHT, None),
    "bounded": bounded_phase(4),
    "phantom": phase_with(Phantom(3, 0.8), Window(3)),
    "implicit": phase_with(ImplicitFunction(Picard(), TIGHT), None),
    "unrolled": phase_with(Unrolled(3), Window(20)),
}


def mask_of(spans: list[tuple[int, int]], length: int = LENGTH) -> torch.Tensor:
    positions = torch.arange(length)
    return torch.stack([(positions >= first) & (positions < last) for first, last in spans])


def model_for(phase: Phase | None) -> Mamba2LanguageModel:
    model = small_model(EXPLICIT if phase is None else IMPLICIT)
    assert isinstance(model, Mamba2LanguageModel)
    return model


def assert_close(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(
    ("side", "name"),
    [
        (side, name)
        for side in SPANS
        for name in PHASES
        if side == "both" or name in ("explicit", "window")
    ],
)
def test_real_tokens_get_what_they_get_alone(side: str, name: str) -> None:
    spans, phase = SPANS[side], PHASES[name]
    model, text = model_for(phase), tokens(3, LENGTH)
    padded = model(text, phase, model.initial_carry(3), mask_of(spans))
    for row, (first, last) in enumerate(spans):
        if first == last:
            carry = model.initial_carry(1)
        else:
            alone = model(text[row : row + 1, first:last], phase, model.initial_carry(1))
            assert_close(padded.logits[row, first:last], alone.logits[0])
            carry = alone.carry
            if alone.search is not None:
                assert_search(padded.search, alone.search, row, first, last)
        for block, expected in zip(padded.carry.blocks, carry.blocks, strict=True):
            assert_close([each[row] for each in block], [each[0] for each in expected])
    assert padded.logits.isfinite().all()


def assert_search(padded: Solution, alone: Solution, row: int, first: int, last: int) -> None:
    for name in ("value", "steps", "residual", "result"):
        there, expected = getattr(padded, name)[row], getattr(alone, name)[0]
        there = there[first:last] if there.dim() else there
        if name == "residual":  # all of it lies below the tolerance
            torch.testing.assert_close(there, expected, rtol=1e-2, atol=1e-10, equal_nan=True)
        elif name != "value":
            assert torch.equal(there, expected), name
        else:
            assert_close(there, expected)
    assert padded.depth[row] == alone.depth[0]


@pytest.mark.parametrize("name", ["explicit", "bounded", "phantom", "implicit", "unrolled"])
def test_gradients_are_those_of_the_sequences_alone(name: str) -> None:
    phase, spans = PHASES[name], SPANS["both"]
    text, mask, grads = tokens(3, LENGTH), mask_of(spans), []
    for is_padded in (True, False):
        model = model_for(phase)
        if is_padded:
            model(text, phase, None, mask).logits[mask].sin().sum().backward()
        else:
            for row, (first, last) in enumerate(spans):
                logits = model(text[row : row + 1, first:last], phase).logits
                logits.sin().sum().backward()
        grads.append([parameter.grad for parameter in model.parameters()])
    assert_close(*grads)


@pytest.mark.parametrize("name", ["explicit", "search", "window", "bounded"])
def test_what_stands_in_the_padding_is_never_read(name: str) -> None:
    phase, mask = PHASES[name], mask_of(SPANS["both"])
    model, text = model_for(phase), tokens(3, LENGTH)
    other = torch.where(mask, text, (text + 3) % 11)
    first, second = (model(each, phase, None, mask).logits[mask] for each in (text, other))
    assert_close(first, second)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32])
def test_tokens_move_to_the_left_and_back(dtype: torch.dtype) -> None:
    for spans in SPANS.values():
        mask, text = mask_of(spans), torch.arange(21).view(3, LENGTH)
        alignment = Alignment.of(mask.to(dtype), text)
        assert alignment.lengths.tolist() == [last - first for first, last in spans]
        moved = alignment.to_the_left(text)
        for row, (first, last) in enumerate(spans):
            assert torch.equal(moved[row, : last - first], text[row, first:last])
        assert torch.equal(alignment.back(moved), text)


@pytest.mark.parametrize("shape", [(0, 4), (2, 0), (0, 0)])
def test_empty_batches(shape: tuple[int, int]) -> None:
    text = torch.zeros(shape, dtype=torch.int64)
    alignment = Alignment.of(torch.ones(shape, dtype=torch.bool), text)
    assert alignment.to_the_left(text).shape == alignment.back(text).shape == shape


def test_a_search_per_token_moves_back_and_one_per_sequence_stays() -> None:
    alignment = Alignment.of(mask_of([(1, 3), (0, 2)], 3), torch.zeros(2, 3, dtype=torch.int64))
    rows = torch.tensor([[1, 2, 0], [3, 4, 0]])
    search = Solution(
        value=rows[..., None].double(),
        steps=rows,
        residual=rows.double(),
        result=rows.to(torch.uint8),
        depth=rows[:, 0],
        token_evaluations=rows[:, 1],
    )
    back = alignment.search_back(search)
    for name in ("steps", "residual", "result"):
        assert getattr(back, name).tolist() == [[0, 1, 2], [3, 4, 0]]
    assert back.value[..., 0].tolist() == [[0, 1, 2], [3, 4, 0]]
    whole = dataclasses.replace(
        search, steps=rows[:, 0], residual=rows[:, 0].double(), result=rows[:, 0].to(torch.uint8)
    )
    for name in ("steps", "residual", "result", "depth", "token_evaluations"):
        assert torch.equal(getattr(alignment.search_back(whole), name), getattr(whole, name))


def test_holes_are_named() -> None:
    mask = torch.tensor([[1, 0, 1, 1], [0, 1, 1, 0], [0, 1, 0, 1], [0, 0, 0, 0]])
    with pytest.raises(ValueError, match=r"attention_mask has holes in rows \[0, 2\]"):
        Alignment.of(mask, torch.zeros(4, 4, dtype=torch.int64))
    with pytest.raises(ValueError, match="attention_mask has holes"):
        small_model(EXPLICIT)(tokens(4, 4), None, None, mask.bool())


@pytest.mark.parametrize("shape", [(4, 3), (3, 4), (1, 4), (4,), (4, 4, 1)])
def test_another_shape_is_named(shape: tuple[int, ...]) -> None:
    match = r"attention_mask has the shape \([\d, ]*\); it must be that of the tokens, \(4, 4\)"
    with pytest.raises(ValueError, match=match):
        Alignment.of(torch.ones(shape, dtype=torch.bool), torch.zeros(4, 4, dtype=torch.int64))
