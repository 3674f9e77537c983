"""A family from elsewhere, by its own files and one entry of the table."""

import ast
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

import implicit_models
from implicit_models.cost.flops import configuration_flops, model_flops
from implicit_models.cost.matching import match_parameters, match_training_flops
from implicit_models.cost.passes import step_flops
from implicit_models.equilibrium.phase import bounded_phase, search_phase
from implicit_models.equilibrium.solution import Result
from implicit_models.equilibrium.window import Window
from implicit_models.evaluation.scoring import expand, prefix, score
from implicit_models.families.building import build, configuration
from implicit_models.families.family import family_of
from implicit_models.families.parameters import ModelParameters
from implicit_models.families.sizes import count_parameters
from implicit_models.families.table import FAMILIES
from implicit_models.language_models.language_model import num_parameters
from implicit_models.language_models.modelling import ImplicitForCausalLM
from implicit_models.language_models.serialisation import load_model, save_model
from implicit_models.parameters import ParameterError, read_section
from implicit_models.planning.plans import Layout, plan_training
from tests.cost.counting import count

VOCABULARY = 7
SECTION = {"family": "elman", "num_layers": 2, "d_model": 12, "d_state": 10}


@pytest.fixture(autouse=True)
def _table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES, "elman", "tests.families.elman.parameters:ElmanParameters")


def built(seed: int = 0, **changes: Any) -> ImplicitForCausalLM:
    model = build(ModelParameters(**(SECTION | changes)), VOCABULARY, seed)
    assert isinstance(model, ImplicitForCausalLM)
    return model


@torch.no_grad()
def contracting(implicit: bool) -> ImplicitForCausalLM:
    model = built(implicit=implicit).double().eval()
    for block in model.model.stack.blocks:
        block.mixer.in_proj.weight.mul_(0.02)  # type: ignore[union-attr]
    return model


def texts(batch: int = 3, length: int = 6) -> torch.Tensor:
    draw = torch.Generator().manual_seed(0)
    return torch.randint(0, VOCABULARY, (batch, length), generator=draw)


def test_its_section_is_read(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text("model: {family: elman, implicit: true, num_layers: 1, d_model: 4, d_state: 3}")
    read = read_section("model", ModelParameters, path)
    assert (type(read).__name__, read.implicit) == ("ElmanParameters", True)
    with pytest.raises(ParameterError, match="num_heads is 2; a model of family elman has none"):
        ModelParameters(**(SECTION | {"num_heads": 2}))
    with pytest.raises(ParameterError, match="d_stat = 2 is not a known .* is d_state"):
        ModelParameters(**(SECTION | {"d_stat": 2}))


@pytest.mark.parametrize("implicit", [False, True])
def test_it_learns(implicit: bool) -> None:
    model, tokens = built(implicit=implicit), texts()
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.02)
    phase = bounded_phase(3) if implicit else None
    losses = []
    for _ in range(30):
        loss = model(tokens, labels=tokens, phase=phase).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(math.log(VOCABULARY), rel=0.2)
    assert losses[-1] < 0.5 * losses[0]


def test_the_window_finds_what_a_whole_search_finds() -> None:
    model, tokens = contracting(implicit=True), texts()
    with torch.inference_mode():
        whole, slid = (
            model(tokens, phase=search_phase(1e-9, 200, 0.8, window), use_cache=True)
            for window in (None, Window(2, 3))
        )
        pieces = model.initial_cache(len(tokens))
        parts = [
            model(part, cache=pieces, phase=search_phase(1e-9, 200, 0.8, None)).logits
            for part in tokens.split((4, 2), dim=1)
        ]
    assert all(bool((each.search.result == Result.CONVERGED).all()) for each in (whole, slid))
    torch.testing.assert_close(slid.logits, whole.logits, rtol=0, atol=1e-6)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole.logits, rtol=0, atol=1e-6)
    assert whole.cache.num_sequences == len(tokens)


def test_it_generates() -> None:
    model = built(implicit=True).eval()
    mask = torch.tensor([[0, 0, 1, 1, 1, 1], [1] * 6, [1] * 6])
    found = model.generate(
        texts(), attention_mask=mask, max_new_tokens=3, num_beams=2, do_sample=False
    )
    assert found.shape == (3, 9)


