"""Labelled sequences, as training reads them and evaluation judges them."""

from typing import Protocol, runtime_checkable

import numpy as np

LAST_TOKENS = 10  # the positions at the end of a sequence that ``accuracy_last_10`` is about


@runtime_checkable
class Sequences(Protocol):
    """Token ids and aligned labels, both (num_sequences, length)."""

    @property
    def inputs(self) -> np.ndarray:
        """Token ids."""
        ...

    @property
    def labels(self) -> np.ndarray:
        """What belongs to each token and all before it."""
        ...
