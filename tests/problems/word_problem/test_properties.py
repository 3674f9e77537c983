"""What is said of groups, against sympy's groups of permutations."""

import itertools

import numpy as np
import pytest

from implicit_models.problems.word_problem.data.groups import multiplication_table
from implicit_models.problems.word_problem.data.properties import is_commutative, is_solvable

combinatorics = pytest.importorskip("sympy.combinatorics")

GROUPS = ["Z2", "Z60", "S1 x Z2", "S3", "S4", "S5", "A4", "A5", "D4", "D9", "Z2 x S3", "Z2 x A5"]
GROUPS += ["PSL(2, 3)", "PSL(2, 7)", "<(1 2)(3 4), (1 3)(2 4)>", "<(1 2 3 4 5), (1 2)>"]


@pytest.mark.parametrize("name", GROUPS)
def test_properties_are_those_of_sympy(name: str) -> None:
    table = multiplication_table(name)
    # Cayley: a group is that of the permutations by which its elements move all of them.
    moves = [combinatorics.Permutation(row) for row in table.tolist()]
    group = combinatorics.PermutationGroup(moves)
    assert group.order() == len(table)
    assert is_commutative(table) == group.is_abelian
    assert is_solvable(table) == group.is_solvable


@pytest.mark.parametrize(("name", "solvable"), [("M", True), ("S4 x M", True), ("A5 x M", False)])
def test_a_monoid_is_as_solvable_as_the_groups_in_it(name: str, solvable: bool) -> None:
    assert is_solvable(multiplication_table(name)) == solvable


@pytest.mark.parametrize(("points", "solvable"), [(4, True), (5, False)])
def test_all_maps_of_some_points_are_solvable_if_their_permutations_are(
    points: int, solvable: bool
) -> None:
    maps = np.array(list(itertools.product(range(points), repeat=points)))
    digits = points ** np.arange(points)[::-1]
    products = np.array([left[maps] @ digits for left in maps])  # in the order of their numbers
    assert np.array_equal(maps[products[7, 11]], maps[7][maps[11]])
    assert is_solvable(products) == solvable
