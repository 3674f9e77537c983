"""A row of tokens, as the evaluation needs it: of known length, and read where it is sliced."""

from typing import Any, Protocol

import numpy as np
from jaxtyping import Int

from implicit_models.evaluation.scoring import TextError
from implicit_models.parameters import ParameterError


class Tokens(Protocol):
    """All tokens of a text in a row: an array, or what reads slices from files."""

    def __len__(self) -> int:
        """Return the number of tokens."""
        ...

    def __getitem__(self, key: slice, /) -> Any:
        """Read some of them, an array of token ids."""
        ...


def cut(
    stream: Tokens, length: int, first: int, last: int
) -> tuple[Int[np.ndarray, "N L"], Int[np.ndarray, "N L"]]:
    """Return sequences ``first`` to ``last - 1``, and for each token the one that follows it.

    The stream is cut into sequences of ``length`` that follow one another.
    """
    tokens = np.asarray(stream[first * length : last * length + 1], dtype=np.int64)
    return tokens[:-1].reshape(-1, length), tokens[1:].reshape(-1, length)


def num_sequences(stream: Tokens, length: int, asked: int | None = None) -> int:
    """Return how many sequences of this length to read: all there are, or as many as asked for.

    Raises
    ------
    TextError
        Where there is not one.
    ParameterError
        Where there are fewer than asked for.
    """
    count = (len(stream) - 1) // length
    if count < 1:
        raise TextError(
            f"the text has {len(stream)} tokens; a sequence of {length} needs one more than that: "
            "choose shorter lengths, or more text"
        )
    if asked is not None and asked > count:
        raise ParameterError(
            f"num_sequences = {asked} is not allowed; allowed is at most {count}, the sequences of "
            f"{length} tokens in the text"
        )
    return count if asked is None else asked
