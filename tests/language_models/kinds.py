"""The kinds of model, tiny: each family, implicit and explicit; of Llama with a window too.

``padded`` is an implicit Llama without positions, whose window is filled up before a text.
"""

from typing import Any

import torch

from implicit_models.families.llama.configuration import ImplicitLlamaConfig
from implicit_models.families.llama.family import ImplicitLlamaForCausalLM
from implicit_models.families.mamba2.configuration import ImplicitMamba2Config
from implicit_models.families.mamba2.family import ImplicitMamba2ForCausalLM
from implicit_models.language_models.configuration import ImplicitConfig
from implicit_models.language_models.modelling import ImplicitForCausalLM

VOCABULARY = 31
TIGHT = 1e-12  # a tolerance with which all ways to search give the same to 1e-9
IMPLICIT = ("mamba2-implicit", "llama-implicit", "sliding-implicit", "padded-implicit")
EXPLICIT = ("mamba2-explicit", "llama-explicit", "sliding-explicit")
KINDS = (*IMPLICIT, *EXPLICIT)

_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "initializer_range": 0.3,
    "tolerance": 1e-4,
    "max_self_iterations": 500,
    "window": 4,
    "patience": 1,
    "damping": 1.0,
}
_MAMBA2: dict[str, Any] = {"state_size": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 4}
_CONTRACTION = {
    "in_proj": 0.15,
    "qkv_proj": 0.2,
    "gate_up_proj": 0.2,
    "out_proj": 20.0,
    "down_proj": 5.0,
}
_LLAMA: dict[str, Any] = {
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
}
_ATTENTION: dict[str, dict[str, Any]] = {
    "llama": {},
    "sliding": {"sliding_window": 5},
    "padded": {"sliding_window": 5, "pad_window": True, "rope": False},
}


def configuration(kind: str, **changes: Any) -> ImplicitConfig:
    family, _, explicitness = kind.partition("-")
    changes = {"implicit": explicitness == "implicit"} | changes
    if family == "mamba2":
        return ImplicitMamba2Config(**(_COMMON | _MAMBA2 | changes))
    return ImplicitLlamaConfig(**(_COMMON | _LLAMA | _ATTENTION[family] | changes))


def model_of(
    kind: str, seed: int = 0, dtype: torch.dtype = torch.float64, **changes: Any
) -> ImplicitForCausalLM:
    """A model in evaluation mode, which leans on its injection, so that it contracts."""
    config = configuration(kind, **changes)
    is_mamba2 = kind.startswith("mamba2")
    model_class = ImplicitMamba2ForCausalLM if is_mamba2 else ImplicitLlamaForCausalLM
    model = model_class(config)  # type: ignore[arg-type]
    model.initialise(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            for part, factor in _CONTRACTION.items():
                if part in name and (name.endswith("scale") or not config.weight_normalisation):
                    parameter.mul_(factor)
    return model.to(dtype).eval()


def tokens(batch: int, length: int, seed: int = 0, vocabulary: int = VOCABULARY) -> torch.Tensor:
    """Random token ids; 0, which the tests pad with, is none of them."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(1, vocabulary, (batch, length), generator=draw)


def mask_of(spans: list[tuple[int, int]], length: int) -> torch.Tensor:
    """An attention mask: of each row the first token, and one beyond the last."""
    positions = torch.arange(length)
    rows = [(positions >= first) & (positions < last) for first, last in spans]
    return torch.stack(rows).long()
