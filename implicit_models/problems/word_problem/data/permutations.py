"""Groups of permutations, from generators to their multiplication table.

A permutation of n points is a bytes object: entry x is the image of point x, and ``(a * b)[x] =
a[b[x]]``. The elements of a group are in lexicographic order, so that 0 is the identity and the
same group from other generators has the same numbering.
"""

import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import UInt

MAX_POINTS = 256
_EVERY_POINT = bytes(range(MAX_POINTS))


@dataclass(frozen=True)
class PermutationGroup:
    """All products of some generators.

    Attributes
    ----------
    elements
        In lexicographic order.
    found
        A line for each element but the identity, in an order in which they follow from each other:
        the element, another of a line before, and the generator by which it is multiplied on the
        right; all of them places in ``elements``.
    """

    elements: tuple[bytes, ...]
    found: tuple[tuple[int, int, int], ...]

    def table(self) -> UInt[np.ndarray, "size size"]:
        """Return the multiplication table: entry [a, b] is a * b."""
        place = {element: index for index, element in enumerate(self.elements)}
        size = len(self.elements)
        dtype = np.min_scalar_type(size - 1)
        multiplied = {
            generator: np.array(
                [place[_product(each, self.elements[generator])] for each in self.elements], dtype
            )
            for generator in {generator for _, _, generator in self.found}
        }
        columns = np.empty((size, size), dtype)  # row b is column b of the table
        columns[0] = np.arange(size)
        for element, before, generator in self.found:
            np.take(multiplied[generator], columns[before], out=columns[element])
        return np.ascontiguousarray(columns.T)


@functools.lru_cache(maxsize=8)
def generated(generators: tuple[bytes, ...], max_elements: int) -> PermutationGroup:
    """Return the group of all products of generators, permutations of as many points each.

    Raises
    ------
    ValueError
        Where there are more than ``max_elements``.
    """
    identity = _EVERY_POINT[: len(generators[0])]
    steps: list[tuple[bytes, bytes, bytes]] = []
    known, latest = {identity}, [identity]
    while latest:
        following = []
        for before in latest:
            for generator in generators:
                element = _product(before, generator)
                if element not in known:
                    known.add(element)
                    following.append(element)
                    steps.append((element, before, generator))
        if len(known) > max_elements:
            raise ValueError(
                f"it has more than {max_elements} elements, the most that are supported"
            )
        latest = following
    elements = tuple(sorted(known))
    place = {element: index for index, element in enumerate(elements)}
    return PermutationGroup(
        elements,
        tuple((place[each], place[before], place[by]) for each, before, by in steps),
    )


def symmetric(degree: int) -> tuple[bytes, ...]:
    """Return generators of all permutations of so many points, at least one."""
    return tuple(_transposition(degree, point) for point in range(1, degree)) or (b"\0",)


def alternating(degree: int) -> tuple[bytes, ...]:
    """Return generators of all even permutations of so many points, at least one."""
    swapped = symmetric(degree)
    return tuple(_product(swapped[0], other) for other in swapped[1:]) or (_EVERY_POINT[:degree],)


def projective(prime: int) -> tuple[bytes, ...]:
    """Return generators of PSL(2, p) on the projective line: 0 to p - 1, and infinity, the last.

    They are ``x -> x + 1`` and ``x -> -1 / x``.
    """
    shifted = [(x + 1) % prime for x in range(prime)]
    inverted = [prime, *((-pow(x, -1, prime)) % prime for x in range(1, prime))]
    return bytes([*shifted, prime]), bytes([*inverted, 0])


def read_generators(text: str) -> tuple[bytes, ...]:
    """Read generators in cycle notation, such as ``(1 2 3)(4 5), (1 2)``; points begin at 1.

    Returns
    -------
    tuple[bytes, ...]
        All of as many points as the largest that is named.

    Raises
    ------
    ValueError
        Saying what is no product of disjoint cycles of points from 1 to `MAX_POINTS`.
    """
    point = "[0-9]{1,9}"
    cycle = rf"\(\s*(?:{point}(?:(?:\s*,\s*|\s+){point})*\s*)?\)"
    if re.fullmatch(rf"\s*(?:{cycle}\s*)+(?:,\s*(?:{cycle}\s*)+)*", text) is None:
        raise ValueError(f"{text!r} is no list of generators such as '(1 2 3 4 5), (1 2)'")
    listed = [
        [[int(each) for each in re.findall(point, found)] for found in re.findall(cycle, each)]
        for each in re.split(r"(?<=\))\s*,", text)
    ]
    for cycles in listed:
        _check_cycles(cycles)
    degree = max((point for cycles in listed for each in cycles for point in each), default=1)
    return tuple(_from_cycles(degree, cycles) for cycles in listed)


def _check_cycles(cycles: Iterable[Sequence[int]]) -> None:
    written = "".join(f"({' '.join(map(str, each))})" for each in cycles)
    points = [point for each in cycles for point in each]
    for point in points:
        if not 1 <= point <= MAX_POINTS:
            raise ValueError(
                f"point {point} of {written} is not allowed; allowed are 1 to {MAX_POINTS}"
            )
        if points.count(point) > 1:
            raise ValueError(
                f"point {point} stands twice in {written}; cycles are disjoint, and "
                "a comma stands between generators"
            )


def _from_cycles(degree: int, cycles: Iterable[Sequence[int]]) -> bytes:
    images = bytearray(range(degree))
    for each in cycles:
        for point, image in zip(each, (*each[1:], *each[:1]), strict=True):
            images[point - 1] = image - 1
    return bytes(images)


def _transposition(degree: int, point: int) -> bytes:
    return _from_cycles(degree, [(1, point + 1)])


def _product(left: bytes, right: bytes) -> bytes:
    """Return ``x -> left[right[x]]``."""
    return right.translate(left + _EVERY_POINT[len(left) :])