@pytest.mark.parametrize("implicit", [False, True])
def test_texts_are_scored_with_it(implicit: bool) -> None:
    model, tokens = contracting(implicit), texts(length=8).numpy()
    inputs, labels = tokens[:, :-1], tokens[:, 1:]
    phase = search_phase(1e-9, 200, 0.9, Window(2, 1)) if implicit else None
    whole = score(model, inputs, labels, phase=phase)
    pieces = score(model, inputs, labels, phase=phase, piece_length=3)
    np.testing.assert_allclose(pieces.nll, whole.nll, rtol=1e-6)
    before = prefix(model, inputs[:, :4], phase, lengths=np.array([4, 2, 3]))
    rows = np.array([1, 1])
    rest = score(model, inputs[rows, 2:], labels[rows, 2:], phase=phase, cache=expand(before, rows))
    np.testing.assert_allclose(rest.nll, whole.nll[rows, 2:], rtol=1e-6)
    expected = count(lambda: score(model, inputs, labels, phase=phase))
    assert whole.flops == expected


@pytest.mark.parametrize("implicit", [False, True])
def test_its_costs_are_counted(implicit: bool) -> None:
    model, tokens = built(implicit=implicit).eval(), texts()
    assert count_parameters(model.config).total == num_parameters(model)
    phase = bounded_phase(3) if implicit else None

    def work() -> None:
        model(tokens, labels=tokens, phase=phase).loss.backward()

    flops = model_flops(model)
    assert flops == configuration_flops(model.config)
    expected = step_flops(flops, phase, length=tokens.shape[1], num_sequences=len(tokens))
    # The first token's state has no gradient, as nothing is before it.
    assert count(work) == pytest.approx(expected, rel=0.05)


def test_it_is_matched_and_planned() -> None:
    wanted = ModelParameters(**(SECTION | {"d_model": 20, "d_state": 20}))
    size = count_parameters(configuration(wanted, VOCABULARY)).total
    begin = wanted.replace(d_model=3, d_state=3)
    assert match_parameters(size, begin, VOCABULARY, vary="width").parameters == wanted
    sizes: dict[str, Any] = {"num_training_steps": 5, "batch_size": 2, "lengths": [8]}
    target = match_training_flops(1.0, wanted, VOCABULARY, vary="depth", **sizes).flops
    deeper = match_training_flops(3 * target, wanted, VOCABULARY, vary="depth", **sizes)
    assert deeper.parameters.replace(num_layers=2) == wanted
    plan = plan_training(
        configuration(wanted.replace(implicit=True, weight_normalisation=True), VOCABULARY),
        bounded_phase(2),
        lengths=[8, 8],
        batch_size=4,
        precision="bfloat16",
        layout=Layout(),
    )
    assert plan.memory.activations > 0 and plan.flops == plan.flops_at_most > 0


def test_it_is_saved_and_loaded(tmp_path: Path) -> None:
    model, tokens = built(implicit=True).eval(), texts()
    save_model(model, tmp_path)
    for loaded in (load_model(tmp_path), AutoModelForCausalLM.from_pretrained(tmp_path)):
        assert type(loaded) is type(model)
        with torch.inference_mode():
            assert torch.equal(loaded(tokens).logits, model(tokens).logits)
    assert family_of(AutoConfig.from_pretrained(tmp_path)) is family_of(model.config)


_ROOMS = (
    "cost",
    "equilibrium",
    "evaluation",
    "kernels",
    "language_models",
    "planning",
    "training",
)


@pytest.mark.parametrize("room", _ROOMS)
def test_nobody_else_names_a_family(room: str) -> None:
    """Neither by its name as a value, nor by importing what is its own."""
    for file in Path(implicit_models.__file__).parent.joinpath(room).rglob("*.py"):
        tree = ast.parse(file.read_text())
        values = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
        imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert not values & FAMILIES.keys(), file
        packages = tuple(f"implicit_models.families.{name}" for name in FAMILIES)
        assert not [name for name in imported if name and name.startswith(packages)], file
