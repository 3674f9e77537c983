"""Padding changes nothing, wherever it stands: every real token gets what its text alone gives."""

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
from implicit_models.language_models.losses import IGNORED
from implicit_models.language_models.modelling import ImplicitForCausalLM
from implicit_models.language_models.padding import Alignment
from tests.language_models.models import (
    EXPLICIT,
    EXPLICIT_FAMILIES,
    IMPLICIT_FAMILIES,
    our_model,
    remembered,
    tokens,
)

LENGTH = 7
MASKS = {  # one digit a token, for each row
    "left": "0000111 0111111 1111111",
    "right": "1111100 1111110 1111111",
    "both": "0011110 0000001 1000000",
    "holes": "1011001 0101010 1110111",
    "none": "1111111 1111111 1111111",
    "a row of padding alone": "0011100 0000000 0001111",
    "padding alone": "0000000 0000000 0000000",
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
FAMILIES = pytest.mark.parametrize("family", IMPLICIT_FAMILIES)


def mask_of(rows: str) -> torch.Tensor:
    return torch.tensor([[digit == "1" for digit in row] for row in rows.split()])


def model_for(family: str, phase: Phase | None) -> ImplicitForCausalLM:
    return our_model((EXPLICIT_FAMILIES if phase is None else IMPLICIT_FAMILIES)[family])


def assert_close(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-8, atol=1e-8)


@FAMILIES
@pytest.mark.parametrize(
    ("place", "name"),
    [
        (place, name)
        for place in MASKS
        for name in PHASES
        if place == "holes" or name in ("explicit", "window")
    ],
)
def test_real_tokens_get_what_they_get_alone(family: str, place: str, name: str) -> None:
    mask, phase = mask_of(MASKS[place]), PHASES[name]
    model, text = model_for(family, phase), tokens(3, LENGTH)
    padded = model(text, attention_mask=mask, phase=phase, use_cache=True)
    assert padded.cache.get_seq_length() == LENGTH
    for row, there in enumerate(mask):
        cache = model.initial_cache(1)
        if there.any():
            alone = model(text[row : row + 1, there], phase=phase, cache=cache)
            assert_close(padded.logits[row, there], alone.logits[0])
            if alone.search is not None:
                assert_search(padded.search, alone.search, row, there)
                assert torch.equal(padded.self_iterations[row, there], alone.self_iterations[0])
        if padded.search is not None:
            assert not padded.self_iterations[row, ~there].any()
        assert_close(remembered(padded.cache)[row], remembered(cache)[0])
    assert padded.logits.isfinite().all()


def assert_search(padded: Solution, alone: Solution, row: int, there: torch.Tensor) -> None:
    for name in ("value", "steps", "residual", "result"):
        found, expected = getattr(padded, name)[row], getattr(alone, name)[0]
        found = (
            found[there] if len(found) == len(there) else found
        )  # of each token, or of the whole
        if name == "residual":  # all of it lies below the tolerance
            torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-10, equal_nan=True)
        elif name != "value":
            assert torch.equal(found, expected), name
        else:
            assert_close(found, expected)
    assert padded.depth[row] == alone.depth[0]


@FAMILIES
@pytest.mark.parametrize("name", ["explicit", "bounded", "phantom", "implicit", "unrolled"])
@pytest.mark.parametrize("place", ["both", "holes"])
def test_gradients_are_those_of_the_sequences_alone(family: str, place: str, name: str) -> None:
    phase, mask = PHASES[name], mask_of(MASKS[place])
    text, grads = tokens(3, LENGTH), []
    for is_padded in (True, False):
        model = model_for(family, phase)
        if is_padded:
            logits = model(text, attention_mask=mask, phase=phase).logits
            logits[mask].sin().sum().backward()
        else:
            for row, there in enumerate(mask):
                logits = model(text[row : row + 1, there], phase=phase).logits
                logits.sin().sum().backward()
        grads.append([parameter.grad for parameter in model.parameters()])
    assert_close(*grads)


