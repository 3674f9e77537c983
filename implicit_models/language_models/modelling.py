"""Mamba2 and Llama language models, explicit and implicit, from one stack; Hugging Face's surface.

`ImplicitModel` is the trunk: embeddings in, hidden states out. `ImplicitForCausalLM` puts the
head on it. The families differ in their configuration and in what their blocks are made of.
"""

import functools
from collections.abc import Mapping
from operator import methodcaller
from pathlib import Path
from typing import Any, cast

import torch
from jaxtyping import Float, Int, Shaped
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import Cache, GenerationMixin, PreTrainedModel
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from implicit_models.backbones.attention import AttentionMixer, AttentionShape
from implicit_models.backbones.feed_forward import FeedForward
from implicit_models.backbones.mamba2 import Mamba2Mixer, Mamba2Shape
from implicit_models.backbones.rotary import Rotary, inverse_powers
from implicit_models.backbones.stack import Block, Stack, StackCarry
from implicit_models.equilibrium.iterate import find_fixed_point
from implicit_models.equilibrium.phase import Phase
from implicit_models.kernels.linear import linear
from implicit_models.language_models.cache import CarryCache, checked_cache
from implicit_models.language_models.cell import Injection, StackCell
from implicit_models.language_models.configuration import (
    ImplicitConfig,
    ImplicitLlamaConfig,
    ImplicitMamba2Config,
)
from implicit_models.language_models.losses import LOSSES, predicted_loss
from implicit_models.language_models.model_card import write_card
from implicit_models.language_models.outputs import ImplicitCausalLMOutput, ImplicitModelOutput
from implicit_models.language_models.padding import Alignment
from implicit_models.language_models.phases import default_phase


class Head(nn.Linear):
    """The projection to the vocabulary, fast for a few tokens too."""

    def forward(self, hidden: Float[Tensor, "B L D"]) -> Float[Tensor, "B L V"]:
        """Project."""
        return linear(hidden, self.weight)


class ModelFileError(ValueError):
    """A model's folder does not hold what it should."""


def list_wrong_weights(info: Mapping[str, Any], ignores_sizes: bool = False) -> str:
    """List what transformers says of loading: weights missing, unexpected, or of another size."""
    sizes = () if ignores_sizes else info["mismatched_keys"]
    wrong = {
        "missing": info["missing_keys"],
        "unexpected": info["unexpected_keys"],
        "mismatched": {
            f"{name} (found {tuple(found)}, needed {tuple(needed)})"
            for name, found, needed in sizes
        },
    }
    return "; ".join(
        f"{kind}: {', '.join(sorted(names))}" for kind, names in wrong.items() if names
    )


