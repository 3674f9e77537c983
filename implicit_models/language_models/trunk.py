"""The trunk: embeddings in, hidden states out; a stack called once, or its fixed point."""

import dataclasses
from operator import methodcaller
from typing import Any, cast

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from transformers import Cache
from transformers.utils.deprecation import deprecate_kwarg

from implicit_models.backbones.stack import Block, Stack, StackCarry
from implicit_models.equilibrium.iterate import find_fixed_point
from implicit_models.equilibrium.phase import Phase
from implicit_models.language_models.cache import CarryCache, checked_cache
from implicit_models.language_models.cell import Injection, StackCell
from implicit_models.language_models.configuration import ImplicitConfig
from implicit_models.language_models.outputs import (
    Evaluated,
    ImplicitModelOutput,
    count_self_iterations,
)
from implicit_models.language_models.padding import Alignment
from implicit_models.language_models.phases import default_phase
from implicit_models.language_models.pretrained import StrictPreTrainedModel
from implicit_models.language_models.vocabulary import check_token_ids


class ImplicitPreTrainedModel(StrictPreTrainedModel):
    """What the trunk and the language model have in common."""

    config: ImplicitConfig
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _is_stateful = True

    def get_input_embeddings(self) -> nn.Embedding:
        """Return the embedding."""
        return self.trunk.embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Take another embedding."""
        self.trunk.embed_tokens = value

    @property
    def trunk(self) -> "ImplicitModel":
        """The model without its head: itself where it has none."""
        return cast("ImplicitModel", self.base_model)

    @property
    def is_implicit(self) -> bool:
        """Whether a forward pass seeks a fixed point."""
        return self.config.implicit

    def initial_cache(self, batch: int) -> CarryCache:
        """Return the cache of a text's start, for texts that come in pieces."""
        return CarryCache(self.trunk.stack.initial_carry(batch))

    def resize_token_embeddings(self, new_num_tokens: int | None = None, *args: Any, **kw: Any):
        """Change the vocabulary, as transformers does; new rows all belong to it."""
        embeddings = super().resize_token_embeddings(new_num_tokens, *args, **kw)
        if self.config.num_embeddings != embeddings.num_embeddings:
            self.config.pad_vocab_size_multiple = 1
        return embeddings


