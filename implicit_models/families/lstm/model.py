"""torch's LSTM as a language model."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers.utils.deprecation import deprecate_kwarg

from implicit_models.equilibrium.phase import Phase
from implicit_models.families.lstm.configuration import LSTMConfig
from implicit_models.language_models.losses import LOSSES
from implicit_models.language_models.outputs import ImplicitCausalLMOutput
from implicit_models.language_models.pretrained import StrictPreTrainedModel
from implicit_models.language_models.vocabulary import check_token_ids


@dataclass(frozen=True)
class LSTMStates:
    """What an LSTM remembers of a text: its layers' states.

    Attributes
    ----------
    is_detached
        As in `CarryCache`.
    """

    hidden: Float[Tensor, "B layers H"]
    cell: Float[Tensor, "B layers H"]
    is_detached: bool = False

    def tensors(self) -> dict[str, Tensor]:
        """Return them by name, each with a row for each sequence."""
        return {"hidden": self.hidden, "cell": self.cell}

    def resumed(self, tensors: Mapping[str, Tensor]) -> "LSTMStates":
        """Return the states whose `tensors` these are, detached."""
        return LSTMStates(**tensors, is_detached=True)

    def arguments(self, num_tokens: int) -> dict[str, Any]:
        """Return what a forward pass over so many tokens behind it is told."""
        return {"use_cache": True, "cache": self}

    def following(self, output: Any) -> "LSTMStates":
        """Return the states after these tokens, from what the forward pass has returned."""
        return output.cache


class LSTMLanguageModel(StrictPreTrainedModel):
    """Embedding, LSTM, projection to the embedding's width, head tied to the embedding.

    Initialisation: embeddings normal with ``initializer_range``, the rest torch's own
    (uniform in +-1/sqrt(hidden_size)). Its cache are the `LSTMStates`.
    """

    config_class = LSTMConfig
    config: LSTMConfig
    is_implicit = False
    accepts_loss_kwargs = True

    def __init__(self, config: LSTMConfig) -> None:
        super().__init__(config)
        width = config.embedding_size
        self.embed_tokens = nn.Embedding(config.vocab_size, width)
        self.lstm = nn.LSTM(width, config.hidden_size, config.num_hidden_layers, batch_first=True)
        self.projection = nn.Linear(config.hidden_size, width, bias=False)
        # By which transformers' Trainer counts labels: without the first of a text, or with it.
        self.loss_type = "ForCausalLM" if config.label_alignment == "next_token" else None
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        """Return the embedding, which is the head as well."""
        return self.embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Take another embedding."""
        self.embed_tokens = value

    @deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")
    def forward(
        self,
        input_ids: Int[Tensor, "B L"],
        labels: Int[Tensor, "B L"] | None = None,
        phase: Phase | None = None,
        use_cache: bool | None = None,
        cache: LSTMStates | None = None,
        num_items_in_batch: Tensor | int | None = None,
    ) -> ImplicitCausalLMOutput:
        """Compute logits for each token; see `ImplicitForCausalLM.forward`.

        Raises
        ------
        ValueError
            Where a phase is given, the states of another model or of other texts, or a token id
            outside the vocabulary (on a GPU `torch._assert_async` tells).
        """
        if phase is not None:
            raise ValueError(f"phase is {phase}; this explicit model takes None")
        if not torch.compiler.is_compiling():
            check_token_ids(input_ids, self.config.vocab_size)
        hidden, after = self._advance(self.embed_tokens(input_ids), cache)
        kept = None
        if use_cache or (use_cache is None and cache is not None):
            is_detached = cache is not None and cache.is_detached
            hidden_state, cell_state = (
                (state.detach() if is_detached else state).transpose(0, 1) for state in after
            )
            kept = LSTMStates(hidden_state, cell_state, is_detached)
        logits = F.linear(self.projection(hidden), self.embed_tokens.weight)
        loss = None
        if labels is not None:
            loss = LOSSES[self.config.label_alignment](logits, labels, num_items_in_batch)
        return ImplicitCausalLMOutput(loss=loss, logits=logits, cache=kept)

    def initial_cache(self, batch: int) -> LSTMStates:
        """Return the states of a text's start: zeros."""
        config, like = self.config, self.projection.weight
        sizes = (batch, config.num_hidden_layers, config.hidden_size)
        zeros = torch.zeros(sizes, dtype=like.dtype, device=like.device)
        return LSTMStates(zeros, zeros)

    def _advance(
        self, embedded: Tensor, cache: LSTMStates | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return each token's hidden state, and torch's states after the last."""
        batch, length = embedded.shape[:2]
        if length:
            return self.lstm(embedded, self._states(cache, embedded))
        states = self._states(cache or self.initial_cache(batch), embedded)
        assert states is not None
        return embedded.new_zeros(batch, 0, self.config.hidden_size), states

    def _states(self, cache: LSTMStates | None, like: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return what torch's LSTM takes: states in the precision of its inputs."""
        if cache is None:
            return None
        batch = len(like)
        expected = (batch, self.config.num_hidden_layers, self.config.hidden_size)
        if tuple(cache.hidden.shape) != expected:
            raise ValueError(
                f"cache has states of the shape {tuple(cache.hidden.shape)}; this model "
                f"and {batch} sequences take {expected}"
            )
        states = [cache.hidden, cache.cell]
        if torch.is_grad_enabled():  # autograd saves nothing made in inference mode
            states = [each.clone() if each.is_inference() else each for each in states]
        hidden, cell = (each.to(like.dtype).transpose(0, 1).contiguous() for each in states)
        return hidden, cell

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.LSTM | nn.Linear):
            module.reset_parameters()
        else:
            super()._init_weights(module)
