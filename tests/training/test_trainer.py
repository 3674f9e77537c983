"""The loop: it learns, it is deterministic, and interrupting it changes nothing."""

import dataclasses
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import GPT2Config, GPT2LMHeadModel

from implicit_models.equilibrium.solution import Result
from implicit_models.equilibrium.window import Window
from implicit_models.families.building import build
from implicit_models.language_models.forward import LabelledOutput, forward_labelled
from implicit_models.language_models.losses import IGNORED
from implicit_models.training import step as training_step
from implicit_models.training.checkpoints import CheckpointFolder
from implicit_models.training.curriculum import Segment, free_segment
from implicit_models.training.definition import Training
from implicit_models.training.distributed import Execution, distribute
from implicit_models.training.interruption import Stopped
from implicit_models.training.optimisation import build_optimiser
from implicit_models.training.progress import Progress
from implicit_models.training.trainer import train
from implicit_models.training.validation import validator
from tests.training.setup_training import (
    BOUNDED,
    FREE,
    FREE_PARAMETERS,
    MODEL,
    OPTIMISATION,
    Recorder,
    run,
    sequences,
    small_training,
    start_of,
)

PENALISED = free_segment(FREE_PARAMETERS.replace(jacobian_weight=5.0), 5)


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


@pytest.mark.parametrize("segment", [BOUNDED, FREE], ids=["bounded", "free"])
def test_validation_counts_self_iterations_as_the_model_does(segment: Segment) -> None:
    model: Any = build(MODEL, 5, seed=0).eval()
    data = sequences()
    found = validator(data, 8, segment.phase, 4)(model, Execution())
    with torch.no_grad():
        output = model(torch.from_numpy(data.inputs[:8]).long(), phase=segment.phase)
    assert found["self_iterations"] == pytest.approx(output.self_iterations.double().mean().item())
    assert found["token_evaluations"] == pytest.approx(output.self_iterations.sum().item())


def test_the_free_phase_searches_with_a_window(tmp_path: Path) -> None:
    segment = free_segment(FREE_PARAMETERS.replace(window=2, patience=1), 5)
    assert segment.phase == dataclasses.replace(FREE.phase, window=Window(2, 1))
    model, _, progress, log = run(tmp_path, small_training(segment))
    assert progress is not None and progress.step == 17
    for step, row in log.rows.items():
        searched = row["token_evaluations"] - 2 * row["batch_tokens"]  # without the phantom steps
        assert 0 < searched <= 2 * 4 * (row["self_iterations"] - 2), step
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())


def partly_labelled(segment: Segment, **changes: Any) -> Training:
    """Return a small training of which half of the labels do not count, and of one batch none."""
    data = sequences()
    labels = data.labels.astype(np.int8)
    labels[np.random.default_rng(1).random(labels.shape) < 0.5] = IGNORED
    training = small_training(segment, sequences=data, **changes)
    labels[training.batch_indices(4 * segment.first_step + 8)] = IGNORED
    data.labels = labels
    monitoring = type(training.monitoring)(
        log_every=1, validate_every=4, validation_sequences=4, checkpoint_every=3
    )
    return dataclasses.replace(training, monitoring=monitoring)


def test_the_loss_is_the_mean_over_the_labels_that_count(tmp_path: Path) -> None:
    training = partly_labelled(BOUNDED)
    _, _, _, log = run(tmp_path, training)
    model = build(MODEL, vocabulary_size=5, seed=0)
    rows = training.batch_indices(0)
    length = BOUNDED.length_at(0, 0)
    inputs, labels = (
        torch.from_numpy(kind[rows, :length]).long()
        for kind in (training.sequences.inputs, training.sequences.labels)
    )
    logits = model(inputs, phase=BOUNDED.phase).logits
    is_labelled = labels != IGNORED
    assert 0 < is_labelled.sum() < labels.numel()
    loss = F.cross_entropy(logits[is_labelled], labels[is_labelled])
    loss.backward()
    norms = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None])
    assert log.rows[1]["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert log.rows[1]["gradient_norm"] == pytest.approx(norms.norm().item(), rel=1e-4)
    right = (logits.argmax(-1) == labels)[is_labelled]
    assert log.rows[1]["accuracy"] == pytest.approx(right.float().mean().item())


def test_parts_with_fewer_labels_weigh_less(tmp_path: Path) -> None:
    training = partly_labelled(FREE)
    _, _, _, whole = run(tmp_path / "whole", training)
    _, _, _, parts = run(tmp_path / "parts", training, execution=Execution(micro_batch=1))
    assert list(parts.rows) == list(whole.rows)
    for step, row in whole.rows.items():
        for name in row.keys() & {"loss", "accuracy", "accuracy_last_10", "gradient_norm"}:
            assert parts.rows[step][name] == pytest.approx(row[name], rel=1e-3, abs=1e-5), name


def test_a_batch_without_a_label_has_no_loss_and_hurts_nothing(tmp_path: Path) -> None:
    model, _, progress, log = run(tmp_path, partly_labelled(FREE))
    assert progress is not None and progress.skipped_steps == 0
    without = [step for step, row in log.rows.items() if "loss" not in row]
    assert without[0] == 5 + 3
    assert not log.rows[8].keys() & {"accuracy", "accuracy_last_10"}
    assert log.rows[8]["gradient_norm"] == 0.0
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())


