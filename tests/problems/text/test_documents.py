import numpy as np
import pytest

from implicit_models.evaluation.scoring import TextError
from implicit_models.problems.text.evaluation.documents import Documents


def _documents(*lengths):
    tokens = [np.arange(length) + 1000 * number for number, length in enumerate(lengths)]
    return Documents.of(
        tokens, names=None, domains=None, num_bytes=np.array([3 * n for n in lengths])
    )


def test_names_default_to_numbers_and_all_tokens_are_taken():
    found = _documents(4, 7)
    assert found.names == ("document 0", "document 1") and found.domains == ("all", "all")
    assert found.num_tokens.tolist() == [4, 7] and not found.is_cut.any()
    assert found.tokens(1)[0] == 1000


def test_few_long_documents_are_cut_to_their_fair_share():
    found = _documents(100, 20, 300).sample(90, 10)
    assert found.num_tokens.tolist() == [35, 20, 35]
    assert found.is_cut.tolist() == [True, False, True]
    assert found.num_bytes.tolist() == pytest.approx([105, 60, 105])  # in proportion


def test_documents_that_fit_are_read_to_their_end():
    found = _documents(800, 50).sample(1000, 10)
    assert found.num_tokens.tolist() == [800, 50] and not found.is_cut.any()


def test_of_many_documents_some_from_everywhere_are_taken_with_a_context_each():
    found = _documents(*[50] * 100).sample(200, 20)
    assert found.num_tokens.tolist() == [20] * 10
    assert found.names == tuple(f"document {number}" for number in range(0, 100, 10))
    assert found.tokens(3)[0] == 30_000


@pytest.mark.parametrize("max_tokens", [1, 5, 37, 100, 1000, 10_000])
def test_a_sample_never_has_more_tokens_and_all_of_them_fit(max_tokens):
    lengths = np.random.default_rng(0).integers(1, 90, 40)
    whole = _documents(*lengths)
    found = whole.sample(max_tokens, 16)
    assert 1 <= found.num_tokens.sum() <= max(1, max_tokens)
    if max_tokens >= 40 * 90:
        assert found.num_tokens.tolist() == lengths.tolist()
        assert found.names == whole.names


def _fair_shares(lengths, max_tokens):
    """Return what each gets, a token at a time, as long as there is one for all that want it."""
    shares = np.zeros_like(lengths)
    while (wanting := shares < lengths).any() and shares.sum() + wanting.sum() <= max_tokens:
        shares += wanting
    return shares


@pytest.mark.parametrize("seed", range(200))
def test_a_sample_leaves_nothing_that_could_be_given(seed):
    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, generator.integers(2, 80), generator.integers(1, 12))
    max_tokens = int(generator.integers(1, 1.3 * lengths.sum() + 1))
    at_least = int(generator.integers(1, 20))
    fair = _fair_shares(lengths, max_tokens)
    found = _documents(*lengths).sample(max_tokens, at_least)
    kept, is_cut = found.num_tokens, found.is_cut
    assert kept.sum() <= max_tokens
    if (fair == lengths).all() or fair.max() >= at_least:
        assert kept.tolist() == fair.tolist()
        assert is_cut.tolist() == (fair < lengths).tolist()
        assert not is_cut.any() or kept.sum() + is_cut.sum() > max_tokens
    else:
        assert kept.max() <= at_least
    assert not is_cut.any() or kept[is_cut].min() == kept.max()


def test_of_very_many_documents_a_sample_is_taken_at_once():
    lengths = np.random.default_rng(0).integers(1, 10_000, 10**6)
    found = Documents(
        names=("",) * len(lengths),
        domains=("",) * len(lengths),
        num_tokens=lengths,
        num_bytes=None,
        is_cut=np.zeros(len(lengths), dtype=bool),
        _all=(),
        _numbers=np.arange(len(lengths)),
    ).sample(10**9, 16)
    assert 10**9 - found.is_cut.sum() < found.num_tokens.sum() <= 10**9


def test_an_empty_document_is_named():
    for documents, message in (([], "no document"), ([[1], [2], []], "document 2 has no token")):
        with pytest.raises(TextError, match=message):
            Documents.of(documents, names=None, domains=None, num_bytes=None)
    with pytest.raises(TextError, match=r"a/b\.txt has no token"):
        Documents.of([[]], names=["a/b.txt"], domains=None, num_bytes=None)
