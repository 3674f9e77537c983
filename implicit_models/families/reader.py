"""How a model reads texts piece by piece: what is asked of its family's `Reader`.

A *memory* is what a model keeps of the tokens it has read: our models' `CarryCache`, a cache of
transformers', or the states of an LSTM. Logits are by far the largest tensor of a language model
with a large vocabulary, so no reader computes more of them than asked for, where it can help it.
"""

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from jaxtyping import Bool, Float, Int
from torch import Tensor

from implicit_models.equilibrium.phase import Phase
from implicit_models.equilibrium.solution import Solution
from implicit_models.families.costs import Past
from implicit_models.families.family import family_of
from implicit_models.language_models.language_model import LanguageModel


@dataclass(frozen=True)
class Piece:
    """What a model makes of some tokens.

    Attributes
    ----------
    states
        Of each token: what ``logits`` takes.
    logits
        Computes the logits of some of the states.
    memory
        Of these tokens and all before them; None where none was asked for.
    past
        What the memory held before these tokens; None where none was read or kept.
    window
        Tokens that were searched together; None for whole pieces, or no search.
    self_iterations, search
        As in `ImplicitModelOutput`; None for a model that seeks no fixed point.
    """

    states: Float[Tensor, "B L D"]
    logits: Callable[[Float[Tensor, "K D"]], Float[Tensor, "K V"]]
    memory: Any
    past: Past | None = None
    window: int | None = None
    self_iterations: Int[Tensor, "B L"] | None = None
    search: Solution | None = None


class Reader(Protocol):
    """A model as something that reads texts piece by piece.

    Attributes
    ----------
    vocabulary_size
        Token ids lie below it.
    remembers
        Whether it can go on from a memory; otherwise it reads whole texts only.
    takes_unequal_lengths
        Whether it can go on after sequences of unequal lengths.
    makes_all_logits
        Whether its states are the logits themselves.
    """

    vocabulary_size: int
    remembers: bool
    takes_unequal_lengths: bool
    makes_all_logits: bool

    def read(
        self,
        tokens: Int[Tensor, "B L"],
        *,
        mask: Bool[Tensor, "B L"] | None,
        memory: Any,
        keeps_memory: bool,
        phase: Phase | None,
    ) -> Piece:
        """Read the tokens that follow those in the memory, which is used up.

        The mask is false at padding, which stands on the right. A phase is given to an implicit
        model alone; None takes its configuration's choice.
        """
        ...

    def select(self, memory: Any, rows: Int[Tensor, " R"]) -> Any:
        """Copy the memory of some sequences, in any order and as often as wanted."""
        ...


def reader_of(model: LanguageModel) -> Reader:
    """Return the reader of a model, which its family names."""
    return pkgutil.resolve_name(family_of(model.config).reader)(model)
