"""What a model hands from a text to what follows it, while it is trained."""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from torch import Tensor

from implicit_models.language_models.language_model import LanguageModel
from implicit_models.language_models.source_names import SourceError


@runtime_checkable
class Memory(Protocol):
    """What a model remembers of the texts that it has read, of a size that does not grow."""

    def tensors(self) -> dict[str, Tensor]:
        """Return its tensors by name, each with a row for each text."""
        ...

    def resumed(self, tensors: Mapping[str, Tensor], /) -> "Memory":
        """Return a memory whose `tensors` these are; the one that follows it has no gradient."""
        ...


def initial_memory(model: LanguageModel, num_sequences: int) -> Memory:
    """Return what a model remembers before the first token.

    Raises
    ------
    SourceError
        Where it remembers nothing, or more with every token.
    """
    memory = getattr(model, "initial_cache", lambda _: None)(num_sequences)
    if isinstance(memory, Memory) and memory.tensors():
        return memory
    raise SourceError(
        f"a {type(model).__name__} hands nothing of a fixed size to the texts that follow: "
        "carry = 'passed' is not allowed; allowed is 'reset', or a model with a state"
    )