class StrictPreTrainedModel(PreTrainedModel):
    """A model whose files must hold exactly its weights, and that leaves a card beside them."""

    base_model_prefix = "model"

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any):
        """Load a model, in evaluation mode; arguments as transformers'.

        Raises
        ------
        ModelFileError
            Where a weight is missing, unexpected or of another shape, or the file is broken.
        """
        wants_info = kwargs.pop("output_loading_info", False)
        ignores_sizes = kwargs.pop("ignore_mismatched_sizes", False)
        source = pretrained_model_name_or_path
        try:
            # Told not to ignore sizes, transformers raises an error without the names.
            model, info = super().from_pretrained(  # type: ignore[misc]
                source, *args, output_loading_info=True, ignore_mismatched_sizes=True, **kwargs
            )
        except SafetensorError as error:
            raise ModelFileError(f"the weights in {source} cannot be read: {error}") from None
        wrong = list_wrong_weights(info, ignores_sizes)
        if wrong:
            raise ModelFileError(
                f"the weights in {source} are not those of a {cls.__name__}: {wrong}"
            )
        _align(model)
        return (model, info) if wants_info else model

    def save_pretrained(
        self, save_directory: Any, is_main_process: bool = True, *args: Any, **kwargs: Any
    ) -> None:
        """Write the configuration, the weights and a card; arguments as transformers'."""
        if is_main_process:
            write_card(self, Path(save_directory))  # first: it may be pushed with the rest
        super().save_pretrained(save_directory, is_main_process, *args, **kwargs)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear) and module.weight is self.get_input_embeddings().weight:
            return  # a tied head
        if isinstance(module, nn.Embedding | nn.Linear):
            nn.init.normal_(module.weight, mean=0.0, std=self.config.initializer_range)
        elif hasattr(module, "reset_parameters"):
            module.reset_parameters()  # type: ignore[operator]

    def _initialize_weights(self, module: nn.Module, is_custom_code: bool = False) -> None:
        # What transformers does with custom code leaves out modules whose weights are all in their
        # children, which here are drawn by their owner.
        super()._initialize_weights(module, is_custom_code=False)

    def initialise(self, seed: int) -> None:
        """Draw all weights anew; they depend on the seed alone."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.apply(self._init_weights)


class ImplicitPreTrainedModel(StrictPreTrainedModel):
    """What the trunk and the language model have in common."""

    config: ImplicitConfig
    supports_gradient_checkpointing = True
    # A search goes through the trunk again and again: all of it on one device.
    _no_split_modules = ["ImplicitMamba2Model", "ImplicitLlamaModel", "Stack", "Injection"]
    _supports_sdpa = True
    _is_stateful = True

    def get_input_embeddings(self) -> nn.Embedding:
        """Give the embedding."""
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
        """Give the cache of a text's start, for texts that come in pieces."""
        return CarryCache(self.trunk.stack.initial_carry(batch))

    def resize_token_embeddings(self, new_num_tokens: int | None = None, *args: Any, **kw: Any):
        """Change the vocabulary, as transformers does; new rows all belong to it."""
        embeddings = super().resize_token_embeddings(new_num_tokens, *args, **kw)
        if self.config.num_embeddings != embeddings.num_embeddings:
            self.config.pad_vocab_size_multiple = 1
        return embeddings


