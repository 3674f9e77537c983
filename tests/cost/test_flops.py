"""The closed forms of what a model costs, and counting what has none."""

from typing import Any

import pytest
import torch
from transformers import (
    GPT2Config,
    LlamaConfig,
    LlamaForCausalLM,
    Mamba2Config,
    Mamba2ForCausalLM,
)
from transformers.models.gpt2 import GPT2LMHeadModel

from implicit_models.cost.flops import configuration_flops, model_flops
from implicit_models.cost.passes import step_flops
from implicit_models.cost.reading import reading_flops
from implicit_models.families.conversion import from_transformers
from implicit_models.families.costs import Past
from implicit_models.families.huggingface.counted_flops import CountedFlops
from implicit_models.families.sizes import SIZES, count_parameters, from_size
from implicit_models.language_models.modelling import ImplicitForCausalLM
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
    "sliding-explicit": [
        {"sliding_window": 1},
        {"sliding_window": 70},
        {"sliding_window": 30, "pad_window": True},
    ],
}


def models_of(kind: str) -> list[ImplicitForCausalLM]:
    return [model_of(kind, **changes) for changes in CHANGES + SHAPES[kind]]


def reading(model: Any, length: int, **arguments: Any) -> int:
    def read() -> None:
        with torch.inference_mode():
            model(tokens(BATCH, length), **arguments)

    return count(read)


def flops_of(model: Any, length: int, *, num_logits: int | None = None, past: Any = None) -> float:
    flops = model_flops(model)
    made = BATCH * (length if num_logits is None else num_logits) * flops.head
    return made + reading_flops(flops, num_sequences=BATCH, length=length, past=past)


@pytest.mark.parametrize("length", [1, 4, 21, 40, 64, 130, 200])
@pytest.mark.parametrize("kind", EXPLICIT)
def test_reading_costs_what_torch_counts(kind: str, length: int) -> None:
    for model in models_of(kind):
        assert flops_of(model, length) == reading(model, length, use_cache=False)
        cached = flops_of(model, length, past=Past.empty(BATCH))
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
    assert flops_of(model, 9, num_logits=2) == reading(model, 9, use_cache=False, logits_to_keep=2)


@pytest.mark.parametrize("num_layers", [1, 3])
def test_an_lstm_costs_what_torch_counts(num_layers: int) -> None:
    model: Any = small_model(LSTM.replace(num_layers=num_layers))
    flops, ids = model_flops(model), torch.zeros(BATCH, 60, dtype=torch.long)

    def read() -> None:
        with torch.inference_mode():
            model(ids)

    assert flops_of(model, 60) == count(read)
    found = step_flops(flops, None, length=60, num_sequences=BATCH)
    # The first token's state is constant: no gradient for it.
    assert found == pytest.approx(count(lambda: model(ids).logits.sum().backward()), rel=0.02)


@pytest.mark.parametrize("size", SIZES)
def test_a_token_multiplies_each_parameter_once(size: str) -> None:
    config = from_size(size, implicit=False)
    flops = configuration_flops(config)
    parameters = count_parameters(config)
    evaluation = flops.stack.evaluation(2048)
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
    ours = from_transformers(theirs)
    counted, closed = model_flops(theirs), model_flops(ours)
    assert counted.head == closed.head
    for length in (1, 5, 70):
        assert flops_of(theirs, length) == flops_of(ours, length)
        assert counted.stack.evaluation(length, before=90) == closed.stack.evaluation(
            length, before=90
        )
        shape = {"length": length, "num_sequences": BATCH}
        assert step_flops(counted, None, **shape) == step_flops(closed, None, **shape)


@pytest.mark.parametrize("num_positions", [7, 64, 2048])
def test_a_foreign_model_is_counted_by_torch_on_a_few_tokens(num_positions: int) -> None:
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=16,
        n_layer=2,
        n_head=2,
        n_positions=num_positions,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = GPT2LMHeadModel(config)
    lengths = []
    hook = model.transformer.wte.register_forward_hook(
        lambda module, given, output: lengths.append(given[0].shape[1])
    )
    model.train()
    model_flops(model)
    num_passes = len(lengths)
    assert model_flops(model) is model_flops(model) and len(lengths) == num_passes
    assert max(lengths) <= min(48, num_positions) and model.training
    hook.remove()
    model.eval()
    length = min(num_positions, 200)
    assert flops_of(model, length) == reading(model, length, use_cache=False)


def test_counts_are_extended_by_pairs_of_tokens() -> None:
    found = CountedFlops.of(lambda length: 5 + 3 * length + 2 * length**2, (4, 6, 9))
    assert found == CountedFlops(once=5, token=3, filled_token=0, pair=2, chunk_length=1)
    assert found.evaluation(100) == (5 + 300, 2 * 100**2)
    assert found.evaluation(100, before=7) == (5 + 300, 2 * 100 * 107)


@pytest.mark.parametrize("chunk_size", [4, 32])
def test_a_foreign_scan_computes_whole_chunks(chunk_size: int) -> None:
    model = Mamba2ForCausalLM(
        Mamba2Config(
            vocab_size=VOCABULARY,
            hidden_size=16,
            state_size=8,
            num_heads=4,
            head_dim=8,
            n_groups=1,
            chunk_size=chunk_size,
            num_hidden_layers=2,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=None,
        )
    ).eval()
    for length in (5, 40, 130):
        assert flops_of(model, length) == reading(model, length, use_cache=False)


def test_a_foreign_configuration_has_no_closed_form() -> None:
    with pytest.raises(ValueError, match=r"a GPT2Config; .* take model_flops\(model\)"):
        configuration_flops(GPT2Config())
