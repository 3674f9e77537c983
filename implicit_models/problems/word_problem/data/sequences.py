"""Sequences of group elements: how they are drawn, multiplied and kept apart."""

import numpy as np
from jaxtyping import Bool, Integer, UInt

from implicit_models.problems.word_problem.data.groups import Factor, multiplication_table, parse

INFORMATIVE_TOKENS = 2  # of a sequence, on average, have a monoid part other than the identity

_BLOCK_ROWS = 4096  # one column and its look-up indices stay in the first-level cache
_PADDING = 64  # a stride that is a power of two makes the transposition six times slower


def sample_inputs(
    generator: np.random.Generator,
    factors: tuple[Factor, ...],
    *,
    num_sequences: int,
    length: int,
    identity_probability: float,
    monoid_sampling: str,
) -> UInt[np.ndarray, "num_sequences length"]:
    """Draw sequences of elements, every token independently.

    With ``identity_probability`` all group factors of a token are set to the identity together,
    otherwise they are uniform over the whole group; factors that are monoids do not take part.

    Returns
    -------
    UInt[np.ndarray, "num_sequences length"]
        Of the smallest unsigned dtype that holds the vocabulary.
    """
    # A factor of one element would leave another with 256, which its own dtype cannot multiply by.
    factors = tuple(factor for factor in factors if factor.size > 1)
    shape = (num_sequences, length)
    vocabulary_size = int(np.prod([factor.size for factor in factors]))
    dtype = np.min_scalar_type(vocabulary_size - 1)
    hard = None
    if identity_probability > 0 and any(factor.is_group for factor in factors):
        hard = generator.random(shape, dtype=np.float32) >= identity_probability
    inputs = None
    for factor in factors:
        if monoid_sampling == "informative" and not factor.is_group:
            part = generator.integers(1, factor.size, size=shape, dtype=dtype)
            part *= generator.random(shape, dtype=np.float32) < INFORMATIVE_TOKENS / length
        else:
            part = generator.integers(factor.size, size=shape, dtype=dtype)
            if hard is not None and factor.is_group:
                part *= hard
        if inputs is None:
            inputs = part
        else:
            inputs *= dtype.type(factor.size)
            inputs += part
    assert inputs is not None
    return inputs


def prefix_products(
    table: Integer[np.ndarray, "size size"], inputs: Integer[np.ndarray, "num_sequences length"]
) -> Integer[np.ndarray, "num_sequences length"]:
    """Return the products of all prefixes: ``labels[:, t] = inputs[:, 0] * ... * inputs[:, t]``.

    A look-up in the multiplication table for all sequences at once, column by column.

    Parameters
    ----------
    table
        Entry [a, b] is a * b.
    inputs
        Elements of the table.

    Raises
    ------
    ValueError
        If an input is not an element of the table.
    """
    size = len(table)
    if inputs.size and (inputs.min() < 0 or inputs.max() >= size):
        raise ValueError(
            f"inputs are between {inputs.min()} and {inputs.max()}; "
            f"the table has the elements 0 to {size - 1}"
        )
    flat = np.ascontiguousarray(table).ravel()
    labels = np.empty(inputs.shape, dtype=flat.dtype)
    for start in range(0, len(inputs), _BLOCK_ROWS):
        rows = slice(start, start + _BLOCK_ROWS)
        columns = np.ascontiguousarray(inputs[rows].T)
        num_rows = columns.shape[1]
        products = np.empty((len(columns), num_rows + _PADDING), flat.dtype)[:, :num_rows]
        products[0] = columns[0]
        index = np.empty(num_rows, dtype=np.intp)
        for t in range(1, len(columns)):
            np.multiply(products[t - 1], size, out=index, dtype=np.intp)
            np.add(index, columns[t], out=index)
            np.take(flat, index, out=products[t], mode="clip")  # "clip": writes without a copy
        labels[rows] = products.T
    return labels


