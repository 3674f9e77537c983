"""From parameters to a model."""

from implicit_models.language_models.modelling import Mamba2LanguageModel
from implicit_models.language_models.parameters import ModelParameters
from implicit_models.language_models.recurrent import LSTMLanguageModel

LanguageModel = Mamba2LanguageModel | LSTMLanguageModel


def build(parameters: ModelParameters, vocabulary_size: int, seed: int) -> LanguageModel:
    """Build a freshly initialised model, whose weights depend on the seed alone."""
    family = {"mamba2": Mamba2LanguageModel, "lstm": LSTMLanguageModel}[parameters.family]
    return family(parameters, vocabulary_size, seed)


def num_parameters(model: LanguageModel) -> int:
    """Count a model's parameters, a tied head once."""
    return sum(parameter.numel() for parameter in model.parameters())