def test_the_jacobian_penalty_reaches_the_gradient_and_trains_the_cell_down(tmp_path: Path) -> None:
    penalised = FREE_PARAMETERS.replace(jacobian_weight=30.0, num_training_steps=60)
    free = penalised.replace(jacobian_weight=0.0)
    _, _, _, with_it = run(tmp_path / "with", small_training(free_segment(penalised, 5)))
    _, _, _, without = run(tmp_path / "without", small_training(free_segment(free, 5)))
    first, last = with_it.rows[6], with_it.rows[65]
    assert first["loss"] == pytest.approx(without.rows[6]["loss"], rel=1e-5)  # of labels alone
    assert first["gradient_norm"] > 1.1 * without.rows[6]["gradient_norm"]
    assert last["jacobian_penalty"] < first["jacobian_penalty"] / 2
    assert "jacobian_penalty" not in without.rows[65]


def test_the_center_loss_reaches_the_gradient(tmp_path: Path) -> None:
    def trained(weight: float) -> dict[int, dict[str, float]]:
        parameters = FREE_PARAMETERS.replace(center_weight=weight, num_training_steps=60)
        training = small_training(free_segment(parameters, 5))
        return run(tmp_path / str(weight), training)[-1].rows

    rows, watched, without = trained(30.0), trained(1e-9), trained(0.0)
    first = rows[6]["center_loss"]
    assert rows[6]["loss"] == pytest.approx(without[6]["loss"], rel=1e-5)  # of labels alone
    assert watched[6]["center_loss"] / 1e-9 == pytest.approx(first / 30.0, rel=1e-2)
    norms = [each[6]["gradient_norm"] for each in (rows, watched, without)]
    assert norms[0] > 1.1 * norms[1] and norms[1] == pytest.approx(norms[2], rel=1e-4)
    assert "center_loss" not in without[65]


def test_the_phase_alone_tells_the_segments_apart(tmp_path: Path) -> None:
    relabelled = dataclasses.replace(FREE, phase=BOUNDED.phase, first_step=0, num_steps=5)
    bounded = dataclasses.replace(BOUNDED, decay_steps=FREE.decay_steps)
    first, *_ = run(tmp_path / "first", small_training(relabelled))
    second, *_ = run(tmp_path / "second", small_training(bounded))
    assert_same(first, second)


def impatient(max_skipped_steps: int = 2) -> Training:
    optimisation = OPTIMISATION.replace(max_skipped_steps=max_skipped_steps)
    return small_training(optimisation=optimisation)


def test_gradients_that_are_no_number_never_reach_the_weights(tmp_path: Path) -> None:
    model, optimiser, _, _ = run(tmp_path, stop_after=8)
    before = [parameter.clone() for parameter in model.parameters()]
    model.get_input_embeddings().weight.register_hook(lambda gradient: gradient * torch.inf)
    checkpoints = CheckpointFolder(tmp_path / "new", "x")
    with pytest.raises(FloatingPointError, match="norm is inf in step 7 .free., and 3 steps in a"):
        train(impatient(), start_of(FREE), model, optimiser, checkpoints, Recorder())
    assert_unchanged(before, model)


def test_steps_left_out_in_a_row_are_counted_beyond_an_interruption(tmp_path: Path) -> None:
    model, optimiser, _, _ = run(tmp_path, stop_after=8)
    model.get_input_embeddings().weight.register_hook(lambda gradient: gradient * torch.inf)
    checkpoints, start = CheckpointFolder(tmp_path / "new", "x"), start_of(FREE)
    for _ in range(2):
        with pytest.raises(FloatingPointError, match="in step 9 .free., and 5 steps in a row"):
            train(impatient(4), start, model, optimiser, checkpoints, Recorder())
        resumed = checkpoints.resume(model, optimiser)
        assert resumed is not None
        assert resumed.step == 9 and resumed.skipped_in_a_row == resumed.skipped_steps == 4
        start = resumed


def assert_unchanged(before: list[torch.Tensor], model: torch.nn.Module) -> None:
    for kept, parameter in zip(before, model.parameters(), strict=True):
        assert torch.equal(kept, parameter)


def test_a_loss_that_is_no_number_ends_training_with_its_step(tmp_path: Path) -> None:
    model, optimiser, _, _ = run(tmp_path, stop_after=8)
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    checkpoints = CheckpointFolder(tmp_path, "poisoned")
    checkpoints.save(model, optimiser, Progress(9))
    start = checkpoints.resume(model, optimiser)
    assert start is not None
    match = r"(loss is nan|became non-finite) in step 9 \(free\), and 1 steps in a row"
    with pytest.raises(FloatingPointError, match=match):
        train(impatient(0), start, model, optimiser, checkpoints, Recorder())


