"""Tiny models of every kind that reads texts, in float64, and what they think by brute force."""

import numpy as np
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Mamba2Config,
    Mamba2ForCausalLM,
)

from implicit_models.equilibrium.phase import Phase, search_phase
from implicit_models.equilibrium.window import Window
from implicit_models.language_models.forward import is_implicit
from implicit_models.language_models.language_model import LanguageModel
from tests.language_models.models import ALL, VOCABULARY, small_model

TIGHT = search_phase(1e-9, 400, damping=1.0, window=Window(6, 1))
WHOLE = search_phase(1e-9, 400, damping=1.0)


def llama(**changes) -> LanguageModel:
    sizes = {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "initializer_range": 0.3,
    }
    return LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, **sizes | changes))


def gpt2(**changes) -> LanguageModel:
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "initializer_range": 0.3}
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=VOCABULARY, bos_token_id=None, eos_token_id=None, **sizes | changes)
    )


def mamba2() -> LanguageModel:
    return Mamba2ForCausalLM(
        Mamba2Config(
            vocab_size=VOCABULARY,
            hidden_size=16,
            state_size=8,
            num_heads=4,
            head_dim=8,
            n_groups=1,
            chunk_size=4,
            num_hidden_layers=2,
            initializer_range=0.3,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=None,
        )
    )


FOREIGN = {"transformers llama": llama, "transformers gpt2": gpt2, "transformers mamba2": mamba2}
KINDS = (*ALL, *FOREIGN)


def make(kind: str) -> LanguageModel:
    if kind in ALL:
        return small_model(ALL[kind])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return FOREIGN[kind]().double().eval()


def phase_of(model: LanguageModel) -> Phase | None:
    return TIGHT if is_implicit(model) else None


@torch.no_grad()
def brute_force(model: LanguageModel, context: np.ndarray, label: int) -> float:
    """The nats of one label after one context, read as a whole, from the model's own logits."""
    arguments = {"phase": WHOLE} if is_implicit(model) else {}
    tokens = torch.from_numpy(np.array(context, dtype=np.int64))[None]
    logits = model(input_ids=tokens, use_cache=False, **arguments).logits[0, -1]
    return float(logits.logsumexp(-1) - logits[int(label)])


def rounding(kind: str) -> float:
    """How closely two ways to read must agree."""
    return 1e-5 if kind == "transformers mamba2" else 1e-7  # it computes in float32 inside


def random_tokens(*size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, VOCABULARY, size)
