"""Reading texts with any causal language model, ours or not."""

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from implicit_models.equilibrium.phase import Phase
from implicit_models.equilibrium.solution import Solution
from implicit_models.language_models.building import LanguageModel
from implicit_models.language_models.sources import SourceError


@dataclass(frozen=True)
class Reading:
    """What a model makes of a batch.

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


def is_implicit(model: LanguageModel) -> bool:
    """Tell whether a forward pass seeks a fixed point."""
    return getattr(model.config, "implicit", False)


def read(model: LanguageModel, tokens: Int[Tensor, "B L"], phase: Phase | None) -> Reading:
    """Read whole sequences; ``phase`` is None for a model that seeks no fixed point.

    Raises
    ------
    SourceError
        Where a model of transformers has not as many positions.
    """
    if phase is None:
        try:
            output = model(input_ids=tokens, use_cache=False)
        except IndexError as error:
            limit = getattr(model.config, "max_position_embeddings", None)
            if limit is None or tokens.shape[1] <= limit:
                raise
            raise SourceError(
                f"a {type(model).__name__} of {limit} positions cannot read {tokens.shape[1]} "
                "tokens; choose a configuration with more, or shorter sequences"
            ) from error
    else:
        output = model(input_ids=tokens, use_cache=False, phase=phase)
    search, penalty = (getattr(output, name, None) for name in ("search", "penalty"))
    return Reading(output.logits, search, penalty)
