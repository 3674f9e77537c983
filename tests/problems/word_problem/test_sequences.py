"""Drawing, multiplying and keeping apart sequences."""

import itertools

import numpy as np
import pytest

from implicit_models.problems.word_problem.data.groups import multiplication_table, parse
from implicit_models.problems.word_problem.data.sequences import (
    ReservedSequences,
    prefix_products,
    sample_inputs,
)


def sample(name, *, num_sequences, length, probability=0.0, monoid_sampling="uniform", seed=0):
    return sample_inputs(
        np.random.default_rng(seed),
        parse(name),
        num_sequences=num_sequences,
        length=length,
        identity_probability=probability,
        monoid_sampling=monoid_sampling,
    )


def even_permutations():
    return [
        p
        for p in itertools.permutations(range(5))
        if sum(p[i] > p[j] for i, j in itertools.combinations(range(5), 2)) % 2 == 0
    ]


def no_aa(left, right):
    """Multiply in the no-aa monoid: E changes nothing, B gives way to A or B, all else is X."""
    if "E" in (left, right):
        return right if left == "E" else left
    if left == "B" and right in "AB":
        return right
    return "X"


def test_labels_are_products_of_permutations_composed_one_by_one():
    elements = even_permutations()
    inputs = sample("A5", num_sequences=50, length=33)
    labels = prefix_products(multiplication_table("A5"), inputs)
    for row, expected in zip(inputs, labels, strict=True):
        state = tuple(range(5))
        for element, label in zip(row, expected, strict=True):
            state = tuple(state[point] for point in elements[element])
            assert elements[label] == state


@pytest.mark.parametrize("monoid_sampling", ["uniform", "informative"])
def test_labels_of_a_product_with_the_monoid(monoid_sampling):
    elements = even_permutations()
    inputs = sample("A5 x M", num_sequences=50, length=33, monoid_sampling=monoid_sampling)
    labels = prefix_products(multiplication_table("A5 x M"), inputs)
    for row, expected in zip(inputs.tolist(), labels.tolist(), strict=True):
        state, word = tuple(range(5)), "E"
        for element, label in zip(row, expected, strict=True):
            state = tuple(state[point] for point in elements[element // 4])
            word = no_aa(word, "EABX"[element % 4])
            assert elements[label // 4] == state
            assert "EABX"[label % 4] == word


@pytest.mark.parametrize("num_sequences", [1, 4095, 4097])
def test_products_do_not_depend_on_the_blocks(num_sequences):
    table = multiplication_table("S6")
    inputs = sample("S6", num_sequences=num_sequences, length=3)
    labels = prefix_products(table, inputs)
    assert labels.dtype == inputs.dtype == np.uint16
    np.testing.assert_array_equal(labels[:, 0], inputs[:, 0])
    np.testing.assert_array_equal(
        labels[:, 2], table[table[inputs[:, 0], inputs[:, 1]], inputs[:, 2]]
    )


def test_products_refuse_what_is_not_an_element():
    with pytest.raises(ValueError, match="between 0 and 60; the table has the elements 0 to 59"):
        prefix_products(multiplication_table("A5"), np.array([[0, 60]], dtype=np.uint8))


@pytest.mark.parametrize("name", ["A5", "S6", "A5 x M"])
def test_every_element_is_equally_likely(name):
    size = len(multiplication_table(name))
    inputs = sample(name, num_sequences=size * 10, length=100)
    counts = np.bincount(inputs.ravel(), minlength=size)
    chi_square = ((counts - 1000) ** 2 / 1000).sum()
    assert abs(chi_square - (size - 1)) < 5 * np.sqrt(2 * size)


@pytest.mark.parametrize("probability", [0.0, 0.5, 0.9, 1.0])
def test_mixture_probability_of_the_group_part(probability):
    inputs = sample("A5 x M", num_sequences=1000, length=200, probability=probability)
    group, monoid = np.divmod(inputs, 4)
    expected = probability + (1 - probability) / 60
    deviation = np.sqrt(expected * (1 - expected) / group.size)
    assert abs((group == 0).mean() - expected) <= 5 * deviation
    np.testing.assert_allclose(np.bincount(monoid.ravel()) / monoid.size, 0.25, atol=0.005)
    if probability < 1:
        hard = np.bincount(group[group > 0], minlength=60)[1:]
        assert hard.min() > 0.7 * hard.mean()


@pytest.mark.parametrize("name", ["S1 x Z256", "Z256 x S1", "S1 x Z256 x A2"])
def test_factors_of_one_element_change_nothing(name):
    expected = sample("Z256", num_sequences=100, length=50, probability=0.5)
    inputs = sample(name, num_sequences=100, length=50, probability=0.5)
    np.testing.assert_array_equal(inputs, expected)
    assert inputs.max() == 255
    np.testing.assert_array_equal(multiplication_table(name), multiplication_table("Z256"))


def test_group_factors_are_set_to_the_identity_together():
    inputs = sample("Z5 x S3", num_sequences=1000, length=50, probability=0.9)
    assert abs((inputs == 0).mean() - (0.9 + 0.1 / 30)) < 0.01


@pytest.mark.parametrize("length", [8, 16, 256])
def test_informative_sampling_keeps_the_monoid_changing(length):
    def state_shares(monoid_sampling):
        inputs = sample("M", num_sequences=4000, length=length, monoid_sampling=monoid_sampling)
        states = prefix_products(multiplication_table("M"), inputs)
        return [np.bincount(column, minlength=4) / 4000 for column in states.T]

    informative = state_shares("informative")
    assert max(informative[length // 2]) < 0.7
    assert max(informative[-1]) < 0.8
    if length > 10:
        assert state_shares("uniform")[10][3] > 0.99


def brute_force_shared(reserved, inputs):
    return [
        any(
            tuple(row[: len(other)]) == tuple(other[: len(row)])
            for split in reserved
            for other in split
        )
        for row in inputs
    ]


@pytest.mark.parametrize("name", ["Z2", "S3", "Z300"])
def test_shared_sequences_are_those_that_are_prefixes(name):
    splits = [sample(name, num_sequences=5, length=n, seed=n) for n in (3, 5, 9, 17)]
    reserved = ReservedSequences()
    assert not reserved.shared(splits[0]).any()
    for split in splits:
        reserved.add(split)
    for length in (2, 3, 4, 5, 8, 17, 20):
        inputs = sample(name, num_sequences=60, length=length, seed=99)
        inputs[:4, : min(length, 17)] = splits[3][:4, :length]
        inputs[4:8, : min(length, 3)] = splits[0][:4, :length]
        shared = reserved.shared(inputs)
        assert shared[:8].all()
        assert shared.tolist() == brute_force_shared(splits, inputs)
