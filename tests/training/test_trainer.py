"""The loop: it learns, it is deterministic, and interrupting it changes nothing."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from implicit_models.equilibrium.window import Window
from implicit_models.training.checkpoints import CheckpointFolder, Progress
from implicit_models.training.curriculum import Segment, free_segment
from implicit_models.training.trainer import train
from tests.training.setup_training import (
    BOUNDED,
    FREE,
    FREE_PARAMETERS,
    Recorder,
    run,
    small_training,
)

PENALISED = free_segment(dataclasses.replace(FREE_PARAMETERS, jacobian_weight=5.0), 5)


def test_the_signs_of_the_penalty_are_a_function_of_seed_and_step() -> None:
    seeds = {PENALISED.phase_at(step, seed).penalty.seed for step in (5, 6) for seed in (0, 1)}
    assert len(seeds) == 4
    assert PENALISED.phase_at(5, 0) == PENALISED.phase_at(5, 0)
    assert FREE.phase_at(5, 0) is FREE.phase


def assert_same(first: torch.nn.Module, second: torch.nn.Module) -> None:
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("stop_after", [2, 8, 12, 16])
def test_interrupted_and_continued_equals_uninterrupted(tmp_path: Path, stop_after: int) -> None:
    whole, _, progress, recorder = run(tmp_path / "whole")
    run(tmp_path / "cut", stop_after=stop_after)
    cut, _, continued, after = run(tmp_path / "cut")
    assert_same(whole, cut)
    assert progress is not None and continued is not None
    assert [row["step"] for row in continued.history] == [row["step"] for row in progress.history]
    for ours, theirs in zip(continued.history, progress.history, strict=True):
        assert ours["loss"] == theirs["loss"]
    if stop_after >= 8:
        assert min(after.rows) > min(recorder.rows)


def test_steps_that_were_logged_are_the_asked_ones_and_the_last(tmp_path: Path) -> None:
    _, _, progress, recorder = run(tmp_path)
    assert list(recorder.rows) == [6, 8, 10, 12, 14, 16, 17]
    assert [step for step, row in recorder.rows.items() if "validation_loss" in row] == [
        8, 12, 16, 17,
    ]  # fmt: skip
    assert progress is not None and progress.step == 17
    lengths = [FREE.length_at(step, 0) for step in range(5, 17)]
    assert progress.tokens == 4 * sum(lengths)


@pytest.mark.parametrize("segment", [FREE, PENALISED], ids=["free", "penalised"])
def test_monitoring_does_not_change_the_weights(segment: Segment, tmp_path: Path) -> None:
    training = small_training(segment)
    often = type(training.monitoring)(
        log_every=1, validate_every=1, validation_sequences=4, checkpoint_every=1
    )
    first, *_ = run(tmp_path / "a", training)
    torch.manual_seed(1)  # of no training's concern
    second, *_ = run(tmp_path / "b", small_training(segment, monitoring=often))
    assert_same(first, second)


def test_training_learns(tmp_path: Path) -> None:
    segment = type(BOUNDED)(**{**BOUNDED.__dict__, "num_steps": 120})
    _, _, progress, _ = run(tmp_path, small_training(segment))
    assert progress is not None
    losses = [row["loss"] for row in progress.history]
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 0.3


def test_search_metrics_are_logged_in_the_free_phase(tmp_path: Path) -> None:
    _, _, _, free = run(tmp_path / "free")
    assert 1 + 2 <= free.rows[8]["self_iterations"] <= 8 + 2  # the search's and the phantom's
    assert 0 <= free.rows[8]["share_not_converged"] <= 1
    tokens = free.rows[8]["batch_tokens"]
    assert free.rows[8]["token_evaluations"] == pytest.approx(
        tokens * free.rows[8]["self_iterations"]
    )
    quantiles = [free.rows[8][f"residual_{name}"] for name in ("p50", "p95", "max")]
    assert quantiles == sorted(quantiles)
    _, _, _, bounded = run(tmp_path / "bounded", small_training(BOUNDED))
    assert bounded.rows[4]["self_iterations"] == 2
    assert bounded.rows[4]["token_evaluations"] == 2 * bounded.rows[4]["batch_tokens"]
    assert "residual" not in bounded.rows[4]


def test_the_free_phase_searches_with_a_window(tmp_path: Path) -> None:
    segment = free_segment(dataclasses.replace(FREE_PARAMETERS, window=2, patience=1), 5)
    assert segment.phase == dataclasses.replace(FREE.phase, window=Window(2, 1))
    model, _, progress, log = run(tmp_path, small_training(segment))
    assert progress is not None and progress.step == 17
    for step, row in log.rows.items():
        searched = row["token_evaluations"] - 2 * row["batch_tokens"]  # without the phantom steps
        assert 0 < searched <= 2 * 4 * (row["self_iterations"] - 2), step
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())


def test_the_jacobian_penalty_reaches_the_loss_and_trains_the_cell_down(tmp_path: Path) -> None:
    penalised = dataclasses.replace(FREE_PARAMETERS, jacobian_weight=30.0, num_training_steps=60)
    free = dataclasses.replace(penalised, jacobian_weight=0.0)
    _, _, _, with_it = run(tmp_path / "with", small_training(free_segment(penalised, 5)))
    _, _, _, without = run(tmp_path / "without", small_training(free_segment(free, 5)))
    first, last = with_it.rows[6], with_it.rows[65]
    assert first["loss"] == pytest.approx(
        without.rows[6]["loss"] + first["jacobian_penalty"], rel=1e-2
    )
    assert last["jacobian_penalty"] < first["jacobian_penalty"] / 2
    assert "jacobian_penalty" not in without.rows[65]


def test_the_phase_alone_tells_the_segments_apart(tmp_path: Path) -> None:
    relabelled = dataclasses.replace(FREE, phase=BOUNDED.phase, first_step=0, num_steps=5)
    bounded = dataclasses.replace(BOUNDED, decay_steps=FREE.decay_steps)
    first, *_ = run(tmp_path / "first", small_training(relabelled))
    second, *_ = run(tmp_path / "second", small_training(bounded))
    assert_same(first, second)


def test_a_gradient_that_is_no_number_never_reaches_the_weights(tmp_path: Path) -> None:
    model, optimiser, _, _ = run(tmp_path, stop_after=8)
    before = [parameter.clone() for parameter in model.parameters()]
    model.get_input_embeddings().weight.register_hook(lambda gradient: gradient * torch.inf)
    with pytest.raises(FloatingPointError, match="gradient's norm of step 5 .free. is"):
        train(
            small_training(), model, optimiser, CheckpointFolder(tmp_path / "new", "x"), Recorder()
        )
    for kept, parameter in zip(before, model.parameters(), strict=True):
        assert torch.equal(kept, parameter)


def test_a_loss_that_is_no_number_ends_training_with_its_step(tmp_path: Path) -> None:
    model, optimiser, _, _ = run(tmp_path, stop_after=8)
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    checkpoints = CheckpointFolder(tmp_path, "poisoned")
    checkpoints.save(model, optimiser, Progress(9))
    with pytest.raises(FloatingPointError, match=r"loss of step 9 \(free\) is nan"):
        train(small_training(), model, optimiser, checkpoints, Recorder())