class ImplicitModel(ImplicitPreTrainedModel):
    """Embedding and stack: the explicit stack called once, or its fixed point.

    The implicit model injects one projection of the embeddings into every block (paper,
    section 3). A family says what a block is.
    """

    _keys_to_ignore_on_load_unexpected = [r"^lm_head\."]  # of a whole language model's folder

    def __init__(self, config: ImplicitConfig) -> None:
        super().__init__(config)
        config.validate_common()  # it may have been changed into one that is none
        config.validate_architecture()
        # A search goes through the trunk again and again: all of it on one device.
        self._no_split_modules = [type(self).__name__, "Stack", "Injection"]
        width, epsilon = config.hidden_size, config.rms_norm_eps
        self.embed_tokens = nn.Embedding(config.num_embeddings, width)
        self.stack = Stack([self.block(config) for _ in range(config.num_hidden_layers)], epsilon)
        self.injection: Injection | None = None
        if config.implicit:
            self.injection = Injection(
                width,
                self.stack.d_projection,
                normalised_weights=config.weight_normalisation,
                norm_epsilon=epsilon,
            )
        self.gradient_checkpointing = False  # transformers sets it
        self.post_init()

    @staticmethod
    def block(config: Any) -> Block:
        """Build one of the family's blocks, without initial weights."""
        raise NotImplementedError("a family's trunk has blocks of its own")

    def cell(
        self,
        input_ids: Int[Tensor, "B L"] | None = None,
        carry: StackCarry | None = None,
        inputs_embeds: Float[Tensor, "B L D"] | None = None,
    ) -> tuple[StackCell, Float[Tensor, "B L D"]]:
        """Return the implicit model's cell for these tokens, and the start of the search."""
        if self.injection is None:
            raise ValueError("an explicit model has no cell; call the model itself")
        embedded = self._embed(input_ids, inputs_embeds)
        cell = StackCell.of(
            self.stack,
            self.stack.weights(),
            self.injection(embedded),
            carry,
            self.gradient_checkpointing,
        )
        start = embedded if self.config.start == "embeddings" else torch.zeros_like(embedded)
        return cell, start

    @deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")
    def forward(
        self,
        input_ids: Int[Tensor, "B L"] | None = None,
        attention_mask: Shaped[Tensor, "B any"] | None = None,
        cache: Cache | None = None,
        inputs_embeds: Float[Tensor, "B L D"] | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        phase: Phase | None = None,
        tolerance: float | None = None,
        max_self_iterations: int | None = None,
    ) -> ImplicitModelOutput | tuple[Any, ...]:
        """Compute hidden states for each token.

        Parameters
        ----------
        attention_mask
            (B, L) or, with a cache, (B, all tokens so far): false or 0 at padding, which may stand
            on either side of each sequence and then changes nothing: not the search, the other
            tokens' results, or the cache. What padding itself gets means nothing. The mask
            has as many earlier tokens in a row as were read; after `CarryCache.resumed` any number.
        cache
            What came before, a `CarryCache`; advanced in place, unless ``use_cache`` is False.
        inputs_embeds
            In place of ``input_ids``.
        use_cache
            Whether to return a cache: the given one, or a new one. None does so with a given one;
            without, it takes the configuration's where gradients are disabled, and else False.
        phase
            How to search and differentiate. None takes the configuration's choice: a search where
            gradients are disabled, otherwise the phase of training. None for an explicit model.
        tolerance
            In place of the configuration's.
        max_self_iterations
            In place of the configuration's.

        Raises
        ------
        ValueError
            Where an argument does not fit the kind of model, mask or embeddings have another shape,
            the mask has more or fewer earlier tokens than were read, or a token id lies outside the
            vocabulary (on a GPU `torch._assert_async` tells).
        """
        embedded = self._embed(input_ids, inputs_embeds)
        batch, length = embedded.shape[:2]
        phase = self._phase(phase, tolerance, max_self_iterations, length)
        cache = checked_cache(cache, batch)
        keeps_cache = self._keeps_cache(cache, use_cache)
        carry = self._carry(cache, batch, keeps_cache)

        before = 0
        if cache is not None:
            before = cache.get_seq_length()
            cache.check_past(attention_mask, length)
        alignment = Alignment.where_padded(attention_mask, (batch, length), before)
        if alignment is not None:
            embedded = alignment.to_the_left(embedded)
        lengths = None if alignment is None else alignment.lengths

        states = self._room_for_states(output_hidden_states)
        has_gradient = torch.is_grad_enabled() and not (cache is not None and cache.is_detached)
        if phase is None:
            found = self._call_once(embedded, carry, lengths, states, has_gradient)
        else:
            found = self._solve(embedded, carry, lengths, states, phase, has_gradient)
        if keeps_cache:
            assert found.carry is not None
            cache = CarryCache() if cache is None else cache
            cache.advance(found.carry, length, lengths)
        if alignment is not None:
            found = found.back(alignment)
        output = ImplicitModelOutput(
            last_hidden_state=found.hidden,
            cache=cache if keeps_cache else None,
            hidden_states=None if found.states is None else tuple(found.states),
            self_iterations=found.self_iterations,
            search=None if self._is_data_parallel else found.search,
            penalty=found.penalty,
        )
        wants_dict = self.config.return_dict if return_dict is None else return_dict
        return output if wants_dict else output.to_tuple()

    def _embed(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give either input_ids or inputs_embeds, and not both")
        if inputs_embeds is not None:
            width = self.config.hidden_size
            if inputs_embeds.dim() != 3 or inputs_embeds.shape[-1] != width:
                raise ValueError(
                    f"inputs_embeds has the shape {tuple(inputs_embeds.shape)}; it must be "
                    f"(B, L, {width})"
                )
            return inputs_embeds
        assert input_ids is not None
        if input_ids.dim() != 2 or input_ids.is_floating_point() or input_ids.dtype == torch.bool:
            raise ValueError(
                f"input_ids has the shape {tuple(input_ids.shape)} and the dtype "
                f"{input_ids.dtype}; it must be (B, L), of integers"
            )
        if not torch.compiler.is_compiling():
            check_token_ids(input_ids, self.config.vocab_size)
        return self.embed_tokens(input_ids)

    def _phase(
        self,
        phase: Phase | None,
        tolerance: float | None,
        max_self_iterations: int | None,
        num_tokens: int,
    ) -> Phase | None:
        given = {"tolerance": tolerance, "max_self_iterations": max_self_iterations}
        named = [name for name, value in given.items() if value is not None]
        if not self.is_implicit:
            if phase is not None or named:
                what = f"phase is {phase}" if phase is not None else f"{named[0]} is given"
                raise ValueError(f"{what}; this explicit model takes None")
            return None
        if phase is not None:
            if named:
                raise ValueError(f"{named[0]} is given beside a phase, which has its own")
            return phase
        return default_phase(
            self.config,
            differentiable=torch.is_grad_enabled(),
            num_tokens=num_tokens,
            tolerance=tolerance,
            max_self_iterations=max_self_iterations,
        )

    @property
    def _is_data_parallel(self) -> bool:
        """Whether this is a replica of `nn.DataParallel`, which gathers tensors alone."""
        return getattr(self, "_is_replica", False)

    def _keeps_cache(self, cache: CarryCache | None, use_cache: bool | None) -> bool:
        if use_cache is None:
            by_default = self.config.use_cache and not torch.is_grad_enabled()
            use_cache = cache is not None or by_default
        return use_cache and not self._is_data_parallel

    def _carry(self, cache: CarryCache | None, batch: int, keeps_cache: bool) -> StackCarry | None:
        """Return the carry before the tokens; None where there is and will be no cache."""
        if cache is None or cache.carry is None:
            return self.stack.initial_carry(batch) if keeps_cache or cache is not None else None
        carry = cache.carry
        self.stack.check_carry(carry)
        like = carry.blocks[0].by_sequence
        if torch.is_grad_enabled() and like.is_inference():  # autograd saves nothing made so
            return carry.select(torch.arange(batch, device=like.device))
        return carry

    def _room_for_states(self, wanted: bool | None) -> list[Tensor] | None:
        wanted = self.config.output_hidden_states if wanted is None else wanted
        return [] if wanted else None

    def _call_once(
        self,
        embedded: Tensor,
        carry: StackCarry | None,
        lengths: Tensor | None,
        states: list[Tensor] | None,
        has_gradient: bool,
    ) -> Evaluated:
        """Apply the explicit model's stack; the carry after it may have a gradient or not."""
        keep = methodcaller("carry", lengths)
        hidden, carries = self.stack(
            embedded,
            None,
            carry,
            self.stack.weights(),
            self.stack.positions(carry, embedded.shape[1]),
            keep=keep if has_gradient else torch.no_grad()(keep),
            checkpointing=self.gradient_checkpointing,
            hidden_states=states,
        )
        return Evaluated(hidden, None if carry is None else StackCarry(carries), states)

    def _solve(
        self,
        embedded: Tensor,
        carry: StackCarry | None,
        lengths: Tensor | None,
        states: list[Tensor] | None,
        phase: Phase,
        has_gradient: bool,
    ) -> Evaluated:
        """Search the fixed point of the implicit model's cell, and differentiate it.

        The output without gradient and the carry, which may have one where the phase takes one, are
        of one more evaluation.
        """
        cell, start = self.cell(None, carry, embedded)
        search = find_fixed_point(
            cell,
            start,
            phase.solver,
            phase.stopping,
            window=phase.window,
            lengths=lengths,
            is_prefix=carry is not None,
        )
        value = search.value
        if phase.gradient is not None:
            value = phase.gradient(cell, value)
        penalty = None
        if phase.penalty is not None and torch.is_grad_enabled():
            # Its graph, being differentiated twice, would keep what blocks evaluate again as well;
            # and they would do so behind the penalty's context, with another kernel of attention.
            keeping = dataclasses.replace(cell, checkpointing=False)
            penalty = phase.penalty(keeping, value, lengths)

        evaluated, after = value, None
        differentiable = torch.is_grad_enabled() and phase.gradient is not None
        if carry is not None:
            with torch.set_grad_enabled(differentiable and has_gradient):
                evaluated, after = cell.advance(value, lengths, states)
        elif phase.gradient is None or states is not None:
            with torch.set_grad_enabled(differentiable):
                evaluated = cell(value, states)
        hidden = evaluated if phase.gradient is None else value
        if states is not None:
            states[-1] = hidden
        more = phase.num_following
        iterations = count_self_iterations(
            search.steps, more, (len(embedded), embedded.shape[1]), lengths
        )
        return Evaluated(hidden, after, states, search, penalty, iterations)
