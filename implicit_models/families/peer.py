"""Models of transformers that have the weights of a family of ours, under other names."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from implicit_models.language_models.configuration import ImplicitConfig
from implicit_models.language_models.source_names import SourceError


@dataclass(frozen=True)
class Same:
    """One of our weights is one of theirs, perhaps in another shape."""

    ours: str
    theirs: str
    their_shape: Callable[[Tensor], Tensor] = lambda tensor: tensor
    our_shape: Callable[[Tensor], Tensor] = lambda tensor: tensor


@dataclass(frozen=True)
class Joined:
    """One of our weights is some of theirs, row upon row."""

    ours: str
    theirs: tuple[str, ...]


Rule = Same | Joined


class Peer(ABC):
    """A class of transformers whose weights are those of our explicit model, one by one.

    Attributes
    ----------
    model_class
        The language model of transformers.
    """

    model_class: type[PreTrainedModel]

    def is_like(self, config: Any) -> bool:
        """Return whether our explicit model of a configuration is one of this class."""
        return True

    @abstractmethod
    def our_configuration(self, config: Any) -> ImplicitConfig:
        """Return the configuration of our explicit model.

        Raises
        ------
        SourceError
            Where theirs has a part that ours have not.
        """

    @abstractmethod
    def their_configuration(self, config: Any) -> PreTrainedConfig:
        """Return the configuration of transformers that means the same as ours."""

    @abstractmethod
    def rules(self, config: Any) -> list[Rule]:
        """Return which of our weights is which of theirs; ``config`` is ours."""


def common_fields(config: Any) -> dict[str, Any]:
    """Return the fields that ours and theirs have under the same names."""
    names = ("vocab_size", "hidden_size", "num_hidden_layers", "tie_word_embeddings")
    names += ("initializer_range", "bos_token_id", "eos_token_id", "pad_token_id")
    return {name: getattr(config, name) for name in names}


def refuse(config: Any, **needed: Any) -> None:
    """Raise a SourceError where a field of theirs has not the one value that ours have."""
    for name, value in needed.items():
        if getattr(config, name) != value:
            raise SourceError(
                f"{name} is {getattr(config, name)!r} in the source; ours have {value!r}"
            )