@FAMILIES
@pytest.mark.parametrize("name", ["explicit", "search", "window", "bounded"])
@pytest.mark.parametrize("place", ["both", "holes"])
def test_what_stands_in_the_padding_is_never_read(family: str, place: str, name: str) -> None:
    phase, mask = PHASES[name], mask_of(MASKS[place])
    model, text = model_for(family, phase), tokens(3, LENGTH)
    other = torch.where(mask, text, (text + 3) % 11)
    first, second = (
        model(each, attention_mask=mask, phase=phase).logits[mask] for each in (text, other)
    )
    assert_close(first, second)


@FAMILIES
@pytest.mark.parametrize("name", ["explicit", "window"])
@torch.no_grad()
def test_a_padded_text_in_pieces_gives_what_the_whole_gives(family: str, name: str) -> None:
    phase, text = PHASES[name], tokens(3, LENGTH)
    model = model_for(family, phase)
    for place in ("left", "holes", "a row of padding alone"):
        mask, cache, pieces = mask_of(MASKS[place]), model.initial_cache(3), []
        whole = model(text, attention_mask=mask, phase=phase)
        for start, end in ((0, 3), (3, 4), (4, LENGTH)):
            output = model(
                text[:, start:end],
                # All tokens so far, as transformers' generate has it, or those of the piece.
                attention_mask=mask[:, :end] if start != 3 else mask[:, start:end],
                phase=phase,
                cache=cache,
            )
            pieces.append(output.logits)
        assert_close(torch.cat(pieces, 1)[mask], whole.logits[mask])
        assert_close(remembered(cache), remembered(whole.cache))


@FAMILIES
@pytest.mark.parametrize("name", ["explicit", "search"])
@pytest.mark.parametrize("place", ["left", "right", "both", "holes", "none"])
def test_a_padded_texts_loss_is_that_of_its_tokens(family: str, place: str, name: str) -> None:
    phase, mask = PHASES[name], mask_of(MASKS[place])
    model, text = model_for(family, phase), tokens(3, LENGTH)
    model.config.label_alignment = "next_token"
    labels = text.masked_fill(~mask, IGNORED)
    found = model(text, attention_mask=mask, labels=labels, phase=phase)
    losses, count = [], 0
    for row, there in enumerate(mask):
        alone, asked = text[row : row + 1, there], int(there.sum()) - 1
        if asked > 0:
            losses.append(asked * model(alone, labels=alone, phase=phase).loss)
            count += asked
    assert_close(found.loss, sum(losses) / count)


@pytest.mark.parametrize("place", ["left", "both"])
def test_the_first_token_is_asked_of_nobody_and_an_end_behind_the_last_one_is(place: str) -> None:
    model, text, mask = model_for("llama", None), tokens(3, LENGTH), mask_of(MASKS[place])
    model.config.label_alignment = "next_token"
    first = mask & (mask.cumsum(1) == 1)
    labels = text.masked_fill(~first, IGNORED)
    assert model(text, attention_mask=mask, labels=labels).loss.isnan()  # of no label
    ends = torch.full_like(text, IGNORED)
    ends[:, -1] = 3
    asked = model(text[:1, 2:], attention_mask=mask_of("11110"), labels=ends[:1, 2:])
    gap = torch.cat([text[:1, :1], text[:1, 2:]], 1)
    padded = model(gap, attention_mask=mask_of("011110"), labels=ends[:1, 1:])
    assert_close(padded.loss, asked.loss)


@pytest.mark.parametrize("alignment", ["next_token", "aligned"])
def test_a_piece_without_tokens_has_no_loss(alignment: str) -> None:
    model = model_for("llama", None)
    model.config.label_alignment = alignment
    mask, nothing = torch.tensor([[1, 1, 1], [1, 0, 1]]), tokens(2, 0)
    cache = model(tokens(2, 3), attention_mask=mask, use_cache=True).cache
    found = model(nothing, attention_mask=mask, labels=nothing, cache=cache)
    assert found.loss.isnan()  # of no label


