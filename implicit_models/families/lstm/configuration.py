"""The configuration of torch's LSTM, as Hugging Face's."""

from typing import Any, Literal

from huggingface_hub.dataclasses import strict

from implicit_models.families.registration import registered
from implicit_models.language_models.configuration import StrictConfig, check_positive


@registered
@strict
class LSTMConfig(StrictConfig):
    """torch's LSTM as a language model: a baseline, explicit by nature.

    Attributes
    ----------
    embedding_size
        Width of the embeddings, to which the LSTM's output is projected.
    hidden_size
        Width of the state.
    num_hidden_layers
        Number of layers.
    initializer_range
        Standard deviation of the initial embeddings. torch's own have 1: with it a small model
        begins to learn where it does not with .02 (docs/results.md).
    vocab_size, label_alignment, provenance
        As in `ImplicitConfig`.
    """

    family = "lstm"
    model_type = "implicit_models_lstm"

    vocab_size: int = 50_277
    embedding_size: int = 96
    hidden_size: int = 116
    num_hidden_layers: int = 1
    initializer_range: float = 0.02
    label_alignment: Literal["next_token", "aligned"] = "aligned"
    tie_word_embeddings: bool = True
    provenance: dict[str, Any] | None = None
    implicit = False

    def validate_sizes(self) -> None:
        """Check every range."""
        check_positive(self, "vocab_size", "embedding_size", "hidden_size", "num_hidden_layers")
        if self.initializer_range <= 0.0:
            raise ValueError(f"initializer_range is {self.initializer_range}; it must be positive")
        if not self.tie_word_embeddings:
            raise ValueError(
                "tie_word_embeddings is False; this model's head is its embedding, and takes True"
            )
