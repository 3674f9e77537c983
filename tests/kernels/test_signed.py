"""The state space with decays between -1 and 1, against its recurrence."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from implicit_models.equilibrium.phase import search_phase
from implicit_models.equilibrium.window import Window
from implicit_models.families.conversion import to_transformers
from implicit_models.kernels import signed
from implicit_models.kernels.dispatch import reference_kernels, using
from tests.kernels.test_reference import BATCH, HEADS, scan_inputs
from tests.language_models.models import EXPLICIT, IMPLICIT, our_model, tokens


def recurrence(tensors: dict[str, torch.Tensor]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return the outputs, and the states after 0, 1, 2 ... tokens: head by head, a loop."""
    states, outputs = [tensors["initial_state"]], []
    groups = tensors["input_map"].shape[2]
    for t in range(tensors["inputs"].shape[1]):
        state, output = torch.empty_like(states[-1]), torch.empty_like(tensors["inputs"][:, t])
        for head in range(HEADS):
            group = head * groups // HEADS
            bias, rate = tensors["time_step_bias"][head], tensors["decay_rate"][head]
            dt = F.softplus(tensors["time_step"][:, t, head] + bias)[:, None, None]
            x, skip = tensors["inputs"][:, t, head], tensors["skip"][head]
            b, c = (tensors[name][:, t, group] for name in ("input_map", "output_map"))
            state[:, head] = (2 * torch.exp(dt * rate) - 1) * states[-1][:, head]
            state[:, head] += dt * x[:, :, None] * b[:, None, :]
            output[:, head] = (state[:, head] * c[:, None, :]).sum(-1) + skip * x
        states.append(state)
        outputs.append(output)
    return torch.stack(outputs, 1), states


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize(("length", "chunk"), [(1, 4), (4, 4), (7, 3), (13, 4), (40, None)])
def test_scan_equals_the_recurrence(length: int, chunk: int | None, groups: int) -> None:
    tensors = scan_inputs(length, groups)
    outputs, final = signed.state_space_scan(**tensors, chunk_length=chunk)
    expected, states = recurrence(tensors)
    torch.testing.assert_close(outputs, expected)
    torch.testing.assert_close(final, states[-1])


def test_a_state_advances_by_each_sequences_own_number_of_tokens() -> None:
    tensors = scan_inputs(9, 2)
    _, states = recurrence(tensors)
    names = ("inputs", "time_step", "time_step_bias", "decay_rate", "input_map")
    named = {name: tensors[name] for name in names} | {"state": tensors["initial_state"]}
    torch.testing.assert_close(signed.advance_state(**named), states[-1])
    for counts in ((0, 9), (4, 1)):
        found = signed.advance_state(**named, counts=torch.tensor(counts))
        for row in range(BATCH):
            torch.testing.assert_close(found[row], states[counts[row]][row])


def test_a_decay_of_zero_has_its_gradient() -> None:
    tensors = scan_inputs(5)
    # exp(dt * rate) = 1/2 at the third token: 2 a - 1 is 0 there, and a logarithm would have none.
    tensors["time_step_bias"] = torch.zeros(HEADS, dtype=torch.float64)
    tensors["decay_rate"] = torch.full((HEADS,), -1.0, dtype=torch.float64)
    half = torch.log(torch.tensor(2.0, dtype=torch.float64))
    tensors["time_step"][:, 2] = torch.log(torch.expm1(half))

    def outputs(time_step: torch.Tensor) -> torch.Tensor:
        changed: dict[str, Any] = tensors | {"time_step": time_step}
        return signed.state_space_scan(**changed, chunk_length=2)[0]

    assert torch.autograd.gradcheck(outputs, tensors["time_step"].requires_grad_())


def test_a_model_has_it_whatever_the_kernels_and_goes_on_from_its_cache() -> None:
    text = tokens(2, 12)
    for sizes in (EXPLICIT, IMPLICIT):
        signed_model = our_model(sizes.replace(allow_neg_eigval=True))
        usual = our_model(sizes)
        with torch.no_grad():
            whole = signed_model(text).logits
            with using(reference_kernels()):  # of norms and update; the mixer is the same
                torch.testing.assert_close(signed_model(text).logits, whole)
            assert not torch.allclose(usual(text).logits, whole)
            if sizes is EXPLICIT:
                first = signed_model(text[:, :5], use_cache=True)
                cache = first.cache
                rest = [
                    signed_model(text[:, n : n + 1], cache=cache, use_cache=True).logits
                    for n in range(5, 12)
                ]
                torch.testing.assert_close(torch.cat([first.logits, *rest], dim=1), whole)
    assert signed_model.config.allow_neg_eigval and not usual.config.allow_neg_eigval


def test_a_window_finds_what_a_whole_search_finds() -> None:
    model = our_model(IMPLICIT.replace(allow_neg_eigval=True))
    text = tokens(3, 12)
    with torch.no_grad():
        whole = model(text, phase=search_phase(1e-11, 2000, 0.8)).logits
        for width in (1, 4):
            phase = search_phase(1e-11, 2000, 0.8, Window(width, 2))
            torch.testing.assert_close(model(text, phase=phase).logits, whole, rtol=0, atol=1e-8)


def test_transformers_has_no_such_model() -> None:
    model = our_model(EXPLICIT.replace(allow_neg_eigval=True, weight_normalisation=False))
    with pytest.raises(ValueError, match="allow_neg_eigval is True; transformers' Mamba2 has only"):
        to_transformers(model)


def test_autocast_rounds_no_scan() -> None:
    tensors = {name: tensor.float() for name, tensor in scan_inputs(7, 2).items()}
    names = ("inputs", "time_step", "time_step_bias", "decay_rate", "input_map", "initial_state")
    found = []
    for enabled in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            scanned = signed.state_space_scan(**tensors, chunk_length=3)
            found.append((*scanned, signed.advance_state(*(tensors[name] for name in names))))
    for plain, cast in zip(*found, strict=True):
        assert torch.equal(plain, cast)
