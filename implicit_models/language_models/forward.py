"""A forward pass over whole texts with any causal language model, ours or not."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeGuard

from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from implicit_models.equilibrium.phase import Phase
from implicit_models.equilibrium.solution import Solution
from implicit_models.language_models.language_model import LanguageModel
from implicit_models.language_models.losses import aligned_loss
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
    """

    logits: Float[Tensor, "B L V"]
    search: Solution | None
    penalty: Float[Tensor, ""] | None


@dataclass(frozen=True)
class LabelledOutput:
    """What a forward pass over a batch with labels returns.

    Attributes
    ----------
    loss
        The cross-entropy of the labels alone; see `aligned_loss`.
    search, penalty
        As in `ForwardOutput`.
    """

    loss: Float[Tensor, ""]
    search: Solution | None
    penalty: Float[Tensor, ""] | None
    _predictions: Int[Tensor, "B L"] | None
    _logits: Float[Tensor, "B L V"] | None

    def predictions(self) -> Int[Tensor, "B L"]:
        """Return the likeliest label of each token."""
        if self._predictions is not None:
            return self._predictions
        assert self._logits is not None
        return self._logits.argmax(-1)


def is_implicit(model: LanguageModel) -> "TypeGuard[ImplicitForCausalLM]":
    """Return whether a forward pass seeks a fixed point."""
    return getattr(model.config, "implicit", False)


def forward(model: nn.Module, tokens: Int[Tensor, "B L"], phase: Phase | None) -> ForwardOutput:
    """Run a forward pass over whole sequences, of a model or of what calls one.

    ``phase`` is None for a model that seeks no fixed point.

    Raises
    ------
    SourceError
        Where a model of transformers has not as many positions.
    """
    if phase is None:
        try:
            output = model(input_ids=tokens, use_cache=False)
        except IndexError as error:
            called = next(each for each in model.modules() if isinstance(each, PreTrainedModel))
            limit = getattr(called.config, "max_position_embeddings", None)
            if limit is None or tokens.shape[1] <= limit:
                raise
            raise SourceError(
                f"a {type(called).__name__} of {limit} positions cannot read {tokens.shape[1]} "
                "tokens; choose a configuration with more, or shorter sequences"
            ) from error
    else:
        output = model(input_ids=tokens, use_cache=False, phase=phase)
    search, penalty = (getattr(output, name, None) for name in ("search", "penalty"))
    return ForwardOutput(output.logits, search, penalty)


def forward_labelled(
    model: nn.Module,
    tokens: Int[Tensor, "B L"],
    labels: Int[Tensor, "B L"],
    phase: Phase | None,
    num_items: Tensor | int | None = None,
) -> LabelledOutput:
    """Run a forward pass over whole sequences and compute the loss of their labels.

    Models that can do without never hold all logits, which saves memory and time.
    """
    called = next(part for part in model.modules() if isinstance(part, PreTrainedModel))
    if not getattr(called, "takes_targets", False):
        found = forward(model, tokens, phase)
        loss = aligned_loss(found.logits, labels, num_items)
        return LabelledOutput(loss, found.search, found.penalty, None, found.logits.detach())
    output = model(
        input_ids=tokens,
        use_cache=False,
        phase=phase,
        targets=labels,
        num_items_in_batch=num_items,
    )
    return LabelledOutput(output.loss, output.search, output.penalty, output.predictions, None)
