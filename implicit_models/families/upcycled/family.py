"""Implicit models made of an explicit checkpoint, which says of what family they are."""

from typing import Any

from implicit_models.families.costs import ModelFlops
from implicit_models.families.family import Family, family_of
from implicit_models.families.upcycling import upcycle
from implicit_models.language_models.language_model import LabelAlignment, LanguageModel
from implicit_models.language_models.source_names import SourceError
from implicit_models.language_models.sources import load_source

_MOST_FILLED_UP = 1024  # rows, with which a vocabulary becomes a multiple of something


class UpcycledFamily(Family):
    """Models that begin as another one does; once built they are of that one's family."""

    def build(
        self,
        parameters: Any,
        vocabulary_size: int,
        seed: int,
        label_alignment: LabelAlignment,
    ) -> LanguageModel:
        """Build an implicit model of a source's weights.

        Rows with which a checkpoint's vocabulary is filled up are cut off.
        """
        source = load_source(parameters.source)
        if not 0 <= source.config.vocab_size - vocabulary_size < _MOST_FILLED_UP:
            raise SourceError(
                f"the model in {parameters.source} has {source.config.vocab_size} tokens, the data "
                f"set {vocabulary_size}; an upcycled model keeps its source's vocabulary: prepare "
                "the data with the source's tokenizer, or name another source"
            )
        if source.config.vocab_size > vocabulary_size:
            source.resize_token_embeddings(vocabulary_size)
        try:
            return upcycle(source, seed=seed, label_alignment=label_alignment)
        except SourceError as error:
            raise SourceError(f"{parameters.source} cannot be upcycled: {error}") from None

    def flops(self, model: LanguageModel) -> ModelFlops:
        """Return what the source's family says."""
        return family_of(model.config).flops(model)


FAMILY = UpcycledFamily()
