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
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Integer, UInt, UInt8

MAX_ELEMENTS = 8192  # the table has its square: 128 MiB of uint16
_COUNTED = 10**9  # a message says "far too many" of more

_NO_AA = (  # rows and columns E, A, B, X
    (0, 1, 2, 3),
    (1, 3, 3, 3),
    (2, 1, 2, 3),
    (3, 3, 3, 3),
)


@dataclass(frozen=True)
class _Kind:
    """A group or monoid, or a series of them, one for each degree.

    Attributes
    ----------
    size, table
        Number of elements, and the multiplication table: entry [a, b] is a * b. Functions of the
        degree, which is 0 where ``has_degree`` is false.
    has_degree
        Whether a number follows its name.
    is_group
        Whether every element has an inverse.
    """

    size: Callable[[int], int]
    table: Callable[[int], Integer[np.ndarray, "size size"]]
    has_degree: bool = True
    is_group: bool = True


KINDS = {
    "S": _Kind(math.factorial, lambda degree: _composition_table(permutations(degree))),
    "A": _Kind(
        lambda degree: max(1, math.factorial(degree) // 2),
        lambda degree: _composition_table(permutations(degree, even_only=True)),
    ),
    "Z": _Kind(
        lambda degree: degree,
        lambda degree: np.add.outer(np.arange(degree), np.arange(degree)) % degree,
    ),
    "M": _Kind(lambda _: len(_NO_AA), lambda _: np.array(_NO_AA), has_degree=False, is_group=False),
}


@dataclass(frozen=True)
class Factor:
    """A factor of a direct product: a name in `KINDS`, with its degree where it has one."""

    name: str
    degree: int = 0

    @property
    def is_group(self) -> bool:
        """Whether every element has an inverse."""
        return KINDS[self.name].is_group

    @property
    def size(self) -> int:
        """Number of elements."""
        return KINDS[self.name].size(self.degree)

    def table(self) -> Integer[np.ndarray, "size size"]:
        """Return the multiplication table: entry [a, b] is a * b."""
        return KINDS[self.name].table(self.degree)


def parse(name: str) -> tuple[Factor, ...]:
    """Parse the factors of a group or monoid given by name, such as ``"A5"`` or ``"A5 x M"``.

    Raises
    ------
    ValueError
        If the name is not understood, or names fewer than 2 or more than `MAX_ELEMENTS` elements.
    """
    factors = tuple(_factor(name, part) for part in re.split(r"\s*x\s*", name.strip()))
    size = math.prod(factor.size for factor in factors)
    if size > MAX_ELEMENTS:
        raise ValueError(
            f"{name!r} has {'far too many' if size > _COUNTED else size} elements; "
            f"at most {MAX_ELEMENTS} are supported"
        )
    if size < 2:
        raise ValueError(f"{name!r} has a single element; at least 2 are needed")
    return factors


def _factor(whole: str, part: str) -> Factor:
    if part in KINDS and not KINDS[part].has_degree:
        return Factor(part)
    series = {name for name in KINDS if KINDS[name].has_degree}
    match = re.fullmatch(r"([A-Za-z]+)([1-9][0-9]{0,4})", part)
    if match is None or match[1] not in series:
        *others, last = (name for name in KINDS if name in series)
        single = ", ".join(name for name in KINDS if name not in series)
        raise ValueError(
            f"{whole!r} is not a known group: {part!r} is neither {', '.join(others)} or {last} "
            f"followed by a number nor {single}; write {_meant(whole)}'S5', 'A5', 'Z60', or a "
            "direct product such as 'A5 x M'"
        )
    return Factor(match[1], int(match[2]))


def _meant(whole: str) -> str:
    """Return the product that a name such as ``A4Z5`` may stand for, as the start of a choice."""
    letters = re.sub(r"[\W_x]", "", whole).upper()
    parts = re.findall(r"[A-Z][0-9]*", letters)
    is_known = all(
        part[0] in KINDS and KINDS[part[0]].has_degree == (len(part) > 1) for part in parts
    )
    if not parts or not is_known or "".join(parts) != letters:
        return ""
    return f"{' x '.join(parts)!r} if that is what is meant, or "


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
