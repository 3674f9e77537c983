"""What a family tells of what its models cost: numbers of parameters, FLOPs, memory."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from jaxtyping import Int


@dataclass(frozen=True)
class ParameterCount:
    """Numbers of parameters.

    Attributes
    ----------
    embedding
        Of the embedding, and of the head where it is not tied to it.
    stack
        Of all blocks and the final norm; of an LSTM, all between embedding and head.
    injection
        Of what an implicit model has on top.
    """

    embedding: int
    stack: int
    injection: int

    @property
    def total(self) -> int:
        """All parameters, a tied head counted once."""
        return self.embedding + self.stack + self.injection

    @property
    def non_embedding(self) -> int:
        """All but embedding and head."""
        return self.stack + self.injection


class Work(NamedTuple):
    """FLOPs, apart by what is multiplied.

    Attributes
    ----------
    weights
        Of activations with weights.
    mixing
        Of activations with activations: attention, or the scan.
    """

    weights: float
    mixing: float

    @property
    def total(self) -> float:
        """All of them."""
        return self.weights + self.mixing


class StackFlops(Protocol):
    """What a model's blocks cost."""

    def evaluation(self, length: int, *, before: float | None = None) -> Work:
        """Return the work of computing some tokens of a text together, each of them once.

        Parameters
        ----------
        length
            Number of tokens.
        before
            So many others lie before them in a carry, which is read: on an average over the layers;
            it may be empty. None where there is no carry.
        """
        ...

    def carry(self, length: int) -> float:
        """Return the FLOPs of taking the carry after so many tokens that are computed together."""
        ...

    def last_products(self, length: int) -> float:
        """Return the FLOPs of each block's last product, which checkpointing does not repeat."""
        ...


@dataclass(frozen=True, kw_only=True)
class ModelFlops:
    """What a model costs: each token's share, and what its blocks cost together.

    Attributes
    ----------
    head
        FLOPs of a token's logits.
    injection
        FLOPs of a token's injection, computed once whatever the iterations; 0 where there is none.
    stack
        The cell of an implicit model; of an explicit one, all between embedding and head.
    """

    head: int
    injection: int
    stack: StackFlops


@dataclass(frozen=True, kw_only=True)
class Past:
    """What a carry holds of the tokens before a batch.

    Attributes
    ----------
    lengths
        Tokens of each sequence.
    reach
        Keys that each token attends to before its own, on an average over the layers: the longest
        of the lengths, or more, or fewer where a layer keeps no more.
    """

    lengths: Int[np.ndarray, " B"]
    reach: float

    @classmethod
    def empty(cls, batch: int) -> "Past":
        """Return that of texts' starts."""
        return cls(lengths=np.zeros(batch, dtype=np.int64), reach=0)


@dataclass(frozen=True, kw_only=True)
class BlockMemory:
    """Bytes for each token that one block takes, with the kernels in Triton.

    Attributes
    ----------
    injection
        Of the injection that all blocks share.
    kept
        What its evaluation keeps for the backward pass.
    search
        What its evaluation holds at once where nothing is kept.
    backward
        What its backward pass holds at once besides.
    """

    injection: int
    kept: int
    search: int
    backward: int


FLOAT32_BYTES = 4