def merging_sequences(
    table: Integer[np.ndarray, "size size"],
    inputs: Integer[np.ndarray, "N L"],
    common: Integer[np.ndarray, "N K"],
) -> Integer[np.ndarray, "2P L+K"]:
    """Return pairs of sequences, one after the other, with the same product and then the same end.

    As many pairs as there are among ``inputs`` with the same product, each sequence in one at most;
    the end of each is a row of ``common``.
    """
    products = prefix_products(table, inputs)[:, -1]
    order = np.argsort(products, kind="stable")
    pairs, place = [], 0
    while place + 1 < len(order):
        if products[order[place]] == products[order[place + 1]]:
            pairs.append(order[place : place + 2])
            place += 2
        else:
            place += 1
    rows = np.concatenate(pairs) if pairs else np.zeros(0, dtype=np.intp)
    return np.concatenate([inputs[rows], common[np.repeat(rows[::2], 2)]], axis=1)


def draw_merging(
    generator: np.random.Generator,
    group: str,
    *,
    num_sequences: int,
    length: int,
    identity_probability: float,
    monoid_sampling: str,
) -> UInt[np.ndarray, "2P 2*length"]:
    """Draw sequences, and pair them as `merging_sequences` does, with an end of as many tokens."""
    past, common = (
        sample_inputs(
            generator,
            parse(group),
            num_sequences=num_sequences,
            length=length,
            identity_probability=identity_probability,
            monoid_sampling=monoid_sampling,
        )
        for _ in range(2)
    )
    return merging_sequences(multiplication_table(group), past, common)


class ReservedSequences:
    """Sequences that later splits must not contain.

    Two sequences are *shared* if one is a prefix of the other, or they are equal: the labels of
    the shorter one are then known from the longer one. Exact: a 64-bit hash finds the candidates,
    which are then compared token by token.
    """

    def __init__(self) -> None:
        self._splits: list[np.ndarray] = []
        self._indices: dict[tuple[int, int], tuple[np.ndarray, frozenset[bytes]]] = {}

    def add(self, inputs: UInt[np.ndarray, "num_sequences length"]) -> None:
        """Reserve all rows of ``inputs``."""
        self._splits.append(inputs)
        self._indices.clear()

    def shared(
        self, inputs: UInt[np.ndarray, "num_sequences length"]
    ) -> Bool[np.ndarray, " num_sequences"]:
        """Return which rows of ``inputs`` are shared with a reserved sequence."""
        shared = np.zeros(len(inputs), dtype=bool)
        for length in {min(inputs.shape[1], split.shape[1]) for split in self._splits}:
            hashes, exact = self._index(length, inputs.shape[1])
            own = _row_hashes(inputs[:, :length])
            position = np.minimum(np.searchsorted(hashes, own), len(hashes) - 1)
            for row in np.flatnonzero(hashes[position] == own):
                shared[row] |= inputs[row, :length].tobytes() in exact
        return shared

    def _index(self, length: int, full_length: int) -> tuple[np.ndarray, frozenset[bytes]]:
        """Return hashes and tokens of the reserved sequences to compare at this length."""
        key = length, full_length
        if key not in self._indices:
            rows = [
                split[:, :length]
                for split in self._splits
                if min(split.shape[1], full_length) == length
            ]
            hashes = np.unique(np.concatenate([_row_hashes(split) for split in rows]))
            self._indices[key] = hashes, frozenset(row.tobytes() for split in rows for row in split)
        return self._indices[key]


def _row_hashes(rows: np.ndarray) -> np.ndarray:
    """Hash every row to 64 bits, eight bytes at a time."""
    num_words = -(-rows.shape[1] * rows.itemsize // 8)
    padded = np.zeros((len(rows), num_words * 8 // rows.itemsize), dtype=rows.dtype)
    padded[:, : rows.shape[1]] = rows
    words = padded.view(np.uint64)
    hashes = np.zeros(len(rows), dtype=np.uint64)
    for column in words.T:
        hashes ^= column
        hashes *= np.uint64(0x9E3779B97F4A7C15)
        hashes ^= hashes >> np.uint64(29)
    return hashes
