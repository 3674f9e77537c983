"""torch's LSTM as a language model: what a true RNN reaches, and at what cost."""

from dataclasses import dataclass
from typing import Any

from implicit_models.families.costs import ModelFlops, ParameterCount, Work
from implicit_models.families.family import OwnFamily
from implicit_models.families.lstm.configuration import LSTMConfig
from implicit_models.families.lstm.model import LSTMLanguageModel
from implicit_models.families.registration import register_models
from implicit_models.language_models.language_model import LabelAlignment


@dataclass(frozen=True, kw_only=True)
class LSTMFlops:
    """What torch's LSTM costs, its projection to the embedding's width included."""

    num_layers: int
    d_model: int
    hidden_size: int

    def evaluation(self, length: int, *, before: float | None = None) -> Work:
        """Return the work of computing some tokens together; see `StackFlops`."""
        read = self.d_model + (self.num_layers - 1) * self.hidden_size
        gates = 4 * (read + self.num_layers * self.hidden_size)
        return Work(2 * self.hidden_size * (gates + self.d_model) * length, 0.0)

    def carry(self, length: int) -> float:
        """Return 0: no more than is there is taken."""
        return 0.0

    def last_products(self, length: int) -> float:
        """Return 0: it is not checkpointed."""
        return 0.0


class LSTMFamily(OwnFamily[LSTMConfig]):
    """torch's LSTM, explicit by nature."""

    model_class = LSTMLanguageModel
    reader = "implicit_models.families.lstm.reader:LSTMReader"

    def configuration(
        self, parameters: Any, vocabulary_size: int, label_alignment: LabelAlignment
    ) -> LSTMConfig:
        """Return the configuration that a section ``model`` means."""
        return LSTMConfig(
            vocab_size=vocabulary_size,
            embedding_size=parameters.d_model,
            hidden_size=parameters.hidden_size,
            num_hidden_layers=parameters.num_layers,
            initializer_range=parameters.embedding_std,
            label_alignment=label_alignment,
        )

    def configuration_flops(self, config: LSTMConfig) -> ModelFlops:
        """Return what a model of this configuration costs, in closed form."""
        width = config.embedding_size
        stack = LSTMFlops(
            num_layers=config.num_hidden_layers, d_model=width, hidden_size=config.hidden_size
        )
        return ModelFlops(head=2 * width * config.vocab_size, injection=0, stack=stack)

    def count_parameters(self, config: LSTMConfig) -> ParameterCount:
        """Count the parameters of a model of this configuration, in closed form."""
        width, hidden, layers = config.embedding_size, config.hidden_size, config.num_hidden_layers
        read = width + (layers - 1) * hidden
        gates = 4 * hidden * (read + layers * (hidden + 2))
        return ParameterCount(
            embedding=config.vocab_size * width, stack=gates + hidden * width, injection=0
        )

    def of_size(self, parameters: Any, vary: str, number: int) -> Any:
        """Return the parameters with so many layers, or of such a width, hidden_size with it."""
        if vary == "depth":
            return parameters.replace(num_layers=number)
        hidden = max(1, round(parameters.hidden_size * number / parameters.d_model))
        return parameters.replace(d_model=number, hidden_size=hidden)


FAMILY = LSTMFamily()
register_models(LSTMConfig, LSTMLanguageModel)