def test_a_single_bad_step_is_left_out_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As often as steps between are good, there is no end to it."""
    model, optimiser, _, _ = run(tmp_path, stop_after=8)
    steps = iter(range(100))

    def every_fourth_is_infinite(gradient: torch.Tensor) -> torch.Tensor:
        return gradient * (torch.inf if next(steps) % 4 == 3 else 1.0)

    model.get_input_embeddings().weight.register_hook(every_fourth_is_infinite)
    checkpoints, recorder = CheckpointFolder(tmp_path / "new", "x"), Recorder()
    progress = train(impatient(1), start_of(FREE), model, optimiser, checkpoints, recorder)
    assert progress.step == 17
    assert progress.skipped_steps == 3
    assert [row["skipped_steps"] for row in recorder.rows.values()] == [0, 0, 1, 1, 2, 2, 3]
    assert caplog.text.count("is left out: the gradient's norm is inf") == 3
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())
    assert progress.sequences == 17 * 4  # the data goes on


def test_a_step_whose_search_diverges_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, optimiser, _, _ = run(tmp_path, stop_after=8)
    before = [parameter.clone() for parameter in model.parameters()]

    def diverging(*inputs: Any, **named: Any) -> LabelledOutput:
        found = forward_labelled(*inputs, **named)
        assert found.search is not None
        result = found.search.result.clone()
        result[0] = Result.NON_FINITE
        return dataclasses.replace(found, search=dataclasses.replace(found.search, result=result))

    monkeypatch.setattr(training_step, "forward_labelled", diverging)
    match = "the search of 1 sequences or tokens became non-finite in step 7"
    with pytest.raises(FloatingPointError, match=match):
        checkpoints = CheckpointFolder(tmp_path, "x")
        train(impatient(), start_of(FREE), model, optimiser, checkpoints, Recorder())
    assert_unchanged(before, model)


def test_what_is_logged_of_position_speed_and_memory(tmp_path: Path) -> None:
    _, _, progress, recorder = run(tmp_path, small_training(peak_flops=1e9))
    row = recorder.rows[17]
    assert progress is not None and progress.sequences == row["sequences"] == 17 * 4
    assert row["epoch"] == 17 * 4 / 16
    assert 0 < row["model_flop_utilisation"] < 1
    assert row["peak_memory_bytes"] > 2**20
    assert row["tokens_per_second"] > 0
    assert row["skipped_steps"] == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_asked_to_stop_it_keeps_a_checkpoint_and_goes_on_later(number, tmp_path: Path) -> None:
    whole, _, _, _ = run(tmp_path / "whole")
    before = signal.getsignal(number)

    class Asking(Recorder):
        def log_metrics(self, metrics, step=None):
            super().log_metrics(metrics, step)
            if step == 10:
                signal.raise_signal(number)

    model = build(MODEL, vocabulary_size=5, seed=0)
    module = distribute(model, "float32", Execution())
    optimiser = build_optimiser(model, OPTIMISATION)
    with pytest.raises(Stopped) as stopped:
        checkpoints = CheckpointFolder(tmp_path / "cut", "identity")
        train(small_training(), start_of(FREE), module, optimiser, checkpoints, Asking())
    assert stopped.value.step == 11
    assert stopped.value.code == 128 + number
    assert signal.getsignal(number) is before
    cut, _, _, after = run(tmp_path / "cut")
    assert min(after.rows) == 12
    assert_same(whole, cut)


def test_after_an_interrupt_a_sigterm_does_not_break_off_what_is_written(tmp_path, monkeypatch):
    """Who interrupts a whole group is followed by SIGTERM a few seconds later."""
    before, waited = signal.getsignal(signal.SIGTERM), []

    class Interrupted(Recorder):
        def log_metrics(self, metrics, step=None):
            raise KeyboardInterrupt

    class Writing(CheckpointFolder):
        def __exit__(self, *error):
            signal.raise_signal(signal.SIGTERM)
            super().__exit__(*error)
            waited.append(True)

    model = build(MODEL, vocabulary_size=5, seed=0)
    optimiser = build_optimiser(model, OPTIMISATION)
    checkpoints = Writing(tmp_path, "identity")
    with pytest.raises(KeyboardInterrupt):
        train(small_training(), start_of(FREE), model, optimiser, checkpoints, Interrupted())
    assert waited and signal.getsignal(signal.SIGTERM) is before


def test_embeddings_of_positions_do_not_decay() -> None:
    config = GPT2Config(n_embd=8, n_head=2, n_layer=1, n_positions=16, vocab_size=20)
    model = GPT2LMHeadModel(config)
    decayed, kept = build_optimiser(model, OPTIMISATION).param_groups
    assert kept["weight_decay"] == 0 and OPTIMISATION.weight_decay == decayed["weight_decay"]
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    assert {"transformer.wte.weight", "transformer.wpe.weight"} <= {
        names[id(each)] for each in kept["params"]
    }
    assert all(".h.0." in names[id(each)] for each in decayed["params"])
