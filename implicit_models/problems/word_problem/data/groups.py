"""Finite groups and monoids as multiplication tables.

Elements are numbered 0 .. size-1 and 0 is the identity. The symmetric group ``S5`` is the
permutations of 5 points in lexicographic order, the alternating group ``A5`` the even ones in the
same order, both with ``(a * b)[x] = a[b[x]]``; ``Z60`` adds modulo 60. The dihedral group ``D5``
has the 5 rotations of a pentagon, then the same rotations after a reflection. ``PSL(2, 7)``, of a
prime, is the maps ``x -> (a x + b) / (c x + d)`` with determinant 1 as permutations of 0 to 6 and
infinity, in lexicographic order. Generators in cycle notation, ``<(1 2 3 4 5), (1 2)>``, stand for
all of their products, in lexicographic order. ``M`` is the aperiodic monoid {E, A, B, X} of the
language "no aa", in which X absorbs. A direct product G x H numbers the pair (i, j) as
``i * |H| + j``.
"""

import functools
import hashlib
import math
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Integer, UInt

from implicit_models.problems.word_problem.data.permutations import (
    alternating,
    generated,
    projective,
    read_generators,
    symmetric,
)

MAX_ELEMENTS = 8192  # the table has its square: 128 MiB of uint16
_COUNTED = 10**9  # a message says "far too many" of more

_NO_AA = (  # rows and columns E, A, B, X
    (0, 1, 2, 3),
    (1, 3, 3, 3),
    (2, 1, 2, 3),
    (3, 3, 3, 3),
)


@dataclass(frozen=True)
class Factor:
    """A factor of a direct product.

    Attributes
    ----------
    size
        Number of elements.
    table
        Returns the multiplication table: entry [a, b] is a * b.
    is_group
        Whether every element has an inverse.
    """

    size: int
    table: Callable[[], Integer[np.ndarray, "size size"]]
    is_group: bool = True


@dataclass(frozen=True)
class Kind:
    """A group or monoid, or a series of them.

    Attributes
    ----------
    written
        How they are named, for people.
    pattern
        What the whole name of one matches.
    factor
        What the groups of the pattern stand for. A ValueError says what is wrong with them.
    examples
        Names of some.
    """

    written: str
    pattern: str
    factor: Callable[..., Factor]
    examples: tuple[str, ...]


def _permutations(size: int, generators: Callable[[int], tuple[bytes, ...]], number: int) -> Factor:
    return Factor(size, lambda: generated(generators(number), MAX_ELEMENTS).table())


def _symmetric(degree: str) -> Factor:
    return _permutations(math.factorial(int(degree)), symmetric, int(degree))


def _alternating(degree: str) -> Factor:
    size = max(1, math.factorial(int(degree)) // 2)
    return _permutations(size, alternating, int(degree))


def _cyclic(order: str) -> Factor:
    size = int(order)
    return Factor(size, lambda: np.add.outer(np.arange(size), np.arange(size)) % size)


def _dihedral(corners: str) -> Factor:
    number = int(corners)

    def table() -> Integer[np.ndarray, "size size"]:
        is_reflected, turns = np.divmod(np.arange(2 * number), number)
        turned = turns[:, None] + np.where(is_reflected, -1, 1)[:, None] * turns
        return (is_reflected[:, None] ^ is_reflected) * number + turned % number

    return Factor(2 * number, table)


def _projective(text: str) -> Factor:
    prime = int(text)
    if prime < 2 or any(prime % divisor == 0 for divisor in range(2, math.isqrt(prime) + 1)):
        raise ValueError(f"{prime} is no prime number, and PSL(2, p) takes one")
    size = prime * (prime**2 - 1) // math.gcd(2, prime - 1)
    return _permutations(size, projective, prime)


def _from_generators(text: str) -> Factor:
    group = generated(read_generators(text), MAX_ELEMENTS)
    return Factor(len(group.elements), group.table)


def _no_aa() -> Factor:
    return Factor(len(_NO_AA), lambda: np.array(_NO_AA), is_group=False)


_NUMBER = r"([1-9][0-9]{0,4})"
KINDS = (
    Kind("S<number>", f"S{_NUMBER}", _symmetric, ("S3", "S4", "S5")),
    Kind("A<number>", f"A{_NUMBER}", _alternating, ("A3", "A4", "A5")),
    Kind("Z<number>", f"Z{_NUMBER}", _cyclic, ("Z3", "Z4", "Z5")),
    Kind("D<number>", f"D{_NUMBER}", _dihedral, ("D3", "D4", "D5")),
    Kind(
        "PSL(2, <prime>)",
        rf"PSL\(\s*2\s*,\s*{_NUMBER}\s*\)",
        _projective,
        ("PSL(2, 5)", "PSL(2, 7)", "PSL(2, 11)"),
    ),
    Kind(
        "<generators>",
        "<([^<>]*)>",
        _from_generators,
        ("<(1 2 3 4 5), (1 2)>", "<(1 2)(3 4), (1 3)(2 4)>"),
    ),
    Kind("M", "M", _no_aa, ("M",)),
)


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
    for kind in KINDS:
        match = re.fullmatch(kind.pattern, part)
        if match is not None:
            try:
                return kind.factor(*match.groups())
            except ValueError as error:
                raise ValueError(f"{whole!r} is not allowed: {error}") from None
    *others, last = (kind.written for kind in KINDS)
    raise ValueError(
        f"{whole!r} is not a known group: {part!r} is none of {', '.join(others)} and {last}; "
        f"write {_meant(whole)}'S5', 'A5', 'Z60', generators such as '<(1 2 3), (1 2)>', "
        "or a direct product such as 'A5 x M'"
    )


def _meant(whole: str) -> str:
    """Return what ``A4Z5`` or ``(1 2 3)`` may stand for, as the start of a choice."""
    if whole.startswith("("):
        return f"'<{whole}>' if generators are meant, or "
    letters = re.sub(r"[\W_x]", "", whole).upper()
    parts = re.findall(r"[A-Z][0-9]*", letters)
    is_known = all(
        any(re.fullmatch(kind.pattern, part) is not None for kind in KINDS) for part in parts
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


def _product_table(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    left, right = left.astype(np.int32), right.astype(np.int32)
    size = len(left) * len(right)
    pairs = left[:, None, :, None] * len(right) + right[None, :, None, :]
    return pairs.reshape(size, size)
