"""What trainings and evaluations cost, against torch's counter."""

import dataclasses
import itertools
import math
from typing import Any

import pytest
import torch

from implicit_models.cost.flops import model_flops
from implicit_models.cost.meter import Measurement
from implicit_models.cost.passes import (
    cost,
    cost_to_loss,
    reading_flops,
    step_flops,
    training_flops,
)
from implicit_models.equilibrium.gradients import ImplicitFunction, Phantom, Unrolled
from implicit_models.equilibrium.jacobian import JacobianPenalty
from implicit_models.equilibrium.phase import Phase, bounded_phase, search_phase
from implicit_models.equilibrium.solvers import Picard
from implicit_models.equilibrium.stopping import FixedSteps, ResidualBelow
from implicit_models.equilibrium.window import Window
from tests.cost.counting import count
from tests.language_models.kinds import IMPLICIT, model_of, tokens

BATCH = 3
STEPS = 3
SEARCH = Phase(Picard(0.8), FixedSteps(STEPS), None)
FREE = dataclasses.replace(SEARCH, gradient=Phantom(2, 0.8))
PENALISED = dataclasses.replace(FREE, penalty=JacobianPenalty(0.1, num_samples=2))
CHECKPOINTED = dataclasses.replace(FREE, gradient=Phantom(2, 0.8, checkpointing=True))
CHECKPOINTED_BOUNDED = Phase(Picard(), FixedSteps(0), Unrolled(2, checkpointing=True))
PHASES = {
    "bounded": bounded_phase(4),
    "free": FREE,
    "penalised": PENALISED,
    "checkpointed": CHECKPOINTED,
    "checkpointed bounded": CHECKPOINTED_BOUNDED,
}


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("length", [1, 21])
@pytest.mark.parametrize("kind", IMPLICIT)
def test_reading_with_a_fixed_number_of_steps(kind: str, length: int, normalised: bool) -> None:
    model = model_of(kind, weight_normalisation=normalised)

    def read() -> None:
        with torch.inference_mode():
            model(tokens(BATCH, length), use_cache=False, phase=SEARCH)

    found = reading_flops(
        model_flops(model),
        length=length,
        num_sequences=BATCH,
        search_evaluations=STEPS * BATCH * length,
    )
    assert found == count(read)


@pytest.mark.parametrize("piece_length", [1, 5, 6])
@pytest.mark.parametrize("kind", IMPLICIT)
def test_reading_in_pieces(kind: str, piece_length: int) -> None:
    model, text = model_of(kind), tokens(BATCH, 12)

    @torch.inference_mode()
    def read() -> None:
        cache = None
        for piece in text.split(piece_length, dim=1):
            output = model(piece, past_key_values=cache, use_cache=True, phase=SEARCH)
            cache = output.past_key_values

    found = reading_flops(
        model_flops(model),
        length=12,
        num_sequences=BATCH,
        search_evaluations=STEPS * BATCH * 12,
        piece_length=piece_length,
    )
    assert found == pytest.approx(count(read), rel=1e-12)


@pytest.mark.parametrize(("width", "patience"), [(1, 1), (4, 1), (4, 12)])
@pytest.mark.parametrize("kind", IMPLICIT)
def test_searching_through_a_window_costs_about_what_torch_counts(
    kind: str, width: int, patience: int
) -> None:
    model, text = model_of(kind).requires_grad_(False), tokens(BATCH, 32)
    phase = search_phase(3e-2, 100, 0.8, Window(width, patience))
    searches = []
    counted = count(
        lambda: searches.append(model(text, use_cache=False, phase=phase).search.token_evaluations)
    )
    found = reading_flops(
        model_flops(model),
        length=32,
        num_sequences=BATCH,
        search_evaluations=float(searches[0].sum()),
        window=width,
    )
    assert found == pytest.approx(counted, rel=0.05)


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("phase", PHASES.values(), ids=PHASES)
@pytest.mark.parametrize("kind", IMPLICIT)
def test_a_training_step(kind: str, phase: Phase, normalised: bool) -> None:
    model = model_of(kind, weight_normalisation=normalised)
    flops = model_flops(model)
    for length, checkpointing in itertools.product((1, 6), (False, True)):
        if checkpointing and phase.penalty:
            continue  # checkpointed blocks cannot be differentiated twice
        model.model.gradient_checkpointing = checkpointing

        def step(length: int = length) -> None:
            ids = tokens(BATCH, length)
            model(ids, labels=ids, use_cache=False, phase=phase).loss.backward()

        found = step_flops(
            flops,
            phase,
            length=length,
            num_sequences=BATCH,
            search_evaluations=phase.stopping.max_steps * BATCH * length,
            checkpointing=checkpointing,
        )
        assert found == count(step), (length, checkpointing)


