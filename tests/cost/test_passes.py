"""What trainings cost, against torch's counter."""

import dataclasses
import itertools

import pytest

from implicit_models.cost.flops import model_flops
from implicit_models.cost.meter import Measurement
from implicit_models.cost.passes import cost, step_flops, training_flops
from implicit_models.equilibrium.gradients import ImplicitFunction, Phantom, Unrolled
from implicit_models.equilibrium.jacobian import JacobianPenalty
from implicit_models.equilibrium.phase import Phase, bounded_phase
from implicit_models.equilibrium.solvers import Picard
from implicit_models.equilibrium.stopping import FixedSteps, ResidualBelow
from implicit_models.equilibrium.window import Window
from implicit_models.families.family import initial_memory
from tests.cost.counting import count
from tests.language_models.kinds import IMPLICIT, KINDS, model_of, tokens

BATCH = 3
STEPS = 3
SEARCH = Phase(Picard(0.8), FixedSteps(STEPS), None)
FREE = dataclasses.replace(SEARCH, gradient=Phantom(2, 0.8))
PENALISED = dataclasses.replace(FREE, penalty=JacobianPenalty(0.1, num_samples=2))
CHECKPOINTED = dataclasses.replace(FREE, gradient=Phantom(2, 0.8, checkpointing=True))
CHECKPOINTED_BOUNDED = Phase(Picard(), FixedSteps(0), Unrolled(2, checkpointing=True))
IMPLICIT_FUNCTION = dataclasses.replace(
    SEARCH, gradient=ImplicitFunction(Picard(0.8), FixedSteps(3))
)
PHASES = {
    "bounded": bounded_phase(4),
    "free": FREE,
    "penalised": PENALISED,
    "checkpointed": CHECKPOINTED,
    "checkpointed bounded": CHECKPOINTED_BOUNDED,
    "implicit function": IMPLICIT_FUNCTION,
}


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


@pytest.mark.parametrize("kind", IMPLICIT)
def test_a_training_step_whose_search_slides_a_window(kind: str) -> None:
    model, ids = model_of(kind), tokens(BATCH, 32)
    phase = dataclasses.replace(FREE, stopping=ResidualBelow(3e-2, 100), window=Window(4, 1))
    outputs = []

    def step() -> None:
        outputs.append(model(ids, labels=ids, use_cache=False, phase=phase))
        outputs[0].loss.backward()

    counted = count(step)
    found = step_flops(
        model_flops(model),
        phase,
        length=32,
        num_sequences=BATCH,
        search_evaluations=float(outputs[0].search.token_evaluations.sum()),
    )
    assert found == pytest.approx(counted, rel=0.05)


@pytest.mark.parametrize("kind", [k for k in KINDS if not k.startswith("llama")])
def test_a_step_that_passes_its_carry_on(kind: str) -> None:
    model, ids = model_of(kind), tokens(BATCH, 32)
    phase = FREE if model.is_implicit else None
    flops = model_flops(model)

    def step(passes_carry: bool) -> None:
        start = initial_memory(model, BATCH)
        memory = start.resumed(start.tensors()) if passes_carry else None
        model(ids, labels=ids, cache=memory, use_cache=passes_carry, phase=phase).loss.backward()

    def found(passes_carry: bool) -> float:
        steps = 0 if phase is None else phase.stopping.max_steps
        evaluations = steps * BATCH * 32
        shape = {"length": 32, "num_sequences": BATCH, "search_evaluations": evaluations}
        return step_flops(flops, phase, passes_carry=passes_carry, **shape)

    plain, passed = count(lambda: step(False)), count(lambda: step(True))
    assert found(False) == plain
    if kind == "sliding-explicit":  # it multiplies the slots before a text, empty or not
        assert passed == plain
    else:
        assert passed > plain
    assert found(True) == pytest.approx(passed, rel=0.02)


def test_a_step_without_gradient_is_refused() -> None:
    flops = model_flops(model_of(IMPLICIT[0]))
    with pytest.raises(ValueError, match="gradient is None; a training step takes one"):
        step_flops(flops, SEARCH, length=4, num_sequences=1)


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
