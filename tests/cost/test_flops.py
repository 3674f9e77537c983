"""The closed forms of what a model costs, and counting what has none."""

import dataclasses
from typing import Any

import pytest
import torch
from transformers import GPT2Config, LlamaConfig, LlamaForCausalLM
from transformers.models.gpt2 import GPT2LMHeadModel

from implicit_models.cost.flops import configuration_flops, model_flops
from implicit_models.cost.passes import reading_flops, step_flops
from implicit_models.language_models.conversion import from_transformers
from implicit_models.language_models.modelling import ImplicitForCausalLM
from implicit_models.language_models.sizes import SIZES, count_parameters, from_size
from tests.cost.counting import count
from tests.language_models.kinds import EXPLICIT, VOCABULARY, model_of, tokens
from tests.language_models.models import LSTM, small_model

BATCH = 3
CHANGES: list[dict[str, Any]] = [
    {},
    {"weight_normalisation": True},
    {"pad_vocab_size_multiple": 16, "num_hidden_layers": 3},
]
SHAPES: dict[str, list[dict[str, Any]]] = {
    "mamba2-explicit": [{"n_groups": 1, "expand": 3}, {"chunk_size": None}],
    "llama-explicit": [{"num_key_value_heads": 4}, {"head_dim": 6, "intermediate_size": 40}],
}


def models_of(kind: str) -> list[ImplicitForCausalLM]:
    return [model_of(kind, **changes) for changes in CHANGES + SHAPES[kind]]


def reading(model: Any, length: int, **arguments: Any) -> int:
    def read() -> None:
        with torch.inference_mode():
            model(tokens(BATCH, length), **arguments)

    return count(read)


@pytest.mark.parametrize("length", [1, 4, 21, 40])
@pytest.mark.parametrize("kind", EXPLICIT)
def test_reading_costs_what_torch_counts(kind: str, length: int) -> None:
    for model in models_of(kind):
        flops = model_flops(model)
        whole = reading_flops(flops, length=length, num_sequences=BATCH)
        assert whole == reading(model, length, use_cache=False)
        cached = reading_flops(flops, length=length, num_sequences=BATCH, piece_length=length)
        assert cached == reading(model, length, use_cache=True)


@pytest.mark.parametrize("length", [1, 21])
@pytest.mark.parametrize("kind", EXPLICIT)
def test_an_explicit_step_costs_what_torch_counts(kind: str, length: int) -> None:
    for model in models_of(kind):

        def step(model: ImplicitForCausalLM = model) -> None:
            model(tokens(BATCH, length), labels=tokens(BATCH, length)).loss.backward()

        flops = model_flops(model)
        shape = {"length": length, "num_sequences": BATCH}
        assert step_flops(flops, None, **shape) == count(step)
        model.model.gradient_checkpointing = True
        assert step_flops(flops, None, checkpointing=True, **shape) == count(step)


@pytest.mark.parametrize("kind", EXPLICIT)
def test_logits_that_are_not_computed_cost_nothing(kind: str) -> None:
    model = model_of(kind)
    found = reading_flops(model_flops(model), length=9, num_sequences=BATCH, num_logits=2)
    assert found == reading(model, 9, use_cache=False, logits_to_keep=2)


@pytest.mark.parametrize("num_layers", [1, 3])
def test_an_lstm_costs_what_torch_counts(num_layers: int) -> None:
    model: Any = small_model(dataclasses.replace(LSTM, num_layers=num_layers))
    flops, ids = model_flops(model), torch.zeros(BATCH, 60, dtype=torch.long)

    def read() -> None:
        with torch.inference_mode():
            model(ids)

    assert reading_flops(flops, length=60, num_sequences=BATCH) == count(read)
    found = step_flops(flops, None, length=60, num_sequences=BATCH)
    # The first token's state is constant: no gradient for it.
    assert found == pytest.approx(count(lambda: model(ids).logits.sum().backward()), rel=0.02)


@pytest.mark.parametrize("size", SIZES)
def test_a_token_multiplies_each_parameter_once(size: str) -> None:
    config = from_size(size, implicit=False)
    flops = configuration_flops(config)
    parameters = count_parameters(config)
    evaluation = flops.stack.evaluation(2048, 2048, has_carry=False)
    # Norms, biases and the convolution are parameters as well, but of no product.
    assert evaluation.weights / 2048 == pytest.approx(2 * parameters.stack, rel=0.01)
    assert flops.head == 2 * parameters.embedding
    injection = configuration_flops(from_size(size)).injection
    assert injection == pytest.approx(2 * count_parameters(from_size(size)).injection, rel=0.01)


def test_a_foreign_llama_costs_what_ours_of_its_shape_costs() -> None:
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=24,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )
    theirs = LlamaForCausalLM(config).eval()
    ours = model_flops(from_transformers(theirs))
    counted = model_flops(theirs)
    for length in (1, 5, 70):
        shape = {"length": length, "num_sequences": BATCH}
        assert reading_flops(counted, **shape) == reading_flops(ours, **shape)
        assert step_flops(counted, None, **shape) == step_flops(ours, None, **shape)


def test_a_foreign_model_is_counted_by_torch() -> None:
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=16,
        n_layer=2,
        n_head=2,
        n_positions=64,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = GPT2LMHeadModel(config).eval()
    found = reading_flops(model_flops(model), length=50, num_sequences=BATCH)
    assert found == reading(model, 50, use_cache=False)


def test_a_foreign_configuration_has_no_closed_form() -> None:
    with pytest.raises(ValueError, match=r"a GPT2Config; .* take model_flops\(model\)"):
        configuration_flops(GPT2Config())
