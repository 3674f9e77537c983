"""Baselines of the same training FLOPs, or of as many parameters, as another model."""

import math
from typing import Any

import pytest
from transformers import GPT2Config

from implicit_models.cost.flops import configuration_flops
from implicit_models.cost.matching import (
    MatchError,
    match_parameters,
    match_training_flops,
)
from implicit_models.cost.passes import training_flops
from implicit_models.families.building import build, configuration
from implicit_models.families.parameters import ModelParameters
from implicit_models.language_models.language_model import num_parameters
from implicit_models.parameters import ParameterError
from stages.entries import MatchParameters
from tests.language_models.models import EXPLICIT, EXPLICIT_LLAMA, IMPLICIT, IMPLICIT_LLAMA, LSTM

VOCABULARY, BATCH, STEPS, LENGTHS = 11, 4, 100, (4, 9, 9, 70)
KINDS = {
    "mamba2": EXPLICIT,
    "mamba2 in groups": EXPLICIT.replace(num_groups=2, expand=3, d_model=32),
    "llama": EXPLICIT_LLAMA,
    "llama of wide heads": EXPLICIT_LLAMA.replace(head_dim=6, d_model=20),
    "llama of its own keys": EXPLICIT_LLAMA.replace(num_key_value_heads=None, d_feed_forward=64),
    "llama with a sliding window": EXPLICIT_LLAMA.replace(sliding_window=60),
    "lstm": LSTM,
}
# What tells the widths of a model apart from those next to it, and the other widths.
NEXT = {"mamba2": "d_model", "llama": "num_heads", "lstm": "d_model"}


def flops_of(parameters: ModelParameters, num_steps: int = STEPS) -> float:
    flops = configuration_flops(configuration(parameters, VOCABULARY))
    whole = training_flops(flops, None, lengths=LENGTHS, batch_size=BATCH)
    return whole * num_steps / len(LENGTHS)


def match(target: float, parameters: ModelParameters, vary: str, **changes: Any):
    arguments: dict[str, Any] = {
        "vary": vary,
        "num_training_steps": STEPS,
        "batch_size": BATCH,
        "lengths": iter(LENGTHS),
    }
    return match_training_flops(target, parameters, VOCABULARY, **(arguments | changes))


