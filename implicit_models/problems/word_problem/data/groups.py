"""Finite groups and monoids as multiplication tables.

Elements are numbered 0 .. size-1 and 0 is the identity. The symmetric group ``S_n`` is the
permutations of n points in lexicographic order, the alternating group ``A_n`` the even ones in the
same order, both with ``(a * b)[x] = a[b[x]]``; ``Z_n`` adds modulo n; ``M`` is the aperiodic
monoid {E, A, B, X} of the language "no aa", in which X absorbs. A direct product G x H numbers the
pair (i, j) as ``i * |H| + j``.
"""

import functools
import hashlib
import itertools
import math
import re
from dataclasses import dataclass

import numpy as np
from jaxtyping import Integer, UInt, UInt8

MAX_ELEMENTS = 8192  # the table has its square: 128 MiB of uint16

_NO_AA = (  # rows and columns E, A, B, X
    (0, 1, 2, 3),
    (1, 3, 3, 3),
    (2, 1, 2, 3),
    (3, 3, 3, 3),
)


@dataclass(frozen=True)
class Factor:
    """A factor of a direct product: ``S``, ``A`` or ``Z`` with its degree, or the monoid ``M``."""

    kind: str
    degree: int = 0

    @property
    def is_group(self) -> bool:
        """Whether every element has an inverse."""
        return self.kind != "M"

    @property
    def size(self) -> int:
        """Number of elements."""
        if self.kind == "M":
            return len(_NO_AA)
        if self.kind == "Z":
            return self.degree
        num_permutations = math.factorial(self.degree)
        return num_permutations if self.kind == "S" else max(1, num_permutations // 2)

    def table(self) -> Integer[np.ndarray, "size size"]:
        """Return the multiplication table: entry [a, b] is a * b."""
        if self.kind == "M":
            return np.array(_NO_AA)
        if self.kind == "Z":
            return np.add.outer(np.arange(self.degree), np.arange(self.degree)) % self.degree
        return _composition_table(permutations(self.degree, even_only=self.kind == "A"))


def parse(name: str) -> tuple[Factor, ...]:
    """Parse the factors of a group or monoid given by name, such as ``"A5"`` or ``"A5 x M"``.

    Raises
    ------
    ValueError
        If the name is not understood, or names fewer than 2 or more than `MAX_ELEMENTS` elements.
    """
    factors = []
    for part in re.split(r"\s*x\s*", name.strip()):
        match = re.fullmatch(r"([SAZ])([1-9][0-9]{0,4})|M", part)
        if match is None:
            raise ValueError(
                f"{name!r} is not a known group: {part!r} is neither S, A or Z followed by a "
                "number nor M; write 'S5', 'A5', 'Z60', or a direct product such as 'A5 x M'"
            )
        factors.append(Factor(match[1], int(match[2])) if match[1] else Factor("M"))
    too_large = any(f.kind in "SA" and f.degree > 12 for f in factors)
    size = 0 if too_large else math.prod(factor.size for factor in factors)
    if too_large or size > MAX_ELEMENTS:
        raise ValueError(
            f"{name!r} has {'far too many' if too_large else size} elements; "
            f"at most {MAX_ELEMENTS} are supported"
        )
    if size < 2:
        raise ValueError(f"{name!r} has a single element; at least 2 are needed")
    return tuple(factors)


@functools.lru_cache(maxsize=8)
def multiplication_table(name: str) -> UInt[np.ndarray, "size size"]:
    """Return the multiplication table of a group or monoid given by name.

    Returns
    -------
    UInt[np.ndarray, "size size"]
        Read-only, of the smallest unsigned dtype that holds every element; entry [a, b] is a * b.
    """
    table = functools.reduce(_product_table, (factor.table() for factor in parse(name)))
    table = np.ascontiguousarray(table, dtype=np.min_scalar_type(len(table) - 1))
    table.flags.writeable = False
    return table


def table_digest(table: Integer[np.ndarray, "size size"]) -> str:
    """Return the SHA-256 of a multiplication table, whatever its dtype."""
    return hashlib.sha256(np.ascontiguousarray(table, dtype="<u4").tobytes()).hexdigest()


def permutations(degree: int, even_only: bool = False) -> UInt8[np.ndarray, "size degree"]:
    """Return all permutations of ``degree`` points in lexicographic order."""
    everything = np.array(list(itertools.permutations(range(degree))), dtype=np.uint8)
    if not even_only:
        return everything
    inversions = sum(
        (everything[:, i] > everything[:, j]).astype(int)
        for i, j in itertools.combinations(range(degree), 2)
    )
    return everything[np.broadcast_to(inversions, len(everything)) % 2 == 0]


def _composition_table(elements: np.ndarray) -> np.ndarray:
    """Return the table of permutations in lexicographic order under (a * b)[x] = a[b[x]]."""
    degree = elements.shape[1]
    place_values = degree ** np.arange(degree)[::-1]  # keeps lexicographic order
    codes = elements @ place_values
    table = np.empty((len(elements), len(elements)), dtype=np.int32)
    for row, element in zip(table, elements, strict=True):
        row[:] = np.searchsorted(codes, element[elements] @ place_values)
    return table


def _product_table(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    left, right = left.astype(np.int32), right.astype(np.int32)
    size = len(left) * len(right)
    pairs = left[:, None, :, None] * len(right) + right[None, :, None, :]
    return pairs.reshape(size, size)