@FAMILIES
@torch.no_grad()
def test_a_mask_of_the_past_has_as_many_tokens_of_a_row_as_were_read(family: str) -> None:
    model, text, more = model_for(family, None), tokens(2, 4), tokens(2, 1, seed=1)
    mask = torch.tensor([[1, 1, 0, 0], [0, 1, 1, 1]])
    new = torch.ones(2, 1, dtype=torch.long)
    read, padded = model(text).cache, model(text, attention_mask=mask).cache
    for cache, past in ((read, mask), (padded, torch.ones_like(mask)), (padded, mask.flip(0))):
        with pytest.raises(ValueError, match="attention_mask has . of the 4 earlier tokens of row"):
            model(more, attention_mask=torch.cat((past, new), 1), cache=cache.copy())
    for cache, past in ((read, torch.ones_like(mask)), (padded, mask)):
        expected = model(more, cache=cache.copy()).logits
        found = model(more, attention_mask=torch.cat((past, new), 1), cache=cache.copy())
        assert_close(found.logits, expected)
        model(more, attention_mask=torch.cat((past, new, new), 1), cache=found.cache)
    for chosen in ("reorder_cache", "batch_select_indices"):
        cache = padded.copy()
        getattr(cache, chosen)(torch.tensor([1, 0]))
        model(more, attention_mask=torch.cat((mask.flip(0), new), 1), cache=cache)
    cache = padded.copy()
    cache.batch_repeat_interleave(2)
    past = torch.cat((mask, new), 1).repeat_interleave(2, 0)
    model(more.repeat_interleave(2, 0), attention_mask=past, cache=cache)
    cache.reset()
    model(text, attention_mask=mask, cache=cache)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32])
def test_tokens_move_to_the_left_and_back(dtype: torch.dtype) -> None:
    for rows in MASKS.values():
        mask, text = mask_of(rows), torch.arange(21).view(3, LENGTH)
        alignment = Alignment.of(mask.to(dtype), (3, LENGTH))
        assert alignment.lengths.tolist() == mask.sum(1).tolist()
        moved = alignment.to_the_left(text)
        for row, there in enumerate(mask):
            assert torch.equal(moved[row, : there.sum()], text[row, there])
        assert torch.equal(alignment.back(moved), text)


@pytest.mark.parametrize("shape", [(0, 4), (2, 0), (0, 0)])
def test_empty_batches(shape: tuple[int, int]) -> None:
    text = torch.zeros(shape, dtype=torch.int64)
    alignment = Alignment.of(torch.ones(shape, dtype=torch.bool), shape)
    assert alignment.to_the_left(text).shape == alignment.back(text).shape == shape


def test_a_search_per_token_moves_back_and_one_per_sequence_stays() -> None:
    alignment = Alignment.of(mask_of("011 110"), (2, 3))
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
        search,
        steps=rows[:, :1],
        residual=rows[:, :1].double(),
        result=rows[:, :1].to(torch.uint8),
    )
    for name in ("steps", "residual", "result", "depth", "token_evaluations"):
        assert torch.equal(getattr(alignment.search_back(whole), name), getattr(whole, name))


@pytest.mark.parametrize("shape", [(4, 3), (3, 4), (1, 4), (4,), (4, 4, 1)])
def test_another_shape_is_named(shape: tuple[int, ...]) -> None:
    match = r"attention_mask has the shape \([\d, ]*\); it must be that of the tokens, \(4, 4\)"
    with pytest.raises(ValueError, match=match):
        Alignment.of(torch.ones(shape, dtype=torch.bool), (4, 4))


@torch.no_grad()
def test_a_mask_is_of_the_new_tokens_or_of_all() -> None:
    model = our_model(EXPLICIT)
    cache = model(tokens(2, 3)).cache
    for width, past in ((3, None), (5, None), (3, cache), (5, cache), (8, cache)):
        mask = torch.ones(2, width, dtype=torch.int64)
        with pytest.raises(ValueError, match=rf"attention_mask has the shape \(2, {width}\)"):
            model(tokens(2, 4), attention_mask=mask, cache=past)
