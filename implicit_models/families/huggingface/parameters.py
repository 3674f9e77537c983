"""The parameters of a model of transformers."""

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
    def weights_source(self) -> str | None:
        """The source, where the weights are taken from it."""
        return self.source if self.pretrained else None