def test_a_gradient_that_solves_is_refused() -> None:
    gradient = ImplicitFunction(Picard(), ResidualBelow(1e-3, 10))
    flops = model_flops(model_of(IMPLICIT[0]))
    for phase in (SEARCH, dataclasses.replace(SEARCH, gradient=gradient)):
        with pytest.raises(ValueError, match="follow from Unrolled and from Phantom"):
            step_flops(flops, phase, length=4, num_sequences=1)


@pytest.mark.parametrize(
    "phase", [None, bounded_phase(4), FREE], ids=["explicit", *list(PHASES)[:2]]
)
@pytest.mark.parametrize("family", ["mamba2", "llama"])
def test_a_training_costs_the_sum_of_its_steps(family: str, phase: Phase | None) -> None:
    model = model_of(f"{family}-{'implicit' if phase else 'explicit'}")
    flops, lengths = model_flops(model), [4, 21, 4, 7, 21, 21]
    steps = 0 if phase is None else phase.stopping.max_steps
    separate = sum(
        step_flops(
            flops,
            phase,
            length=length,
            num_sequences=BATCH,
            search_evaluations=steps * BATCH * length,
        )
        for length in lengths
    )
    together = training_flops(
        flops,
        phase,
        lengths=iter(lengths),
        batch_size=BATCH,
        search_evaluations=steps * BATCH * sum(lengths),
    )
    assert together == pytest.approx(separate, rel=1e-12)
    assert training_flops(flops, phase, lengths=[], batch_size=BATCH) == 0


def test_costs_that_nobody_knows_are_none() -> None:
    measured = Measurement(seconds=4.0, peak_memory_bytes=10, energy_joules=None)
    assert cost(600.0, 200, measured) == {
        "flops": 600.0,
        "flops_per_token": 3.0,
        "seconds": 4.0,
        "tokens_per_second": 50.0,
        "peak_memory_bytes": 10,
        "energy_joules": None,
    }
    nothing = cost(None, 0, dataclasses.replace(measured, seconds=0.0, energy_joules=2.0))
    assert nothing["flops_per_token"] is None
    assert nothing["tokens_per_second"] is None
    assert nothing["energy_joules"] == 2.0


def row(step: int, **losses: Any) -> dict[str, Any]:
    totals = {"tokens": 10 * step, "training_flops": 1e3 * step, "seconds": step / 2}
    return {"step": step, **totals, **losses}


def test_what_a_loss_had_cost_when_it_was_first_reached() -> None:
    history = [
        row(10, loss=3.0),
        row(20, loss=math.nan, validation_loss=2.5),
        row(30, loss=2.0, validation_loss=None),
        row(32, loss=2.2, validation_loss=1.0),
        row(50, loss=1.0),
    ]
    at_30 = {"step": 30, "tokens": 300, "flops": 3e4, "seconds": 15.0}
    assert cost_to_loss(history, 2.0) == at_30
    assert cost_to_loss(history, 2.1) == at_30
    reached = cost_to_loss(history, 2.0, "validation_loss")
    assert reached is not None and reached["step"] == 32
    assert cost_to_loss(history, 0.5) is None
    assert cost_to_loss([], 0.5) is None
    assert cost_to_loss([{"step": 1, "loss": 0.1}], 0.5) == {
        "step": 1,
        "tokens": None,
        "flops": None,
        "seconds": None,
    }
