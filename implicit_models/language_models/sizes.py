"""The paper's model sizes, and how many parameters a configuration has.

    python -m implicit_models.language_models.sizes

prints them as a table.
"""

import difflib
from dataclasses import dataclass
from typing import Any

from implicit_models.language_models.configuration import (
    ImplicitConfig,
    ImplicitLlamaConfig,
    ImplicitMamba2Config,
)

VOCABULARY = 50_277  # of the GPT-NeoX tokenizer

# Layers and width, and for Llama the width d_ff and the heads (Schöne et al. 2025, pretraining).
_MAMBA2 = {"130m": (24, 768), "350m": (48, 1024), "760m": (48, 1536), "1.3b": (48, 2048)}
_LLAMA = {
    "130m": (12, 768, 3072, 12),
    "350m": (24, 1024, 4096, 16),
    "760m": (24, 1536, 6144, 16),
    "1.3b": (24, 2048, 8192, 32),
}
SIZES = tuple(f"{family}-{size}" for family in ("mamba2", "llama") for size in _MAMBA2)


def from_size(name: str, **changes: Any) -> ImplicitConfig:
    """Give the configuration of one of the paper's models, ``"mamba2-1.3b"``.

    Llama's feed-forward network is 2/3 of d_ff wide, rounded up to a multiple of 64 (how the paper
    rounds is not known).

    Parameters
    ----------
    changes
        Other fields of the configuration, ``implicit=False``.

    Raises
    ------
    ValueError
        Naming the size, those there are, and the closest one.
    """
    if name not in SIZES:
        close = difflib.get_close_matches(name.lower(), SIZES, n=1)
        meant = f" (did you mean {close[0]!r}?)" if close else ""
        raise ValueError(f"{name!r} is no size{meant}; there are {', '.join(SIZES)}")
    family, _, size = name.partition("-")
    if family == "mamba2":
        layers, width = _MAMBA2[size]
        sizes: dict[str, Any] = {"num_hidden_layers": layers, "hidden_size": width}
        sizes |= {"vocab_size": VOCABULARY, "state_size": 128, "expand": 2, "head_dim": 64}
        return ImplicitMamba2Config(**(sizes | changes))
    layers, width, d_ff, heads = _LLAMA[size]
    sizes = {
        "vocab_size": VOCABULARY,
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": heads,
        "intermediate_size": -(-2 * d_ff // (3 * 64)) * 64,
    }
    return ImplicitLlamaConfig(**(sizes | changes))


@dataclass(frozen=True)
class ParameterCount:
    """Numbers of parameters.

    Attributes
    ----------
    embedding
        Of the embedding, and of the head where it is not tied to it.
    stack
        Of all blocks and the final norm.
    injection
        Of what an implicit model has on top.
    """

    embedding: int
    stack: int
    injection: int

    @property
    def total(self) -> int:
        """All parameters, a tied head counted once."""
        return self.embedding + self.stack + self.injection

    @property
    def non_embedding(self) -> int:
        """All but embedding and head."""
        return self.stack + self.injection


def count_parameters(config: ImplicitConfig) -> ParameterCount:
    """Count the parameters of a model of this configuration, in closed form."""
    width, layers = config.hidden_size, config.num_hidden_layers
    per_row = 1 if config.weight_normalisation else 0  # a scale for each row of a weight

    def weight(rows: int, columns: int) -> int:
        return rows * (columns + per_row)

    if isinstance(config, ImplicitLlamaConfig):
        assert config.num_key_value_heads and config.head_dim
        inner = config.num_attention_heads * config.head_dim
        projection = inner + 2 * config.num_key_value_heads * config.head_dim
        hidden = config.intermediate_size
        block = 2 * width + weight(projection, width) + weight(width, inner)
        block += weight(2 * hidden, width) + weight(width, hidden)
    else:
        assert isinstance(config, ImplicitMamba2Config)
        inner, heads = config.expand * width, config.num_heads
        channels = inner + 2 * config.n_groups * config.state_size
        projection = inner + channels + heads
        block = width + weight(projection, width) + weight(channels, config.conv_kernel) + channels
        block += 3 * heads + inner + weight(width, inner)
    injection = width + weight(projection, width) + projection if config.implicit else 0
    embedding = config.num_embeddings * width * (1 if config.tie_word_embeddings else 2)
    return ParameterCount(embedding, layers * block + width, injection)


def size_table() -> str:
    """Give a Markdown table of the paper's sizes."""
    lines = ["| size | total | without embedding | injection |", "|---|--:|--:|--:|"]
    for name in SIZES:
        count = count_parameters(from_size(name))
        share = count.injection / count.non_embedding
        lines.append(
            f"| {name} | {count.total:,} | {count.non_embedding:,} | "
            f"{count.injection:,} ({share:.1%}) |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    print(size_table())
