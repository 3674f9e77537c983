"""Batches: every process its share of the same sequences, ahead of time."""

import dataclasses
import threading

import numpy as np
import pytest
import torch

from implicit_models.equilibrium.jacobian import JacobianPenalty
from implicit_models.families.building import build
from implicit_models.language_models.losses import IGNORED
from implicit_models.training.distributed import Execution, distribute
from implicit_models.training.interruption import StopRequest
from implicit_models.training.loading import Batch, Loader, MicroBatch, read_batch, share_asked
from implicit_models.training.optimisation import build_optimiser
from implicit_models.training.step import training_step
from tests.training.setup_training import FREE, MODEL, OPTIMISATION, sequences, small_training

ROWS = np.array([3, 1, 4, 15, 9, 2, 6, 5])


@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize("at_once", [None, 1, 3])
def test_the_shares_of_all_processes_are_the_global_batch(size, at_once):
    data = sequences()
    shares = [
        read_batch(data, ROWS, 5, rank=rank, size=size, at_once=at_once) for rank in range(size)
    ]
    found = [each for share in shares for each in share.micro_batches]
    assert [each.first for each in found] == np.cumsum([0, *map(len_of, found[:-1])]).tolist()
    assert {len(share.micro_batches) for share in shares} == {len(shares[0].micro_batches)}
    assert at_once is None or max(map(len_of, found)) <= at_once
    inputs = torch.cat([each.inputs for each in found]).numpy()
    labels = torch.cat([each.labels for each in found]).numpy()
    np.testing.assert_array_equal(inputs, data.inputs[ROWS, :5])
    np.testing.assert_array_equal(labels, data.labels[ROWS, :5])
    assert {(share.num_sequences, share.num_tokens) for share in shares} == {(8, 40)}
    assert {share.num_labels for share in shares} == {40}


@pytest.mark.parametrize("size", [1, 2])
def test_every_process_knows_how_many_labels_all_have(size):
    data = sequences()
    labels = data.labels.astype(np.int16)
    labels[ROWS[:5], 1:4] = IGNORED
    labels[ROWS, 5:] = IGNORED  # which are cut off
    data.labels = labels
    shares = [read_batch(data, ROWS, 5, rank=rank, size=size, at_once=3) for rank in range(size)]
    assert {share.num_labels for share in shares} == {40 - 5 * 3}
    found = torch.cat([each.labels for share in shares for each in share.micro_batches])
    np.testing.assert_array_equal(found.numpy(), labels[ROWS, :5])


def partly_labelled():
    """Return sequences of which those at the places 1, 2 and 6 of ROWS have no label."""
    data = sequences()
    data.labels = data.labels.astype(np.int16)
    data.labels[ROWS[[1, 2, 6]], :5] = IGNORED
    data.labels[ROWS[3:6], 2:] = IGNORED  # two labels are left
    return data


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("at_once", [None, 1, 2, 3])
def test_sequences_without_a_label_are_left_out(size, at_once):
    """All but one of a micro-batch that has no other, so that each process has as many of them."""
    data = partly_labelled()
    shares = [
        read_batch(data, ROWS, 5, rank=rank, size=size, at_once=at_once) for rank in range(size)
    ]
    found = [each for share in shares for each in share.micro_batches]
    ends = [*(each.first for each in found[1:]), len(ROWS)]
    for each, end in zip(found, ends, strict=True):
        computed = [place for place in range(each.first, end) if place not in {1, 2, 6}]
        assert each.is_idle == (not computed)
        chosen = ROWS[computed or [each.first]]
        np.testing.assert_array_equal(each.inputs.numpy(), data.inputs[chosen, :5])
        np.testing.assert_array_equal(each.labels.numpy(), data.labels[chosen, :5])
        ends_at = torch.tensor([2 if row in ROWS[3:6] else 5 for row in chosen])
        asked = torch.ones_like(each.labels) if each.asked is None else each.asked
        assert each.is_idle or torch.equal(asked.sum(1), ends_at)
    assert {len(share.micro_batches) for share in shares} == {len(found) // size}
    counts = {(share.num_sequences, share.num_computed, share.num_tokens) for share in shares}
    assert counts == {(8, 5, 25)}
    assert {share.num_labels for share in shares} == {2 * 5 + 3 * 2}
    on = read_batch(data, ROWS, 5, begins=np.zeros(8, dtype=bool))
    assert len_of(on.micro_batches[0]) == on.num_computed == 8
    assert on.micro_batches[0].asked is None


def test_a_step_is_the_same_in_whatever_parts():
    """Loss, penalty, counts and searches: what is computed for other processes alone is no part."""
    data = partly_labelled()
    assert FREE.phase is not None
    penalty = JacobianPenalty(1.0, num_samples=100)  # whose signs are drawn for each part
    segment = dataclasses.replace(FREE, phase=dataclasses.replace(FREE.phase, penalty=penalty))
    training, execution = small_training(segment, sequences=data), Execution()
    outcomes = []
    for at_once in (None, 3, 1):
        model = build(MODEL, 5, seed=0)
        module = distribute(model, "float32", execution)
        optimiser = build_optimiser(model, OPTIMISATION)
        batch = read_batch(data, ROWS, 5, at_once=at_once)
        outcome = training_step(
            *(training, 7, batch, module, optimiser, execution, StopRequest()), measured=True
        )
        outcomes.append((outcome, outcome.metrics(execution.processes)))
    (whole, expected), *parts = outcomes
    assert expected["batch_tokens"] == 25
    for outcome, found in parts:
        assert outcome.penalty == pytest.approx(whole.penalty, rel=0.1)
        for name in expected.keys() - {"jacobian_penalty", "gradient_norm"}:
            assert found[name] == pytest.approx(expected[name], rel=1e-5), name


@pytest.mark.parametrize(("length", "share"), [(1, 5 / 8), (5, 5 / 8), (6, 1.0)])
def test_how_many_are_asked_for_something(length, share):
    data = partly_labelled()
    data.inputs, data.labels = data.inputs[ROWS], data.labels[ROWS]
    assert share_asked(data, length) == share
    assert share_asked(sequences(), length) == 1.0


def len_of(micro_batch: MicroBatch) -> int:
    return len(micro_batch.inputs)


def batch(step: int) -> Batch:
    micro_batch = MicroBatch(
        torch.tensor([[step]]), torch.tensor([[step]]), 0, torch.tensor([False])
    )
    return Batch((micro_batch,), 1, 1, 1, 1)


def test_steps_come_in_order_and_are_read_ahead():
    read, enough = [], threading.Event()

    def read_step(step: int) -> Batch:
        read.append(step)
        if step == 6:
            enough.set()
        return batch(step)

    with Loader(read_step, range(4, 9)) as loader:
        found = iter(loader)
        step, first = next(found)
        assert (step, int(first.micro_batches[0].inputs)) == (4, 4)
        assert enough.wait(10)  # without being asked for
        assert [step for step, _ in found] == [5, 6, 7, 8]
    assert read == [4, 5, 6, 7, 8]
    assert loader.waited >= 0


def test_what_goes_wrong_while_reading_reaches_the_training():
    def read_step(step: int) -> Batch:
        if step == 1:
            raise OSError("the disk is gone")
        return batch(step)

    with Loader(read_step, range(3)) as loader:
        found = iter(loader)
        assert next(found)[0] == 0
        with pytest.raises(OSError, match="the disk is gone"):
            next(found)


def test_leaving_early_ends_the_thread():
    with Loader(batch, range(1000)) as loader:
        next(iter(loader))
    assert not any(thread.name.startswith("loader") for thread in threading.enumerate())
