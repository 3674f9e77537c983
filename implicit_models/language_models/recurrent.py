"""torch's LSTM as a language model: what a true RNN reaches, and at what cost."""

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor, nn

from implicit_models.equilibrium.phase import Phase
from implicit_models.language_models.modelling import ModelOutput
from implicit_models.language_models.parameters import ModelParameters

LSTMCarry = tuple[Tensor, Tensor]


class LSTMLanguageModel(nn.Module):
    """Embedding, LSTM, projection to d_model, head tied to the embedding.

    Initialisation: embeddings normal with ``embedding_std``, the rest torch's own
    (uniform in +-1/sqrt(hidden_size)).
    """

    is_implicit = False

    def __init__(self, parameters: ModelParameters, vocabulary_size: int, seed: int) -> None:
        super().__init__()
        assert parameters.family == "lstm" and parameters.hidden_size
        self.parameters_section = parameters
        self.vocabulary_size = vocabulary_size
        d_model, hidden_size = parameters.d_model, parameters.hidden_size
        self.embeddings = nn.Parameter(torch.empty(vocabulary_size, d_model))
        # torch's layers draw from the global generator: lend it the seed, then give it back.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            nn.init.normal_(self.embeddings, std=parameters.embedding_std)
            self.lstm = nn.LSTM(d_model, hidden_size, parameters.num_layers, batch_first=True)
            self.projection = nn.Linear(hidden_size, d_model, bias=False)

    def initial_carry(self, batch: int) -> LSTMCarry:
        """Give the carry of a text's start: zeros."""
        size = (self.lstm.num_layers, batch, self.lstm.hidden_size)
        return self.embeddings.new_zeros(size), self.embeddings.new_zeros(size)

    def forward(
        self,
        tokens: Int[Tensor, "B L"],
        phase: Phase | None = None,
        carry: LSTMCarry | None = None,
    ) -> ModelOutput:
        """Give logits for each token; see `Mamba2LanguageModel.forward`."""
        if phase is not None:
            raise ValueError(f"phase is {phase}; this explicit model takes None")
        hidden, after = self.lstm(F.embedding(tokens, self.embeddings), carry)
        logits = F.linear(self.projection(hidden), self.embeddings)
        return ModelOutput(logits, after if carry is not None else None, None)
