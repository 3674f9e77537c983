"""What is kept of a text, and what is copied, is no more than it must be."""

import pytest
import torch

from implicit_models.backbones import key_value
from implicit_models.backbones.attention import AttentionMixer
from implicit_models.backbones.key_value import KeyValueCarry
from implicit_models.backbones.mamba2 import Mamba2Carry, Mamba2Mixer, Mamba2Trail
from implicit_models.equilibrium.phase import search_phase
from implicit_models.equilibrium.window import Window
from tests.language_models.kinds import model_of, tokens


def test_a_state_keeps_nothing_of_the_prompt_but_itself() -> None:
    for kind in ("mamba2-explicit", "mamba2-implicit"):
        with torch.no_grad():
            carry = model_of(kind)(tokens(2, 40), use_cache=True).cache.carry
        for block in carry.blocks:
            assert isinstance(block, Mamba2Carry)
            for tensor in block:
                assert tensor.untyped_storage().nbytes() <= 3 * tensor.nbytes


def test_a_window_over_a_prompt_copies_no_keys_but_where_the_buffer_grows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copies = []
    with_room = key_value._Buffer.with_room

    def counted(self, num_used: int, num_slots: int):
        copies.append(num_used)
        return with_room(self, num_used, num_slots)

    monkeypatch.setattr(key_value._Buffer, "with_room", counted)
    model = model_of("llama-implicit")
    phase = search_phase(1e-3, 40, 1.0, Window(8, 2))
    with torch.no_grad():
        output = model(tokens(1, 60), use_cache=True, phase=phase)
    assert output.search.depth.item() > 60 / 8
    carry = output.cache.carry.blocks[0]
    assert isinstance(carry, KeyValueCarry) and carry.reach == 60
    # Once a layer as the window moves on from the start, and once for the evaluation of the whole.
    assert len(copies) <= 4 * model.config.num_hidden_layers


def test_a_trail_is_gone_before_the_next_block(monkeypatch: pytest.MonkeyPatch) -> None:
    alive, most = set(), []
    make = Mamba2Mixer.forward

    class Counted(Mamba2Trail):
        def __del__(self) -> None:
            alive.discard(id(self))

    def forward(self, *arguments):
        most.append(len(alive))
        mixed, trail = make(self, *arguments)
        trail = Counted(*trail)
        alive.add(id(trail))
        return mixed, trail

    monkeypatch.setattr(Mamba2Mixer, "forward", forward)
    with torch.no_grad():
        model_of("mamba2-explicit", num_hidden_layers=3)(tokens(2, 5), use_cache=True)
    assert most == [0, 0, 0]


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # of torch's attention
@pytest.mark.parametrize("kind", ["llama-explicit", "llama-implicit"])
def test_a_cache_can_be_filled_under_vmap(kind: str) -> None:
    model = model_of(kind)
    assert isinstance(model.trunk.stack.mixers[0], AttentionMixer)
    embedded = model.get_input_embeddings()(tokens(3, 5)).detach()

    def read(text: torch.Tensor) -> torch.Tensor:
        if model.is_implicit:
            cell, start = model.trunk.cell(None, model.trunk.stack.initial_carry(1), text[None])
            return cell(start)[0]
        return model(inputs_embeds=text[None], use_cache=True).logits[0]

    with torch.no_grad():
        together = torch.func.vmap(read)(embedded)
        alone = torch.stack([read(text) for text in embedded])
    torch.testing.assert_close(together, alone)
