"""The parameters of a model of transformers."""

from collections.abc import Iterator
from typing import Literal

from implicit_models.families.parameters import ModelParameters


class HuggingFaceParameters(ModelParameters):
    """Any causal language model of transformers, explicit by nature.

    Attributes
    ----------
    source
        A folder with a configuration, or a hub id.
    pretrained
        Whether to start from the source's weights, not only from its configuration.
    """

    allows_implicit = (False,)

    family: Literal["huggingface"]
    source: str
    pretrained: bool = False

    @property
    def num_positions(self) -> tuple[int, str] | None:
        """What the source's configuration has."""
        from implicit_models.families.huggingface.positions import num_positions

        return num_positions(self.source)

    def missing(self) -> Iterator[str]:
        """Yield that the configuration cannot be read, or that there are no weights."""
        from implicit_models.families.huggingface.positions import missing

        yield from missing(self.source, self.pretrained)

    @property
    def weights_source(self) -> str | None:
        """The source, where the weights are taken from it."""
        return self.source if self.pretrained else None
