"""What a multiplication table says about its group: what decides how hard its word problem is.

The word problem of a finite group that is not solvable is complete for NC1, so that a fixed number
of parallel layers cannot follow it unless TC0 = NC1 (Barrington 1989); that of a solvable group is
in ACC0.
"""

import numpy as np
from jaxtyping import Integer

_IDENTITY = 0


def is_commutative(table: Integer[np.ndarray, "size size"]) -> bool:
    """Return whether a * b is b * a of all elements."""
    return bool(np.array_equal(table, table.T))


def is_solvable(table: Integer[np.ndarray, "size size"]) -> bool:
    """Return whether commutators of commutators, and so on, end in the identity.

    Parameters
    ----------
    table
        Of a group; entry [a, b] is a * b, and 0 is the identity.
    """
    group = np.arange(len(table))
    while len(group) > 1:
        derived = _derived(table, group)
        if len(derived) == len(group):
            return False
        group = derived
    return True


def _derived(
    table: Integer[np.ndarray, "size size"], group: Integer[np.ndarray, " n"]
) -> Integer[np.ndarray, " m"]:
    """Return the elements of the subgroup that the commutators of a subgroup generate."""
    products = table[np.ix_(group, group)]
    inverses = group[(products == _IDENTITY).argmax(axis=1)]
    turned = table[np.ix_(inverses, inverses)]
    found = _distinct(table[products, turned], len(table))  # a b a^-1 b^-1, of all a and b
    generators = found
    while True:
        more = _distinct(table[np.ix_(found, generators)], len(table))
        if len(more) == len(found):
            return more
        found = more


def _distinct(elements: Integer[np.ndarray, "n n"], size: int) -> Integer[np.ndarray, " m"]:
    """Return what is among some elements, in their order; faster than sorting them."""
    is_there = np.zeros(size, dtype=bool)
    is_there[elements] = True
    return np.flatnonzero(is_there)
