"""Carries and trails of keys and values are values, whoever shares their buffers."""

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from implicit_models.backbones.key_value import SPARE_SLOTS, KeyValueCarry, KeyValueTrail

GROUPS, WIDTH = 2, 3


def initial(batch: int) -> KeyValueCarry:
    return KeyValueCarry.of(*(torch.empty(batch, GROUPS, 0, WIDTH) for _ in range(2)))


@dataclass
class Tape:
    """Carries and trails made at random, each beside what it must hold: (tokens, G, 2P) a row."""

    draw: torch.Generator
    differentiable: bool
    carries: list[tuple[KeyValueCarry, list[Tensor]]] = field(default_factory=list)
    trails: list[tuple[KeyValueTrail, list[Tensor], list[Tensor]]] = field(default_factory=list)

    def number(self, most: int) -> int:
        return int(torch.randint(most, (), generator=self.draw))

    def pick(self, choices: list[Any]) -> Any:
        return choices[self.number(len(choices))]

    def append(self) -> None:
        """Put tokens behind a carry."""
        carry, past = self.pick(self.carries)
        length = self.pick([0, 1, 1, 2, 5, SPARE_SLOTS])
        new = torch.randn(len(past), length, GROUPS, 2 * WIDTH, generator=self.draw)
        new.requires_grad_(self.differentiable)
        keys, values, trail = carry.with_tokens(*new.chunk(2, dim=-1))
        self.trails.append((trail, past, list(new)))
        for row, (before, after) in enumerate(zip(past, new, strict=True)):
            # The newest stand at their slots.
            slots = carry.slots(length).expand(len(past), -1)[row]
            both = torch.cat((keys, values), dim=-1)[row].transpose(0, 1)
            assert torch.equal(both[: len(before)], before)
            assert torch.equal(both[slots], after)
        assert keys.shape[2] == carry.reach + length

    def take(self) -> None:
        """Take a carry from a trail: after all of its tokens or after some."""
        trail, past, new = self.pick(self.trails)
        if self.number(2):
            self.carries.append(
                (trail.carry(), [torch.cat(rows) for rows in zip(past, new, strict=True)])
            )
            return
        counts = [self.number(trail.length + 1) for _ in past]
        rows = [torch.cat((a, b[:n])) for a, b, n in zip(past, new, counts, strict=True)]
        self.carries.append((trail.carry(torch.tensor(counts)), rows))

    def select(self) -> None:
        """Take some rows of a carry, some of them twice or none."""
        carry, past = self.pick(self.carries)
        rows = torch.randint(len(past), (self.number(3) + 1,), generator=self.draw)
        self.carries.append((carry.select(rows), [past[row] for row in rows]))

    def forget(self) -> None:
        """Drop a carry or a trail, which makes its buffer free."""
        most = self.pick([self.carries, self.trails])
        if len(most) > 1:
            most.pop(self.number(len(most)))

    def check(self) -> None:
        """Compare all that is there with what it must hold."""
        for carry, rows in self.carries:
            assert carry.lengths.tolist() == [len(row) for row in rows]
            assert carry.reach >= max(len(row) for row in rows)
            both = torch.cat((carry.keys, carry.values), dim=-1).transpose(1, 2)
            assert both.isfinite().all()
            for found, row in zip(both, rows, strict=True):
                assert torch.equal(found[: len(row)], row)


@pytest.mark.parametrize("differentiable", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_whatever_is_done_carries_and_trails_keep_their_tokens(
    seed: int, differentiable: bool
) -> None:
    tape = Tape(torch.Generator().manual_seed(seed), differentiable)
    tape.carries.append((initial(3), [torch.empty(0, GROUPS, 2 * WIDTH)] * 3))
    tape.append()
    for _ in range(80):
        tape.pick([tape.append, tape.append, tape.take, tape.take, tape.select, tape.forget])()
        tape.check()
    with torch.no_grad():  # what was made with gradients is continued without, and kept
        for _ in range(40):
            tape.pick([tape.append, tape.take, tape.forget])()
            tape.check()


def test_the_newest_carry_writes_into_the_slots_that_are_there() -> None:
    carry = initial(1)
    token = torch.ones(1, 1, GROUPS, WIDTH)
    carry = carry.with_tokens(token, token)[2].carry()
    places = set()
    with torch.no_grad():
        for _ in range(128):
            keys, _, trail = carry.with_tokens(token, token)
            places.add(keys.data_ptr())
            carry = trail.carry()
            del trail
    assert len(places) <= 3


def test_evaluating_again_and_again_takes_no_new_memory() -> None:
    carry = initial(2).with_tokens(*torch.randn(2, 2, 4, GROUPS, WIDTH))[2].carry()
    new = torch.randn(2, 2, 3, GROUPS, WIDTH)
    places = {carry.with_tokens(*new)[0].data_ptr() for _ in range(5)}
    assert len(places) == 1


@pytest.mark.parametrize("lengths", [(4, 2), (4, 4), None])
def test_a_gradient_goes_through_keys_and_values(lengths: tuple[int, int] | None) -> None:
    past = torch.randn(2, 2, 4, GROUPS, WIDTH, requires_grad=True)
    new = torch.randn(2, 2, 3, GROUPS, WIDTH, requires_grad=True)
    counts = None if lengths is None else torch.tensor(lengths)
    carry = initial(2).with_tokens(*past)[2].carry(counts)
    keys, values, _ = carry.with_tokens(*new)
    weights = torch.randn(2, *keys.shape)
    (keys * weights[0] + values * weights[1]).sum().backward()
    assert past.grad is not None and new.grad is not None
    expected_past, expected_new = torch.zeros_like(past), torch.zeros_like(new)
    for part in range(2):
        for row, length in enumerate(lengths or (4, 4)):
            slots = weights[part, row].transpose(0, 1)
            expected_past[part, row, :length] = slots[:length]
            expected_new[part, row] = slots[length : length + 3]
    # A slot that the new tokens have taken gives nothing back to what stood there before.
    torch.testing.assert_close(past.grad, expected_past)
    torch.testing.assert_close(new.grad, expected_new)


def test_going_on_without_gradient_leaves_what_a_backward_pass_will_read() -> None:
    new = torch.randn(2, 1, 4, GROUPS, WIDTH, requires_grad=True)
    keys, values, trail = initial(1).with_tokens(*new)
    loss = (keys * values).sum()
    carry = trail.carry(torch.tensor([2]))
    del trail
    with torch.no_grad():
        carry.with_tokens(*torch.randn(2, 1, 2, GROUPS, WIDTH))
    loss.backward()
    torch.testing.assert_close(new.grad, new.detach().flip(0))


def test_what_was_written_in_inference_mode_can_be_continued_outside() -> None:
    with torch.inference_mode():
        one = torch.randn(2, 1, 1, GROUPS, WIDTH)
        carry = initial(1).with_tokens(*one)[2].carry()
        carry = carry.with_tokens(*one)[2].carry()  # now there are spare slots
    new = torch.randn(2, 1, 1, GROUPS, WIDTH, requires_grad=True)
    keys, values, _ = carry.with_tokens(*new)
    (keys + values).sum().backward()
    assert new.grad is not None and (new.grad == 1).all()
    with torch.no_grad():
        keys, _, trail = carry.with_tokens(*new)
        assert torch.equal(trail.carry().keys[:, :, :2], carry.keys)
        assert torch.equal(keys[:, :, 2:], new[0].transpose(1, 2))
