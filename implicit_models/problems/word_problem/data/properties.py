"""What the multiplication table of a group or monoid says about it.

The word problem of a group that is not solvable is complete for NC1 (Barrington 1989). A fixed
number of layers of attention or of Mamba2, with numbers of logarithmic precision, computes no more
than TC0 (Merrill and Sabharwal 2023; Merrill, Petty and Sabharwal 2024), so that it follows no such
group at all lengths unless TC0 = NC1. Of a solvable one this says nothing, either way.
"""

import numpy as np
from jaxtyping import Integer


def is_commutative(table: Integer[np.ndarray, "size size"]) -> bool:
    """Return whether a * b is b * a of all elements."""
    return bool(np.array_equal(table, table.T))


def is_solvable(table: Integer[np.ndarray, "size size"]) -> bool:
    """Return whether a group is solvable; of a monoid, whether all groups in it are.

    A group is, if its commutators, their commutators, and so on, end in the identity.
    """
    elements = np.arange(len(table))
    identities = elements[table.diagonal() == elements]  # a group has one, a monoid may have more
    return all(_ends_in(identity, table) for identity in identities)


def _ends_in(identity: int, table: Integer[np.ndarray, "size size"]) -> bool:
    """Return whether the largest group in a monoid that has this identity is solvable."""
    elements = np.arange(len(table))
    kept = elements[(table[identity] == elements) & (table[:, identity] == elements)]
    group = kept[(table[np.ix_(kept, kept)] == identity).any(axis=1)]
    while len(group) > 1:
        derived = _derived(identity, table, group)
        if len(derived) == len(group):
            return False
        group = derived
    return True


def _derived(
    identity: int, table: Integer[np.ndarray, "size size"], group: Integer[np.ndarray, " n"]
) -> Integer[np.ndarray, " m"]:
    """Return the elements of the group that the commutators of a group generate."""
    products = table[np.ix_(group, group)]
    inverses = group[(products == identity).argmax(axis=1)]
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