@pytest.mark.parametrize("vary", ["steps", "depth", "width"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_model_matches_itself(kind: str, vary: str) -> None:
    parameters = KINDS[kind]
    found = match(flops_of(parameters), parameters, vary)
    assert found.num_training_steps == STEPS
    assert found.flops == pytest.approx(flops_of(parameters), rel=1e-12)
    same = configuration(found.parameters, VOCABULARY).to_dict()
    assert same == configuration(parameters, VOCABULARY).to_dict()


@pytest.mark.parametrize("factor", [0.01, 0.8, 1.7, 12.0, 300.0])
@pytest.mark.parametrize("kind", KINDS)
def test_more_steps_are_the_nearest_number_of_them(kind: str, factor: float) -> None:
    parameters = KINDS[kind]
    target = factor * flops_of(parameters)
    found = match(target, parameters, "steps")
    assert found.parameters == parameters
    assert found.flops == pytest.approx(flops_of(parameters, found.num_training_steps), rel=1e-12)
    assert abs(found.flops - target) <= flops_of(parameters, 1) / 2 * (1 + 1e-9)


def test_sequences_that_a_step_leaves_out_cost_nothing() -> None:
    target = flops_of(EXPLICIT)
    whole = match(target, EXPLICIT, "steps").num_training_steps
    half = match(target, EXPLICIT, "steps", share_asked=lambda length: 0.5)
    assert half.num_training_steps == 2 * whole
    short = match(target, EXPLICIT, "steps", share_asked=lambda length: float(length > 4))
    assert whole < short.num_training_steps < 2 * whole
    passing = match(target, EXPLICIT, "steps", share_asked=lambda length: 0.5, num_passing=4)
    assert passing.num_training_steps <= whole


@pytest.mark.parametrize("vary", ["depth", "width"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_nearest_model_is_found_and_larger_targets_give_no_smaller_ones(
    kind: str, vary: str
) -> None:
    parameters, last = KINDS[kind], 0.0
    for factor in (0.01, 0.8, 1.3, 1.7, 12.0, 300.0):
        target = factor * flops_of(parameters)
        found = match(target, parameters, vary)
        assert found.num_training_steps == STEPS
        assert found.flops == pytest.approx(flops_of(found.parameters), rel=1e-12)
        assert found.flops >= last
        last = found.flops
        nearest = abs(found.flops - target)
        for neighbour in neighbours(found.parameters, parameters, vary):
            assert nearest <= abs(flops_of(neighbour) - target)


@pytest.mark.parametrize("vary", ["steps", "depth"])
@pytest.mark.parametrize("kind", ["mamba2", "llama with a sliding window"])
def test_a_baseline_that_passes_its_carry_counts_that(kind: str, vary: str) -> None:
    parameters = KINDS[kind]
    model = configuration_flops(configuration(parameters, VOCABULARY))
    of_steps = [
        training_flops(model, None, lengths=some, batch_size=BATCH, passes_carry=passes)
        for some, passes in ((LENGTHS[:1], False), (LENGTHS[1:], True))
    ]
    target = sum(of_steps) * STEPS / len(LENGTHS)
    assert target > flops_of(parameters)
    found = match(target, parameters, vary, num_passing=3)
    assert (found.parameters, found.num_training_steps) == (parameters, STEPS)
    assert found.flops == pytest.approx(target, rel=1e-12)
    if vary == "steps":
        assert match(target, parameters, vary).num_training_steps > STEPS


def neighbours(
    found: ModelParameters, parameters: ModelParameters, vary: str
) -> list[ModelParameters]:
    """The next smaller and the next larger model that keep what is to be kept, by trying all."""
    if vary == "depth":
        assert found.replace(num_layers=parameters.num_layers) == parameters
        layers = found.num_layers or 0
        return [found.replace(num_layers=each) for each in (layers - 1, layers + 1) if each]
    key = NEXT[found.family]
    near = []
    for step in (-1, 1):
        for distance in range(1, 100):
            chosen = getattr(found, key) + step * distance
            if chosen < 1:
                break
            try:
                near.append(scaled(parameters, key, chosen))
                break
            except ValueError:
                continue
    assert near
    return near


def scaled(parameters: ModelParameters, key: str, value: int) -> ModelParameters:
    """Scale the widths of a model, refusing those that are no whole numbers."""
    ratio = value / getattr(parameters, key)
    changes: dict[str, Any] = {key: value}
    if parameters.family == "lstm":
        changes["hidden_size"] = max(1, round(ratio * (parameters.hidden_size or 0)))
    if parameters.family == "llama":
        width = ratio * (parameters.d_model or 0)
        heads = ratio * (parameters.num_key_value_heads or parameters.num_heads or 0)
        if not (width.is_integer() and heads.is_integer()):
            raise ValueError("no whole number")
        hidden = parameters.d_feed_forward or 0
        multiple = math.gcd(hidden, 64)
        head_dim = parameters.head_dim or (parameters.d_model or 0) // (parameters.num_heads or 1)
        changes |= {
            "d_model": int(width),
            "num_key_value_heads": int(heads),
            "head_dim": head_dim,
            "d_feed_forward": max(1, round(ratio * hidden / multiple)) * multiple,
        }
    return parameters.replace(**changes)


@pytest.mark.parametrize("vary", ["depth", "width"])
@pytest.mark.parametrize(
    "parameters",
    [*KINDS.values(), IMPLICIT, IMPLICIT_LLAMA, LSTM.replace(num_layers=3)],
    ids=lambda each: each.family,
)
def test_as_many_parameters(parameters: ModelParameters, vary: str) -> None:
    for factor in (0.01, 0.8, 1.0, 3.0):
        own = num_parameters(build(parameters, VOCABULARY, seed=0))
        found = match_parameters(max(1, round(factor * own)), parameters, VOCABULARY, vary=vary)
        built = num_parameters(build(found.parameters, VOCABULARY, seed=0))
        assert found.num_parameters == built
        if factor == 1.0:
            assert built == own
        for neighbour in neighbours(found.parameters, parameters, vary):
            size = num_parameters(build(neighbour, VOCABULARY, seed=0))
            assert abs(built - factor * own) <= abs(size - factor * own) + 1


def test_steps_of_a_foreign_model(tmp_path) -> None:
    GPT2Config(vocab_size=99, n_embd=8, n_layer=1, n_head=2).save_pretrained(tmp_path)
    foreign = ModelParameters(family="huggingface", source=str(tmp_path))
    one = match(1.0, foreign, "steps")
    assert one.num_training_steps == 1
    assert match(one.flops * 250.4, foreign, "steps").num_training_steps == 250
    with pytest.raises(MatchError, match=f"vary is 'width'; .* are those of {tmp_path}"):
        match(1e9, foreign, "width")
    with pytest.raises(MatchError, match="Vary steps, or name another source"):
        match_parameters(1000, foreign, VOCABULARY, vary="depth")


def test_what_cannot_be_matched() -> None:
    with pytest.raises(MatchError, match="the model is implicit"):
        match(1e9, IMPLICIT, "steps")
    with pytest.raises(MatchError, match="vary is 'height'; it must be one of steps, depth, width"):
        match(1e9, EXPLICIT, "height")
    with pytest.raises(MatchError, match="vary is 'steps'; it must be one of depth, width"):
        match_parameters(1000, EXPLICIT, VOCABULARY, vary="steps")
    with pytest.raises(MatchError, match="there are no lengths"):
        match(1e9, EXPLICIT, "steps", lengths=())
    for target in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(MatchError, match="it must be positive"):
            match(target, EXPLICIT, "steps")


def test_the_section_match() -> None:
    assert MatchParameters(run="a5_implicit", vary="steps").vary == "steps"
    with pytest.raises(ParameterError, match="vary = 'height' is not allowed; .* 'depth', 'width'"):
        MatchParameters(run="a5_implicit", vary="height")
