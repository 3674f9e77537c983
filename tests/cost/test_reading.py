"""What readings cost, against torch's counter."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from implicit_models.cost.flops import model_flops
from implicit_models.cost.reading import reading_flops
from implicit_models.equilibrium.phase import Phase, search_phase
from implicit_models.equilibrium.solvers import Picard
from implicit_models.equilibrium.stopping import FixedSteps
from implicit_models.equilibrium.window import Window
from implicit_models.families.costs import Past
from tests.cost.counting import count
from tests.language_models.kinds import IMPLICIT, mask_of, model_of, tokens

BATCH = 3
FIXED = Phase(Picard(0.8), FixedSteps(3), None)
WHOLE = search_phase(3e-2, 100, 0.8)
WINDOWS = [
    search_phase(3e-2, 100, 0.8, Window(width, patience))
    for width, patience in ((1, 1), (4, 1), (4, 12), (32, 2), (100, 1))
]


def name(phase: Phase) -> str:
    """Name it in the tests' own."""
    if phase.window is None:
        return type(phase.stopping).__name__
    return f"window of {phase.window.width}, patience {phase.window.patience}"


def counted(work: Callable[[], Any]) -> tuple[int, Any]:
    """Return the FLOPs that torch counts of some work, and its result."""
    results = []
    with torch.no_grad():  # in inference mode whole operations come to the counter, to take apart
        flops = count(lambda: results.append(work()))
    return flops, results[0]


def flops_of(model: Any, length: int, output: Any, phase: Phase, **given: Any) -> float:
    flops = model_flops(model)
    return BATCH * length * flops.head + reading_flops(
        flops,
        num_sequences=BATCH,
        length=length,
        search=output.search,
        window=phase.window.width if phase.window else None,
        **given,
    )


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("length", [1, 21])
@pytest.mark.parametrize("kind", IMPLICIT)
def test_searching_whole_sequences(kind: str, length: int, normalised: bool) -> None:
    model = model_of(kind, weight_normalisation=normalised)
    for phase in (FIXED, WHOLE):
        expected, output = counted(
            lambda phase=phase: model(tokens(BATCH, length), use_cache=False, phase=phase)
        )
        assert flops_of(model, length, output, phase) == expected


@pytest.mark.parametrize("phase", [FIXED, WINDOWS[1], WINDOWS[3]])
@pytest.mark.parametrize("piece_length", [1, 5, 6])
@pytest.mark.parametrize("kind", IMPLICIT)
def test_reading_in_pieces(kind: str, piece_length: int, phase: Phase) -> None:
    model, cache, start = model_of(kind), None, 0
    for piece in tokens(BATCH, 12).split(piece_length, dim=1):
        expected, output = counted(
            lambda piece=piece, cache=cache: model(piece, cache=cache, use_cache=True, phase=phase)
        )
        past = Past(lengths=np.full(BATCH, start), reach=start)
        assert flops_of(model, piece.shape[1], output, phase, past=past) == expected
        cache, start = output.cache, start + piece.shape[1]


@pytest.mark.parametrize("length", [3, 37])
@pytest.mark.parametrize("phase", WINDOWS, ids=name)
@pytest.mark.parametrize("kind", IMPLICIT)
def test_searching_through_a_window(kind: str, phase: Phase, length: int) -> None:
    model = model_of(kind)
    expected, output = counted(lambda: model(tokens(BATCH, length), use_cache=False, phase=phase))
    assert flops_of(model, length, output, phase) == expected


@pytest.mark.parametrize("phase", [FIXED, WHOLE, *WINDOWS[1:4]], ids=name)
@pytest.mark.parametrize("kind", IMPLICIT)
def test_sequences_of_unequal_lengths_one_after_another(kind: str, phase: Phase) -> None:
    model, cache, past = model_of(kind), None, Past.empty(BATCH)
    for spans in ([(0, 20), (0, 3), (0, 11)], [(0, 0), (0, 20), (0, 7)]):
        mask = mask_of(spans, 20)
        expected, output = counted(
            lambda mask=mask, cache=cache: model(
                tokens(BATCH, 20), mask, cache, use_cache=True, phase=phase
            )
        )
        lengths = mask.sum(1).numpy()
        found = flops_of(model, 20, output, phase, past=past, num_tokens=lengths)
        assert found == expected
        lengths = past.lengths + lengths
        cache, past = output.cache, Past(lengths=lengths, reach=int(lengths.max()))


@pytest.mark.parametrize("kind", IMPLICIT)
def test_a_search_that_explodes(kind: str) -> None:
    model, phase = model_of(kind), search_phase(1e-6, 20, 1.0, Window(4, 1))
    text = tokens(BATCH, 12)
    with torch.no_grad():
        model.get_input_embeddings().weight[text[0, 5]] = torch.inf
    expected, output = counted(lambda: model(text, use_cache=False, phase=phase))
    assert not output.search.value.isinf().any() and (output.search.result == 2).any()
    assert flops_of(model, 12, output, phase) == expected
