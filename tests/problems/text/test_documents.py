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
    assert found.num_tokens.tolist() == [30, 20, 30]
    assert found.is_cut.tolist() == [True, False, True]
    assert found.num_bytes.tolist() == pytest.approx([90, 60, 90])  # in proportion


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


def test_an_empty_document_is_named():
    for documents, message in (([], "no document"), ([[1], [2], []], "document 2 has no token")):
        with pytest.raises(TextError, match=message):
            Documents.of(documents, names=None, domains=None, num_bytes=None)
    with pytest.raises(TextError, match=r"a/b\.txt has no token"):
        Documents.of([[]], names=["a/b.txt"], domains=None, num_bytes=None)
