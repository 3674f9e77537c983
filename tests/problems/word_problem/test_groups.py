"""Axioms of groups and monoids, and the published numbering of their elements."""

import itertools
import math

import numpy as np
import pytest

from implicit_models.problems.word_problem.data.groups import (
    KINDS,
    MAX_ELEMENTS,
    multiplication_table,
    parse,
    table_digest,
)
from implicit_models.problems.word_problem.data.permutations import MAX_POINTS, read_generators

GROUPS = ["S1 x Z2", "S3", "S4", "S5", "A3", "A4", "A5", "Z2", "Z60", "Z2 x S3", "S3 x Z2 x A4"]
GROUPS += ["D1", "D2", "D7", "PSL(2, 2)", "PSL(2, 3)", "PSL(2,7)", "D3 x PSL(2,3)"]
GROUPS += ["<(1 2 3)(4 5), (1 2)>", "Z2 x <(1,2,3,4), (1,3)>", "<(2 9), ()>"]
MONOIDS = ["M", "A5 x M", "M x Z3", "M x M"]


@pytest.mark.parametrize("name", GROUPS + MONOIDS)
def test_monoid_axioms(name):
    table = multiplication_table(name)
    size = len(table)
    elements = np.arange(size)
    assert table.shape == (size, size) and table.min() >= 0 and table.max() == size - 1
    np.testing.assert_array_equal(table[0], elements)
    np.testing.assert_array_equal(table[:, 0], elements)
    for a in elements:
        np.testing.assert_array_equal(table[table[a]], table[a][table])  # (a b) c = a (b c)


@pytest.mark.parametrize("name", GROUPS)
def test_groups_have_inverses(name):
    table = multiplication_table(name)
    elements = np.broadcast_to(np.arange(len(table)), table.shape)
    np.testing.assert_array_equal(np.sort(table, axis=0), elements.T)
    np.testing.assert_array_equal(np.sort(table, axis=1), elements)
    assert all(factor.is_group for factor in parse(name))


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("S5", 120),
        ("A5", 60),
        ("A5 x M", 240),
        ("Z7", 7),
        ("S6", 720),
        ("Z2 x S3", 12),
        ("A2xZ3", 3),
        ("D7", 14),
        ("PSL(2, 7)", 168),
        ("PSL(2, 11)", 660),
        ("<(1 2 3 4 5 6 7), (1 2)(3 6)>", 168),
        ("<(1 2)(3 4), (1 3)(2 4)>", 4),
        ("<(1 2 3),\n (1  2)>", 6),
    ],
)
def test_sizes_and_dtypes(name, size):
    table = multiplication_table(name)
    assert len(table) == size == math.prod(factor.size for factor in parse(name))
    assert table.dtype == (np.uint8 if size <= 256 else np.uint16)
    assert not table.flags.writeable
    assert multiplication_table("Z256").dtype == np.uint8
    assert multiplication_table("Z257").dtype == np.uint16


def test_published_table_of_s3():
    np.testing.assert_array_equal(
        multiplication_table("S3"),
        [
            [0, 1, 2, 3, 4, 5],
            [1, 0, 4, 5, 2, 3],
            [2, 3, 0, 1, 5, 4],
            [3, 2, 5, 4, 0, 1],
            [4, 5, 1, 0, 3, 2],
            [5, 4, 3, 2, 1, 0],
        ],
    )


def test_rows_of_the_no_aa_monoid():
    e, a, b, x = range(4)
    expected = [[e, a, b, x], [a, x, x, x], [b, a, b, x], [x, x, x, x]]
    np.testing.assert_array_equal(multiplication_table("M"), expected)


@pytest.mark.parametrize(("name", "degree", "even"), [("S4", 4, False), ("A5", 5, True)])
def test_permutations_compose_right_to_left_in_lexicographic_order(name, degree, even):
    elements = [
        p
        for p in itertools.permutations(range(degree))
        if not even
        or sum(p[i] > p[j] for i, j in itertools.combinations(range(degree), 2)) % 2 == 0
    ]
    table = multiplication_table(name)
    for (i, a), (j, b) in itertools.product(enumerate(elements), repeat=2):
        assert elements[table[i, j]] == tuple(a[b[point]] for point in range(degree))


@pytest.mark.parametrize(
    ("generators", "name"),
    [
        ("<(1 2 3 4 5), (1 2)>", "S5"),
        ("<(1 2), (2 3), (3, 4)>", "S4"),
        ("<(1 2 3 4 5), (1 2 3)>", "A5"),
        ("<(3 4 5)(1)(2), ( 1 2 3 )>", "A5"),
        ("<(1 2 3 4 5 6 7), (1 8)(2 7)(3 4)(5 6)>", "PSL(2, 7)"),
    ],
)
def test_other_generators_of_a_group_give_its_numbering(generators, name):
    np.testing.assert_array_equal(multiplication_table(generators), multiplication_table(name))