class ImplicitModel(ImplicitPreTrainedModel):
    """Embedding and stack: the explicit stack called once, or its fixed point.

    The explicit model calls its stack once on the embeddings. The implicit model seeks the
    fixed point of the same stack, with one projection of the embeddings injected into every
    block (paper, section 3).
    """

    _keys_to_ignore_on_load_unexpected = [r"^lm_head\."]  # of a whole language model's folder

    def __init__(self, config: ImplicitConfig) -> None:
        super().__init__(config)
        width = config.hidden_size
        self.embed_tokens = nn.Embedding(config.num_embeddings, width)
        self.stack = build_stack(config)
        self.injection: Injection | None = None
        if config.implicit:
            self.injection = Injection(
                width,
                self.stack.d_projection,
                normalised_weights=config.weight_normalisation,
                norm_epsilon=config.rms_norm_eps,
            )
        self.gradient_checkpointing = False  # transformers sets it
        self.post_init()

    def cell(
        self,
        input_ids: Int[Tensor, "B L"] | None = None,
        carry: StackCarry | None = None,
        inputs_embeds: Float[Tensor, "B L D"] | None = None,
    ) -> tuple[StackCell, Float[Tensor, "B L D"]]:
        """Give the implicit model's cell for these tokens, and the start of the search."""
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

    def forward(
        self,
        input_ids: Int[Tensor, "B L"] | None = None,
        attention_mask: Shaped[Tensor, "B any"] | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Float[Tensor, "B L D"] | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        phase: Phase | None = None,
        tolerance: float | None = None,
        max_self_iterations: int | None = None,
    ) -> ImplicitModelOutput | tuple[Any, ...]:
        """Give hidden states for each token.

        Parameters
        ----------
        attention_mask
            (B, L) or, with a cache, (B, all tokens so far): false or 0 at padding, which may stand
            on either side of each sequence and then changes nothing: not the search, the other
            tokens' results, or the cache. What padding itself gets means nothing.
        past_key_values
            What came before, a `CarryCache`; it is advanced.
        inputs_embeds
            In place of ``input_ids``.
        use_cache
            Whether to return a cache. None takes the configuration's where gradients are
            disabled, and False where they are enabled.
        phase
            How to search and differentiate. None takes the configuration's choice: a search where
            gradients are disabled, otherwise the phase of training. None for an explicit model.
        tolerance, max_self_iterations
            In place of the configuration's.

        Raises
        ------
        ValueError
            Where an argument does not fit the kind of model, the mask has another shape, or a token
            id lies outside the vocabulary.
        """
        embedded = self._embed(input_ids, inputs_embeds)
        phase = self._phase(phase, tolerance, max_self_iterations, embedded.shape[1])
        batch, length = embedded.shape[:2]
        cache = checked_cache(past_key_values, batch)
        if use_cache is None:
            use_cache = self.config.use_cache and not torch.is_grad_enabled()
        carry = None if cache is None else cache.carry
        if carry is None and (use_cache or cache is not None):
            carry = self.stack.initial_carry(batch)

        alignment = None
        if attention_mask is not None:
            before = 0 if cache is None else cache.get_seq_length()
            with_those = attention_mask.shape[-1] == before + length
            recent = attention_mask[:, before:] if with_those else attention_mask
            if not (recent.shape == (batch, length) and bool(recent.all())):
                alignment = Alignment.of(recent, (batch, length))
                embedded = alignment.to_the_left(embedded)
        lengths = None if alignment is None else alignment.lengths

        wants_states = output_hidden_states
        if wants_states is None:
            wants_states = self.config.output_hidden_states
        states: list[Tensor] | None = [] if wants_states else None
        search, penalty, iterations = None, None, None
        if phase is None:
            hidden, carries = self.stack(
                embedded,
                None,
                carry,
                self.stack.weights(),
                self.stack.positions(carry, length),
                keep=methodcaller("carry", lengths),
                checkpointing=self.gradient_checkpointing,
                hidden_states=states,
            )
            after = StackCarry(carries)
        else:
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
            if phase.penalty is not None and torch.is_grad_enabled():
                penalty = phase.penalty(cell, value, lengths)
            evaluated, after = value, None
            if carry is not None:
                evaluated, after = cell.advance(value, lengths, states)
            elif phase.gradient is None or states is not None:
                evaluated = cell(value, states)
            hidden = evaluated if phase.gradient is None else value
            if states is not None:
                states[-1] = hidden
            more = 1 if phase.gradient is None else phase.gradient.num_steps
            iterations = _self_iterations(search.steps, more, (batch, length), lengths)

        if carry is not None and after is not None:
            cache = CarryCache() if cache is None else cache
            cache.advance(after, length)
        if alignment is not None:
            hidden = alignment.back(hidden)
            search = None if search is None else alignment.search_back(search)
            iterations = None if iterations is None else alignment.back(iterations)
            states = None if states is None else [alignment.back(state) for state in states]
        output = ImplicitModelOutput(
            last_hidden_state=hidden,
            past_key_values=cache,
            hidden_states=None if states is None else tuple(states),
            self_iterations=iterations,
            search=search,
            penalty=penalty,
        )
        wants_dict = self.config.return_dict if return_dict is None else return_dict
        return output if wants_dict else output.to_tuple()

    def _embed(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give either input_ids or inputs_embeds, and not both")
        if inputs_embeds is not None:
            return inputs_embeds
        assert input_ids is not None
        if input_ids.dim() != 2 or input_ids.is_floating_point() or input_ids.dtype == torch.bool:
            raise ValueError(
                f"input_ids has the shape {tuple(input_ids.shape)} and the dtype "
                f"{input_ids.dtype}; it must be (B, L), of integers"
            )
        if input_ids.numel() and not torch.compiler.is_compiling():
            least, most = (int(extreme) for extreme in input_ids.aminmax())
            if least < 0 or most >= self.config.vocab_size:
                raise ValueError(
                    f"input_ids holds {least if least < 0 else most}; token ids must lie between "
                    f"0 and {self.config.vocab_size - 1}"
                )
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


class ImplicitForCausalLM(ImplicitPreTrainedModel, GenerationMixin):
    """A language model: logits for each token from its hidden state.

    Initialisation
    --------------
    ================================  ==========================================================
    embeddings (and the tied head)    normal, mean 0, standard deviation ``initializer_range``
    injection: projection.weight      uniform in +-1/sqrt(d_model)
    injection: bias                   0
    every norm's weight               1
    Mamba2: in_proj.weight            uniform in +-1/sqrt(d_model)
    Mamba2: conv1d.weight, its bias   uniform in +-1/sqrt(conv_kernel)
    Mamba2: dt_bias                   inverse softplus of a time step log-uniform in [.001, .1]
    Mamba2: A_log                     log of a decay rate uniform in [1, 16]
    Mamba2: D                         1
    Mamba2: out_proj.weight           uniform in +-1/sqrt(d_inner num_layers)
    Llama: qkv_proj, gate_up_proj     uniform in +-1/sqrt(d_model)
    Llama: out_proj, down_proj        uniform in +-1/sqrt(fan_in 2 num_layers)
    every scale                       row length of its weight: normalising changes nothing yet
    ================================  ==========================================================
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
        """Give the head."""
        return self.lm_head

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        """Take another head."""
        self.lm_head = new_embeddings

    def cell(
        self, input_ids: Int[Tensor, "B L"], carry: StackCarry | None = None
    ) -> tuple[StackCell, Float[Tensor, "B L D"]]:
        """Give the implicit model's cell for these tokens, and the start of the search."""
        return self.model.cell(input_ids, carry)

    def forward(
        self,
        input_ids: Int[Tensor, "B L"] | None = None,
        attention_mask: Shaped[Tensor, "B any"] | None = None,
        past_key_values: Cache | None = None,
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
    ) -> ImplicitCausalLMOutput | tuple[Any, ...]:
        """Give logits for each token; parameters beyond these as in `ImplicitModel.forward`.

        Parameters
        ----------
        labels
            Token ids, or -100 where none is counted; shifted here or not, as the configuration's
            ``label_alignment`` says.
        logits_to_keep
            Compute logits for so many of the last tokens (0: all), or for the tokens of these
            indices.
        num_items_in_batch
            What to divide the summed loss by, in place of the number of labels.
        targets
            In place of labels: what each token is to predict, or -100; never shifted. The output
            then has ``predictions`` and no logits, which are never held all at once, and its loss
            is that of the targets alone, beside the penalty.
        """
        if targets is not None and labels is not None:
            raise ValueError("give either labels or targets, and not both")
        found = self.model(
            input_ids,
            attention_mask,
            past_key_values,
            inputs_embeds,
            use_cache,
            output_hidden_states,
            True,
            phase,
            tolerance,
            max_self_iterations,
        )
        loss, logits, predictions = None, None, None
        if targets is not None:
            loss, predictions = predicted_loss(
                found.last_hidden_state,
                self.lm_head.weight,
                targets,
                num_items_in_batch,
                self.config.vocab_size,
            )
        else:
            kept = logits_to_keep
            if isinstance(kept, int):
                kept = slice(-kept, None) if kept else slice(None)
            logits = self.lm_head(found.last_hidden_state[:, kept])
            if self.config.num_embeddings > self.config.vocab_size:
                logits = logits[..., : self.config.vocab_size]
        if labels is not None:
            assert logits is not None
            loss = LOSSES[self.config.label_alignment](logits, labels, num_items_in_batch)
            if found.penalty is not None:
                loss = loss + found.penalty
        output = ImplicitCausalLMOutput(
            loss=loss,
            logits=logits,
            predictions=predictions,
            past_key_values=found.past_key_values,
            hidden_states=found.hidden_states,
            self_iterations=found.self_iterations,
            search=found.search,
            penalty=found.penalty,
        )
        wants_dict = self.config.return_dict if return_dict is None else return_dict
        return output if wants_dict else output.to_tuple()

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> None:
        """Put an empty cache in where ``generate`` wants one and the caller gave none."""
        if generation_config.cache_implementation is not None:
            raise ValueError(
                f"cache_implementation is {generation_config.cache_implementation!r}; these models "
                "have one kind of cache, and take None"
            )
        if model_kwargs.get("past_key_values") is None and generation_config.use_cache is not False:
            model_kwargs["past_key_values"] = CarryCache()


class ImplicitMamba2Model(ImplicitModel):
    """Mamba2 without a head."""

    config_class = ImplicitMamba2Config


class ImplicitMamba2ForCausalLM(ImplicitForCausalLM, GenerationMixin):
    """Mamba2 as a language model."""

    config_class = ImplicitMamba2Config
    trunk_class = ImplicitMamba2Model


class ImplicitLlamaModel(ImplicitModel):
    """Llama without a head."""

    config_class = ImplicitLlamaConfig


class ImplicitLlamaForCausalLM(ImplicitForCausalLM, GenerationMixin):
    """Llama as a language model."""

    config_class = ImplicitLlamaConfig
    trunk_class = ImplicitLlamaModel


@torch.no_grad()
def _align(model: nn.Module) -> None:
    """Move weights that lie askew in their file's memory: sums over such may round otherwise."""
    for weight in model.parameters():
        if weight.device.type == "cpu" and weight.data_ptr() % 64:
            weight.data = weight.data.clone()


def build_stack(config: ImplicitConfig) -> Stack:
    """Give the blocks that a configuration describes, without initial weights.

    Raises
    ------
    ValueError
        Where the configuration was changed into one that is none.
    """
    config.validate_common()
    config.validate_architecture()
    make = _llama_block if isinstance(config, ImplicitLlamaConfig) else _mamba2_block
    blocks = [make(config) for _ in range(config.num_hidden_layers)]  # type: ignore[arg-type]
    return Stack(blocks, config.rms_norm_eps)


def _mamba2_block(config: ImplicitMamba2Config) -> Block:
    mixer = Mamba2Mixer(
        Mamba2Shape(
            d_model=config.hidden_size,
            d_state=config.state_size,
            expand=config.expand,
            head_dim=config.head_dim,
            num_groups=config.n_groups,
            conv_kernel=config.conv_kernel,
        ),
        num_layers=config.num_hidden_layers,
        normalised_weights=config.weight_normalisation,
        norm_epsilon=config.rms_norm_eps,
        chunk_length=config.chunk_size,
    )
    return Block(mixer, None, config.rms_norm_eps)


def _llama_block(config: ImplicitLlamaConfig) -> Block:
    assert config.num_key_value_heads and config.head_dim
    sizes = {
        "num_layers": config.num_hidden_layers,
        "normalised_weights": config.weight_normalisation,
    }
    shape = AttentionShape(
        d_model=config.hidden_size,
        num_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
    )
    feed_forward = FeedForward(config.hidden_size, config.intermediate_size, **sizes)
    return Block(AttentionMixer(shape, _rotary(config), **sizes), feed_forward, config.rms_norm_eps)


def _rotary(config: ImplicitLlamaConfig) -> Rotary:
    assert config.rope_parameters and config.head_dim
    kind = config.rope_parameters["rope_type"]
    if kind == "default":
        theta = config.rope_parameters["rope_theta"]
        return Rotary(functools.partial(inverse_powers, theta, config.head_dim))
    scaling = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))[1]
    return Rotary(functools.partial(_scaled_frequencies, kind, config), scaling)


def _scaled_frequencies(
    kind: str, config: ImplicitLlamaConfig, device: torch.device
) -> Float[Tensor, " half"]:
    return ROPE_INIT_FUNCTIONS[kind](config, device)[0]


def _self_iterations(
    steps: Tensor, after: int, size: tuple[int, int], lengths: Tensor | None
) -> Int[Tensor, "B L"]:
    """Count each token's evaluations: those of the search, and as many as came after it."""
    iterations = (steps + after).expand(size)
    if lengths is None:
        return iterations
    inside = torch.arange(size[1], device=lengths.device) < lengths[:, None]
    return iterations * inside
