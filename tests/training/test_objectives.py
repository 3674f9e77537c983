"""Loss and accuracy against numbers worked out by hand."""

import math

import pytest
import torch

from implicit_models.equilibrium.phase import Phase, bounded_phase, free_phase
from implicit_models.language_models.building import build
from implicit_models.language_models.losses import aligned_loss
from implicit_models.training.distributed import Execution
from implicit_models.training.objectives import accuracies
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
    assert right["accuracy"] == pytest.approx(9 / 12)
    assert right["accuracy_last_10"] == pytest.approx(9 / 10)


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
    assert measured["accuracy"] == accuracies(logits.argmax(-1), labels)["accuracy"]


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