@pytest.mark.parametrize("prime", [2, 3, 5, 7])
def test_projective_group_is_that_of_matrices(prime):
    field = range(prime)
    maps = {
        tuple(_moebius(prime, a, b, c, d, x) for x in [*field, None])
        for a, b, c, d in itertools.product(field, repeat=4)
        if (a * d - b * c) % prime == 1
    }
    elements = sorted([prime if y is None else y for y in each] for each in maps)
    table = multiplication_table(f"PSL(2, {prime})")
    assert len(table) == len(elements)
    for i, j in itertools.product(range(len(elements)), repeat=2):
        assert elements[table[i, j]] == [elements[i][y] for y in elements[j]]


def _moebius(prime, a, b, c, d, x):
    """Return ``(a x + b) / (c x + d)``; None is infinity."""
    top, bottom = (a, c) if x is None else ((a * x + b) % prime, (c * x + d) % prime)
    return top * pow(bottom, -1, prime) % prime if bottom else None


@pytest.mark.parametrize("corners", [3, 4, 7])
def test_dihedral_group_moves_the_corners_of_a_polygon(corners):
    turned = [[(x + turns) % corners for x in range(corners)] for turns in range(corners)]
    reflected = [[(turns - x) % corners for x in range(corners)] for turns in range(corners)]
    elements = turned + reflected
    table = multiplication_table(f"D{corners}")
    for i, j in itertools.product(range(len(elements)), repeat=2):
        assert elements[table[i, j]] == [elements[i][y] for y in elements[j]]


def test_cycles_send_each_point_to_the_next():
    assert read_generators("(1 3 2)(4 5), (1,5)") == (
        bytes([2, 0, 1, 4, 3]),
        bytes([4, 1, 2, 3, 0]),
    )


def test_product_numbers_pairs_left_first():
    table, left, right = map(multiplication_table, ("A4 x M", "A4", "M"))
    for i, j, k, m in itertools.product(range(12), range(4), range(12), range(4)):
        assert table[i * 4 + j, k * 4 + m] == left[i, k] * 4 + right[j, m]


def test_examples_of_every_kind_exist():
    assert all(parse(name) for kind in KINDS for name in kind.examples)


def test_digest_tells_tables_apart():
    digests = {table_digest(multiplication_table(name)) for name in ("Z6", "S3", "Z2 x Z3")}
    assert len(digests) == 3
    table = multiplication_table("S3")
    assert table_digest(table) == table_digest(table.astype(np.int64))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("B5", ["'B5' is none of", *(kind.written for kind in KINDS), "'A5 x M'"]),
        ("A5 x", ["''"]),
        ("a5", ["'a5'"]),
        ("S0", ["'S0'"]),
        ("S8", ["40320 elements", str(MAX_ELEMENTS)]),
        ("S99999", ["far too many"]),
        ("Z1", ["a single element"]),
        ("D0", ["'D0' is none of"]),
        ("D5000", ["10000 elements", str(MAX_ELEMENTS)]),
        ("PSL(2, 8)", ["8 is no prime"]),
        ("PSL(2, 29)", ["12180 elements"]),
        ("<>", ["no list of generators", "'(1 2 3 4 5), (1 2)'"]),
        ("<1 2>", ["'1 2' is no list of generators"]),
        ("<(1 2),>", ["no list of generators"]),
        (f"<({'  '.join(map(str, range(1, 61)))}>", ["no list of generators"]),  # at once
        ("<(\u0967 \u0968)>", ["no list of generators"]),
        (f"<(1 {'9' * 5000})>", ["no list of generators"]),
        ("(1 2)", ["is none of", "'<(1 2 3), (1 2)>'"]),
        ("<(1 2 3 4 5), (1 2) x Z2", ["is none of"]),
        ("<(), ()>", ["a single element"]),
        ("<(1 2 2)>", ["point 2 stands twice in (1 2 2)"]),
        (
            "<(1 2)(2 3)>",
            ["point 2 stands twice in (1 2)(2 3)", "a comma stands between"],
        ),
        ("<(0 1)>", ["point 0 of (0 1)", f"1 to {MAX_POINTS}"]),
        (f"<(1 {MAX_POINTS + 1})>", [f"point {MAX_POINTS + 1}"]),
        ("<(1 2 3 4 5 6 7 8), (1 2)>", [f"more than {MAX_ELEMENTS} elements"]),
    ],
)
def test_unknown_names(name, words):
    with pytest.raises(ValueError) as caught:
        parse(name)
    assert all(word in str(caught.value) for word in words)
