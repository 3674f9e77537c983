"""Reading texts piece by piece with a model of our stack, implicit or explicit."""

from typing import Any

from jaxtyping import Bool, Float, Int
from torch import Tensor

from implicit_models.equilibrium.phase import Phase
from implicit_models.families.costs import Past
from implicit_models.families.family import family_of
from implicit_models.families.reader import Piece
from implicit_models.language_models.cache import CarryCache
from implicit_models.language_models.modelling import ImplicitForCausalLM
from implicit_models.language_models.phases import default_phase


class StackReader:
    """The reader of any family of blocks; its memory is a `CarryCache`."""

    remembers = True
    takes_unequal_lengths = True
    makes_all_logits = False

    def __init__(self, model: ImplicitForCausalLM) -> None:
        self.model = model
        self.family: Any = family_of(model.config)
        self.vocabulary_size: int = model.config.vocab_size

    def read(
        self,
        tokens: Int[Tensor, "B L"],
        *,
        mask: Bool[Tensor, "B L"] | None,
        memory: CarryCache | None,
        keeps_memory: bool,
        phase: Phase | None,
    ) -> Piece:
        """Read tokens; see `Reader`."""
        batch, length = tokens.shape
        if phase is None and self.model.is_implicit:
            phase = default_phase(self.model.config, differentiable=False, num_tokens=length)
        past = self._past(memory, batch) if keeps_memory or memory is not None else None
        found = self.model.model(
            input_ids=tokens,
            attention_mask=mask,
            cache=memory,
            use_cache=keeps_memory,
            return_dict=True,
            phase=phase,
        )
        return Piece(
            found.last_hidden_state,
            self._logits,
            found.cache,
            past=past,
            window=None if phase is None or phase.window is None else phase.window.width,
            self_iterations=found.self_iterations,
            search=found.search,
        )

    def select(self, memory: CarryCache, rows: Int[Tensor, " R"]) -> CarryCache:
        """Copy the memory of some sequences."""
        chosen = memory.copy()
        chosen.batch_select_indices(rows)
        return chosen

    def _past(self, memory: CarryCache | None, batch: int) -> Past:
        carry = None if memory is None else memory.carry
        found = None if carry is None else self.family.past(carry.blocks[0])
        return Past.empty(batch) if found is None else found

    def _logits(self, states: Float[Tensor, "K D"]) -> Float[Tensor, "K V"]:
        # The embedding may have more rows than there are tokens.
        return self.model.lm_head(states[None])[0, :, : self.vocabulary_size]
