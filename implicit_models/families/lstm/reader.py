"""Reading texts piece by piece with torch's LSTM."""

import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from implicit_models.equilibrium.phase import Phase
from implicit_models.families.lstm.model import LSTMLanguageModel
from implicit_models.families.reader import Piece

States = tuple[Tensor, Tensor]


class LSTMReader:
    """The reader of torch's LSTM; its memory are the states of its layers."""

    remembers = True
    takes_unequal_lengths = False
    makes_all_logits = False

    def __init__(self, model: LSTMLanguageModel) -> None:
        self.model = model
        self.vocabulary_size: int = model.config.vocab_size

    def read(
        self,
        tokens: Int[Tensor, "B L"],
        *,
        mask: Bool[Tensor, "B L"] | None,
        memory: States | None,
        keeps_memory: bool,
        phase: Phase | None,
    ) -> Piece:
        """Read tokens; see `Reader`."""
        hidden, memory = self.model.lstm(self.model.embed_tokens(tokens), memory)
        return Piece(self.model.projection(hidden), self._logits, memory)

    def select(self, memory: States, rows: Int[Tensor, " R"]) -> States:
        """Copy the memory of some sequences."""
        hidden, cell = (states.index_select(1, rows) for states in memory)
        return hidden, cell

    def _logits(self, states: Float[Tensor, "K D"]) -> Float[Tensor, "K V"]:
        return F.linear(states, self.model.embed_tokens.weight)
