"""From parameters to a model."""

from typing import Any

from implicit_models.families.family import family_named
from implicit_models.families.parameters import ModelParameters
from implicit_models.language_models.language_model import LabelAlignment, LanguageModel


def build(
    parameters: ModelParameters,
    vocabulary_size: int,
    seed: int,
    label_alignment: LabelAlignment = "aligned",
) -> LanguageModel:
    """Build a model.

    Its weights depend on the seed alone, or on the source they are taken from.

    Parameters
    ----------
    label_alignment
        As in `ImplicitConfig`: ``aligned`` for state tracking, ``next_token`` for text.

    Raises
    ------
    SourceError
        Where a source cannot be read, or has another vocabulary.
    """
    family = family_named(parameters.family)
    return family.build(parameters, vocabulary_size, seed, label_alignment)


def configuration(
    parameters: ModelParameters,
    vocabulary_size: int,
    label_alignment: LabelAlignment = "aligned",
) -> Any:
    """Return the configuration of a model of a family of our own; as `build`."""
    family: Any = family_named(parameters.family)
    return family.configuration(parameters, vocabulary_size, label_alignment)
