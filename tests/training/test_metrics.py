"""Loss and accuracy against numbers worked out by hand."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from implicit_models.equilibrium.phase import Phase, bounded_phase, free_phase
from implicit_models.families.building import build
from implicit_models.language_models.losses import IGNORED, aligned_loss
from implicit_models.training.distributed import ALONE, Execution
from implicit_models.training.metrics import Mean, accuracies, averaged
from implicit_models.training.optimisation import build_optimiser
from implicit_models.training.parameters import OptimisationParameters
from implicit_models.training.validation import validator
from tests.training.setup_training import MODEL, sequences


def test_the_loss_scores_each_token_with_its_own_label() -> None:
    logits = torch.zeros(1, 2, 4)
    logits[0, 0, 3] = math.log(5)
    # softmax of the first: 1/8 thrice, then 5/8; of the second: 1/4 each
    loss = aligned_loss(logits, torch.tensor([[3, 0]]))
    assert loss.item() == pytest.approx((math.log(8 / 5) + math.log(4)) / 2)


def test_accuracy_over_all_and_over_the_last_ten() -> None:
    labels = torch.arange(12)[None] % 3
    predictions = labels.clone()
    predictions[0, [0, 1, 11]] = (predictions[0, [0, 1, 11]] + 1) % 3
    right = accuracies(predictions, labels)
    assert right["accuracy"] == Mean(pytest.approx(9 / 12), 12)
    assert right["accuracy_last_10"] == Mean(pytest.approx(9 / 10), 10)


def test_a_share_is_the_mean_of_zeros_and_ones_to_the_bit() -> None:
    draw = torch.Generator().manual_seed(0)
    for length in (1, 3, 7, 160):
        predictions, labels = torch.randint(3, (2, 11, length), generator=draw)
        right = accuracies(predictions, labels)["accuracy"]
        assert right.value == (predictions == labels).float().mean().item()
        assert averaged(["accuracy"], [{"accuracy": right}], ALONE) == {"accuracy": right.value}


def test_tokens_without_a_label_are_neither_right_nor_wrong() -> None:
    labels = torch.arange(12).repeat(2, 1) % 3
    predictions = labels.clone()
    predictions[:, [0, 11]] += 1
    labels[:, 1:4] = labels[1, 11] = IGNORED
    right = accuracies(predictions, labels)
    assert right["accuracy"] == Mean(pytest.approx((6 + 8 + 0) / 17), 17)
    assert right["accuracy_last_10"] == Mean(pytest.approx(14 / 15), 15)
    nothing = accuracies(predictions, torch.full_like(labels, IGNORED))
    assert set(nothing.values()) == {Mean(0.0, 0)}


def test_means_weigh_parts_by_their_labels() -> None:
    parts = [{"loss": Mean(2.0, 3), "x": Mean(0.0, 0)}, {"loss": Mean(6.0, 1), "x": Mean(0.0, 0)}]
    assert averaged(["loss", "x"], parts, ALONE) == {"loss": 3.0}
    assert averaged(["loss"], [], ALONE) == {}


@pytest.mark.parametrize("phase", [None, free_phase(0.1, 5, 2, 0.8)])
def test_validation_counts_labelled_tokens_alone(phase: Phase | None) -> None:
    parameters = MODEL if phase else MODEL.replace(implicit=False)
    model, data = build(parameters, 5, 0), sequences()
    labels = data.labels.astype(np.int8)
    labels[np.random.default_rng(1).random(labels.shape) < 0.5] = IGNORED
    labels[5:10] = IGNORED  # a batch without any
    data.labels = labels
    found = validator(data, 16, phase, batch_size=5)(model, Execution())
    with torch.no_grad():
        logits = model(torch.from_numpy(data.inputs).long(), phase=phase).logits
    targets = torch.from_numpy(labels).long()
    is_labelled = targets != IGNORED
    assert found["loss"] == pytest.approx(
        F.cross_entropy(logits[is_labelled], targets[is_labelled]).item(), rel=1e-4
    )
    right = (logits.argmax(-1) == targets)[is_labelled]
    assert found["accuracy"] == pytest.approx(right.float().mean().item())

    data.labels = np.full_like(labels, IGNORED)
    found = validator(data, 16, phase, batch_size=5)(model, Execution())
    assert not found.keys() & {"loss", "accuracy", "accuracy_last_10"}


@pytest.mark.parametrize("phase", [None, bounded_phase(3), free_phase(0.1, 5, 2, 0.8)])
def test_validation_in_batches_is_validation_at_once(phase: Phase | None) -> None:
    parameters = MODEL if phase else MODEL.replace(implicit=False)
    model, data = build(parameters, 5, 0), sequences()
    whole = validator(data, 16, phase, batch_size=16)(model, Execution())
    assert validator(data, 16, phase, batch_size=5)(model, Execution()) == pytest.approx(
        whole, rel=1e-5
    )


@pytest.mark.parametrize("phase", [bounded_phase(3), free_phase(0.1, 5, 2, 0.8)])
def test_validation_runs_what_training_runs(phase: Phase) -> None:
    model, data = build(MODEL, 5, 0), sequences()
    measured = validator(data, 16, phase, batch_size=16)(model.train(), Execution())
    assert model.training
    logits = model(torch.from_numpy(data.inputs).long(), phase=phase).logits
    labels = torch.from_numpy(data.labels).long()
    assert measured["loss"] == pytest.approx(aligned_loss(logits, labels).item())
    assert measured["accuracy"] == accuracies(logits.argmax(-1), labels)["accuracy"].value


def test_validation_judges_what_training_judges() -> None:
    """All tokens where a training passes its carry, and otherwise those up to the last label."""
    phase = free_phase(0.1, 5, 2, 0.8)
    model, data = build(MODEL, 5, 0), sequences()
    data.labels = data.labels.astype(np.int8)
    data.labels[:, 2:] = IGNORED
    judged = {
        passes_carry: validator(data, 16, phase, 16, passes_carry=passes_carry)(model, Execution())
        for passes_carry in (False, True)
    }
    data.inputs[:, 2:] = (data.inputs[:, 2:] + 1) % 5  # which nothing asks for
    for passes_carry, before in judged.items():
        after = validator(data, 16, phase, 16, passes_carry=passes_carry)(model, Execution())
        assert (after["residual"] == before["residual"]) == (not passes_carry)


def test_only_matrices_decay() -> None:
    model = build(MODEL, 5, 0)
    parameters = OptimisationParameters(
        learning_rate=1e-3, clip_norm=1.0, batch_size=1, warmup_steps=0, weight_decay=0.1
    )
    groups = build_optimiser(model, parameters).param_groups
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    decayed = {names[id(p)] for group in groups if group["weight_decay"] for p in group["params"]}
    assert decayed == {
        "model.injection.projection.weight",
        "model.stack.blocks.0.mixer.in_proj.weight",
        "model.stack.blocks.0.mixer.conv1d.weight",
        "model.stack.blocks.0.mixer.out_proj.weight",
    }
    assert sum(len(group["params"]) for group in groups) == len(names)
