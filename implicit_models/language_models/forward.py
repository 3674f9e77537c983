"""A forward pass over whole texts with any causal language model, ours or not."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from implicit_models.equilibrium.phase import Phase
from implicit_models.equilibrium.solution import Solution
from implicit_models.language_models.language_model import LanguageModel
from implicit_models.language_models.losses import aligned_loss
from implicit_models.language_models.memory import Memory
from implicit_models.language_models.source_names import SourceError

if TYPE_CHECKING:
    from implicit_models.language_models.modelling import ImplicitForCausalLM


@dataclass(frozen=True)
class ForwardOutput:
    """What a forward pass over a batch returns.

    Attributes
    ----------
    logits
        Aligned with the tokens.
    search
        How the fixed point was found; None for a model that seeks none.
    penalty
        What the phase adds to a loss; None where it adds nothing.
    memory
        After the tokens; None where none was given.
    """

    logits: Float[Tensor, "B L V"]
    search: Solution | None
    penalty: Float[Tensor, ""] | None
    memory: Memory | None = None


@dataclass(frozen=True)
class LabelledOutput:
    """What a forward pass over a batch with labels returns.

    Attributes
    ----------
    loss
        The cross-entropy of the labels alone; see `aligned_loss`.
    search, penalty, memory
        As in `ForwardOutput`.
    center
        The weighted `center_loss` of the labels; None without a weight.
    """

    loss: Float[Tensor, ""]
    search: Solution | None
    penalty: Float[Tensor, ""] | None
    _predictions: Int[Tensor, "B L"] | None
    _logits: Float[Tensor, "B L V"] | None
    memory: Memory | None = None
    center: Float[Tensor, ""] | None = None

    def predictions(self) -> Int[Tensor, "B L"]:
        """Return the likeliest label of each token."""
        if self._predictions is not None:
            return self._predictions
        assert self._logits is not None
        return self._logits.argmax(-1)


def is_implicit(model: LanguageModel) -> "TypeGuard[ImplicitForCausalLM]":
    """Return whether a forward pass seeks a fixed point."""
    return getattr(model.config, "implicit", False)


def language_model_of(module: nn.Module) -> LanguageModel:
    """Return the language model itself of what calls one, such as a distributed module."""
    return next(part for part in module.modules() if isinstance(part, PreTrainedModel))


def forward(
    model: nn.Module,
    tokens: Int[Tensor, "B L"],
    phase: Phase | None,
    memory: Memory | None = None,
) -> ForwardOutput:
    """Run a forward pass over whole sequences, of a model or of what calls one.

    Parameters
    ----------
    phase
        None for a model that seeks no fixed point.
    memory
        What stands before the sequences; None for nothing.

    Raises
    ------
    SourceError
        Where a model of transformers has not as many positions.
    """
    before = _before(memory, tokens)
    if phase is None:
        try:
            output = model(input_ids=tokens, **before)
        except IndexError as error:
            called = language_model_of(model)
            limit = getattr(called.config, "max_position_embeddings", None)
            if limit is None or tokens.shape[1] <= limit:
                raise
            raise SourceError(
                f"a {type(called).__name__} of {limit} positions cannot read {tokens.shape[1]} "
                "tokens; choose a configuration with more, or shorter sequences"
            ) from error
    else:
        output = model(input_ids=tokens, phase=phase, **before)
    search, penalty = (getattr(output, name, None) for name in ("search", "penalty"))
    return ForwardOutput(output.logits, search, penalty, _after(output, memory))


def forward_labelled(
    model: nn.Module,
    tokens: Int[Tensor, "B L"],
    labels: Int[Tensor, "B L"],
    phase: Phase | None,
    num_items: Tensor | int | None = None,
    memory: Memory | None = None,
    center_weight: float = 0.0,
    asked: Bool[Tensor, "B L"] | None = None,
) -> LabelledOutput:
    """Run a forward pass over whole sequences and compute the loss of their labels; see `forward`.

    Models that can do without never hold all logits, which saves memory and time.

    Parameters
    ----------
    asked
        Of `losses.asked_of`: the other tokens are padding to the search, to what ends it and to its
        penalty. None: all tokens count, which must be so where a memory is handed on.
    """
    if not getattr(language_model_of(model), "takes_targets", False):
        if center_weight:
            raise ValueError("this model gives no hidden states, which a center_weight is for")
        found = forward(model, tokens, phase, memory)
        loss = aligned_loss(found.logits, labels, num_items)
        logits = found.logits.detach()
        return LabelledOutput(loss, found.search, found.penalty, None, logits, found.memory)
    output = model(
        input_ids=tokens,
        attention_mask=None if phase is None else asked,
        phase=phase,
        targets=labels,
        num_items_in_batch=num_items,
        center_weight=center_weight,
        **_before(memory, tokens),
    )
    found = (output.loss, output.search, output.penalty, output.predictions, None)
    return LabelledOutput(*found, _after(output, memory), output.center)


def _before(memory: Memory | None, tokens: Tensor) -> dict[str, Any]:
    return {"use_cache": False} if memory is None else memory.arguments(tokens.shape[1])


def _after(output: Any, memory: Memory | None) -> Memory | None:
    return None if memory is None else memory.following(output)
