"""What a model hands from a text to what follows it, while it is trained."""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from torch import Tensor


@runtime_checkable
class Memory(Protocol):
    """What a model remembers of the texts that it has read, of a size that does not grow."""

    def tensors(self) -> dict[str, Tensor]:
        """Return its tensors by name, each with a row for each text."""
        ...

    def resumed(self, tensors: Mapping[str, Tensor], /) -> "Memory":
        """Return a memory whose `tensors` these are; the one that follows it has no gradient."""
        ...

    def arguments(self, num_tokens: int, /) -> dict[str, Any]:
        """Return what a forward pass over so many tokens behind it is told."""
        ...

    def following(self, output: Any, /) -> "Memory":
        """Return the memory after these tokens, from what the forward pass has returned."""
        ...
