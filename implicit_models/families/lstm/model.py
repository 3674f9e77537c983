"""torch's LSTM as a language model."""

import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor, nn

from implicit_models.equilibrium.phase import Phase
from implicit_models.families.lstm.configuration import LSTMConfig
from implicit_models.language_models.losses import LOSSES
from implicit_models.language_models.outputs import ImplicitCausalLMOutput
from implicit_models.language_models.pretrained import StrictPreTrainedModel


class LSTMLanguageModel(StrictPreTrainedModel):
    """Embedding, LSTM, projection to the embedding's width, head tied to the embedding.

    Initialisation: embeddings normal with ``initializer_range``, the rest torch's own
    (uniform in +-1/sqrt(hidden_size)). It has no cache: it takes whole texts.
    """

    config_class = LSTMConfig
    config: LSTMConfig
    is_implicit = False

    def __init__(self, config: LSTMConfig) -> None:
        super().__init__(config)
        width = config.embedding_size
        self.embed_tokens = nn.Embedding(config.vocab_size, width)
        self.lstm = nn.LSTM(width, config.hidden_size, config.num_hidden_layers, batch_first=True)
        self.projection = nn.Linear(config.hidden_size, width, bias=False)
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        """Return the embedding, which is the head as well."""
        return self.embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Take another embedding."""
        self.embed_tokens = value

    def forward(
        self,
        input_ids: Int[Tensor, "B L"],
        labels: Int[Tensor, "B L"] | None = None,
        phase: Phase | None = None,
        use_cache: bool | None = None,
    ) -> ImplicitCausalLMOutput:
        """Compute logits for each token; see `ImplicitForCausalLM.forward`."""
        if phase is not None:
            raise ValueError(f"phase is {phase}; this explicit model takes None")
        hidden, _ = self.lstm(self.embed_tokens(input_ids))
        logits = F.linear(self.projection(hidden), self.embed_tokens.weight)
        loss = None
        if labels is not None:
            loss = LOSSES[self.config.label_alignment](logits, labels, None)
        return ImplicitCausalLMOutput(loss=loss, logits=logits)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.LSTM | nn.Linear):
            module.reset_parameters()
        else:
            super()._init_weights(module)
