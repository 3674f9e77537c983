"""Language models, explicit and implicit, from one stack: the trunk and a head on it."""

import functools
from typing import Any

from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from transformers import Cache, GenerationMixin
from transformers.utils.deprecation import deprecate_kwarg

from implicit_models.backbones.stack import StackCarry
from implicit_models.equilibrium.phase import Phase
from implicit_models.kernels.linear import linear
from implicit_models.language_models.cache import CarryCache
from implicit_models.language_models.cell import StackCell
from implicit_models.language_models.configuration import ImplicitConfig, refuse_attention_maps
from implicit_models.language_models.losses import (
    LOSSES,
    among_tokens,
    center_loss,
    count_labels,
    predicted_loss,
)
from implicit_models.language_models.outputs import ImplicitCausalLMOutput
from implicit_models.language_models.trunk import ImplicitModel, ImplicitPreTrainedModel

_OF_A_SEARCH = ("phase", "tolerance", "max_self_iterations")
_PREPARE: Any = vars(GenerationMixin)["prepare_inputs_for_generation"]


class Head(nn.Linear):
    """The projection to the vocabulary, fast for a few tokens too."""

    def forward(self, hidden: Float[Tensor, "B L D"]) -> Float[Tensor, "B L V"]:
        """Project."""
        return linear(hidden, self.weight)


class ImplicitForCausalLM(ImplicitPreTrainedModel, GenerationMixin):
    """A language model: logits for each token from its hidden state.

    A family's class says how the weights of its blocks begin. The others':

    | weight | begins as |
    |---|---|
    | embeddings (and the tied head) | normal, mean 0, standard deviation ``initializer_range`` |
    | injection: projection.weight | uniform in +-1/sqrt(d_model) |
    | injection: bias | 0 |
    | every norm's weight | 1 |
    | every scale | row length of its weight: normalising changes nothing yet |
    """

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}
    accepts_loss_kwargs = True
    takes_targets = True
    trunk_class: type[ImplicitModel]

    def __init__(self, config: ImplicitConfig) -> None:
        super().__init__(config)
        self.model = self.trunk_class(config)
        self.lm_head = Head(config.hidden_size, config.num_embeddings, bias=False)
        if config.label_alignment == "aligned":
            # Or transformers' Trainer leaves each text's first label uncounted.
            self.loss_type = None
        self.post_init()

    def get_output_embeddings(self) -> nn.Linear:
        """Return the head."""
        return self.lm_head

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        """Take another head."""
        self.lm_head = new_embeddings

    def cell(
        self, input_ids: Int[Tensor, "B L"], carry: StackCarry | None = None
    ) -> tuple[StackCell, Float[Tensor, "B L D"]]:
        """Return the implicit model's cell for these tokens, and the start of the search."""
        return self.model.cell(input_ids, carry)

    @deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")
    def forward(
        self,
        input_ids: Int[Tensor, "B L"] | None = None,
        attention_mask: Shaped[Tensor, "B any"] | None = None,
        cache: Cache | None = None,
        inputs_embeds: Float[Tensor, "B L D"] | None = None,
        labels: Int[Tensor, "B L"] | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        num_items_in_batch: Tensor | int | None = None,
        phase: Phase | None = None,
        tolerance: float | None = None,
        max_self_iterations: int | None = None,
        targets: Int[Tensor, "B L"] | None = None,
        center_weight: float = 0.0,
    ) -> ImplicitCausalLMOutput | tuple[Any, ...]:
        """Return logits for each token; parameters beyond these as in `ImplicitModel.forward`.

        Parameters
        ----------
        labels
            Token ids, or -100 where none is counted; shifted here or not, as the configuration's
            ``label_alignment`` says.
        logits_to_keep
            Compute logits for so many of the last tokens (0: all), or for the tokens of these
            indices. With targets, of which there are no logits, 0.
        num_items_in_batch
            What to divide the summed loss by, in place of the number of labels, whose share of it
            weighs the penalty.
        targets
            In place of labels: what each token is to predict, or -100; never shifted. The output
            then has ``predictions`` and no logits, which are never held all at once, and its loss
            is that of the targets alone, beside the penalty.
        center_weight
            Of the targets' `center_loss` over the hidden states, which is in the output beside the
            loss.

        Raises
        ------
        ValueError
            Where labels or some logits are asked for beside targets, and as in
            `ImplicitModel.forward`.
        """
        if targets is not None and labels is not None:
            raise ValueError("give either labels or targets, and not both")
        keeps_all = isinstance(logits_to_keep, int) and logits_to_keep == 0
        if targets is not None and not keeps_all:
            raise ValueError("logits_to_keep is given beside targets, which leave no logits")
        found = self.model(
            input_ids,
            attention_mask,
            cache,
            inputs_embeds,
            use_cache,
            output_hidden_states,
            True,
            phase,
            tolerance,
            max_self_iterations,
        )
        loss, logits, predictions, center = None, None, None, None
        if targets is not None:
            loss, predictions = predicted_loss(
                found.last_hidden_state,
                self.lm_head.weight,
                targets,
                num_items_in_batch,
                self.config.vocab_size,
            )
            if center_weight:
                center = center_weight * center_loss(found.last_hidden_state, targets)
        else:
            kept = logits_to_keep
            if isinstance(kept, int):
                kept = slice(-kept, None) if kept else slice(None)
            logits = self.lm_head(found.last_hidden_state[:, kept])
            if self.config.num_embeddings > self.config.vocab_size:
                logits = logits[..., : self.config.vocab_size]
        if labels is not None:
            assert logits is not None
            labels, alignment = among_tokens(labels, attention_mask, self.config.label_alignment)
            loss = LOSSES[alignment](logits, labels, num_items_in_batch)
            if found.penalty is not None:
                share = 1.0
                if num_items_in_batch is not None:
                    share = count_labels(labels, alignment) / num_items_in_batch
                loss = loss + share * found.penalty
        output = ImplicitCausalLMOutput(
            loss=loss,
            logits=logits,
            predictions=predictions,
            cache=found.cache,
            hidden_states=found.hidden_states,
            self_iterations=found.self_iterations,
            search=found.search,
            penalty=found.penalty,
            center=center,
        )
        wants_dict = self.config.return_dict if return_dict is None else return_dict
        return output if wants_dict else output.to_tuple()

    @functools.wraps(_PREPARE)  # whose signature transformers looks at
    def prepare_inputs_for_generation(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the next forward pass's arguments: without the tokenizer of ``stop_strings``."""
        kwargs.pop("tokenizer", None)
        return _PREPARE(self, *args, **kwargs)

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> None:
        """Put an empty cache in where ``generate`` wants one and the caller gave none.

        Raises
        ------
        ValueError
            Where ``generate`` is told something that these models cannot do.
        """
        refuse_attention_maps(generation_config.output_attentions)
        if generation_config.cache_implementation is not None:
            raise ValueError(
                f"cache_implementation is {generation_config.cache_implementation!r}; these models "
                "have one kind of cache, and take None"
            )
        given = [name for name in _OF_A_SEARCH if model_kwargs.get(name) is not None]
        if given and generation_config.guidance_scale not in (None, 1):
            raise ValueError(
                f"{given[0]} is given beside guidance_scale, whose unconditional pass transformers "
                "makes without it; leave one of them out, or set tolerance and max_self_iterations "
                "in the model's configuration"
            )
        if model_kwargs.get("cache") is None and generation_config.use_cache is not False:
            model_kwargs["cache"] = CarryCache()
