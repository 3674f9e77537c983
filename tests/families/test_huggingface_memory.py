"""Caches of transformers that are passed on, against one long pass; and those that are refused."""

from typing import Any

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Mamba2Config,
    Mamba2ForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from implicit_models.families.family import initial_memory
from implicit_models.families.huggingface.parameters import HuggingFaceParameters
from implicit_models.language_models.forward import forward
from implicit_models.language_models.labelled import Continuation
from implicit_models.language_models.source_names import SourceError
from implicit_models.training.carried import begin, carry_on
from implicit_models.training.curriculum import Passing
from implicit_models.training.distributed import Execution, distribute

COMMON: dict[str, Any] = {
    "vocab_size": 11,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA = COMMON | {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 24}
WINDOW = LLAMA | {"sliding_window": 5}
MAMBA2 = COMMON | {"state_size": 8, "head_dim": 8, "num_heads": 4, "n_groups": 1, "chunk_size": 4}
PASSING = {
    "mistral": lambda: MistralForCausalLM(MistralConfig(**WINDOW)),
    "qwen2": lambda: Qwen2ForCausalLM(
        Qwen2Config(**WINDOW, use_sliding_window=True, max_window_layers=0)
    ),
    "phi3": lambda: Phi3ForCausalLM(Phi3Config(**WINDOW)),
    "mamba2": lambda: Mamba2ForCausalLM(Mamba2Config(**MAMBA2)),
}
REFUSED = {
    "mistral without a window": (
        lambda: MistralForCausalLM(MistralConfig(**LLAMA, sliding_window=None)),
        "DynamicLayer, which is neither a state nor a sliding window",
    ),
    "llama": (lambda: LlamaForCausalLM(LlamaConfig(**LLAMA)), "DynamicLayer"),
    "gemma2, every other layer": (
        lambda: Gemma2ForCausalLM(Gemma2Config(**WINDOW, head_dim=4)),
        "DynamicLayer",
    ),
    "gpt2": (lambda: GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=2, n_head=4)), "DynamicLayer"),
    "mamba, which forgets its state": (
        lambda: MambaForCausalLM(MambaConfig(**COMMON, state_size=8)),
        "does not read on as it reads the whole",
    ),
    "rotations that change": (
        lambda: MistralForCausalLM(
            MistralConfig(
                **WINDOW,
                rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0},
            )
        ),
        "its rotations depend on the length",
    ),
}
TEXT = torch.randint(0, 11, (3, 24), generator=torch.Generator().manual_seed(0))


def made(build: Any) -> Any:
    torch.manual_seed(0)
    model = build()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(8)
    return model.double().train()


@pytest.mark.parametrize("name", PASSING)
def test_pieces_with_a_carry_are_one_long_pass(name: str) -> None:
    model = made(PASSING[name])
    assert model.training
    whole = forward(model, TEXT, None).logits
    memory: Any = initial_memory(model, 3)
    sizes = {name: tensor.shape for name, tensor in memory.tensors().items()}
    found = []
    for length in (2, 3, 8, 11):
        start = sum(each.shape[1] for each in found)
        model.zero_grad()
        memory = memory.resumed({k: t.detach() for k, t in memory.tensors().items()})
        output = forward(model, TEXT[:, start : start + length], None, memory)
        output.logits.square().sum().backward()
        found.append(output.logits.detach())
        memory = output.memory
        assert {name: tensor.shape for name, tensor in memory.tensors().items()} == sizes
    assert model.get_input_embeddings().weight.grad.abs().max() > 0
    # transformers rotates by angles in float32, and computes states of Mamba2 in it.
    torch.testing.assert_close(torch.cat(found, dim=1), whole, rtol=1e-5, atol=1e-5)
    assert model.training


@pytest.mark.parametrize("name", PASSING)
@torch.no_grad()
def test_in_bfloat16_a_memory_of_float32_is_gone_on_from(name: str) -> None:
    torch.manual_seed(0)
    model = PASSING[name]()
    found = []
    for precision in ("float32", "bfloat16"):
        module, memory = distribute(model, precision, Execution()), initial_memory(model, 3)
        for piece in (slice(0, 9), slice(9, 16)):
            output = forward(module, TEXT[:, piece], None, memory)
            memory = output.memory
        found.append(output.logits.float())
    assert not torch.equal(*found)
    torch.testing.assert_close(*found, rtol=0.05, atol=0.01)


@pytest.mark.parametrize("name", PASSING)
@torch.no_grad()
def test_a_step_of_one_token_leaves_the_memory_before_it_as_it_was(name: str) -> None:
    model = made(PASSING[name])
    memory = forward(model, TEXT[:, :9], None, initial_memory(model, 3)).memory
    assert memory is not None
    kept = {name: tensor.clone() for name, tensor in memory.tensors().items()}
    found = [forward(model, TEXT[:, 9:10], None, memory).logits for _ in range(2)]
    assert torch.equal(*found)
    assert all(torch.equal(tensor, kept[name]) for name, tensor in memory.tensors().items())
    whole = forward(model, TEXT[:, :10], None).logits[:, 9:]
    torch.testing.assert_close(found[0], whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", PASSING)
def test_a_row_that_is_reset_is_a_text_of_its_own(name: str) -> None:
    model = made(PASSING[name])
    start, labels = initial_memory(model, 3), TEXT[:, :8]
    with torch.no_grad():
        first = forward(model, TEXT[:, :8], None, start)
        assert first.memory is not None
        carried = carry_on(first.memory, labels, labels, Passing(1, 0.0, None))
        begins = torch.tensor([False, True, False])
        begun = begin(labels, carried, begins, start, Continuation(is_ordered=True))
        found = forward(model, TEXT[:, 8:], None, begun.memory).logits
        alone = forward(model, TEXT[1:2, 8:], None).logits
        whole = forward(model, TEXT, None).logits[:, 8:]
    torch.testing.assert_close(found[1:2], alone, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found[[0, 2]], whole[[0, 2]], rtol=1e-5, atol=1e-5)
    assert (found[1] - whole[1]).abs().max() > 1e-2


@pytest.mark.parametrize("name", REFUSED)
def test_what_grows_or_forgets_is_refused_with_the_reason(name: str) -> None:
    build, why = REFUSED[name]
    with pytest.raises(SourceError, match="hands nothing of a fixed size") as caught:
        initial_memory(made(build), 2)
    assert why in str(caught.value) and "\n" not in str(caught.value)


def test_a_configuration_says_what_can_have_no_memory(tmp_path) -> None:
    for number, (config, may) in enumerate(
        [
            (MistralConfig(), None),
            (MistralConfig(sliding_window=9), None),
            (MistralConfig(sliding_window=None), False),
            (Mamba2Config(**MAMBA2), None),
            (LlamaConfig(), False),
            (GPT2Config(), False),
        ]
    ):
        config.save_pretrained(tmp_path / str(number))
        source = str(tmp_path / str(number))
        assert HuggingFaceParameters(family="huggingface", source=source).has_state is may
