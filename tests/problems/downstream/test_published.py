"""The paper's downstream rows."""

import pytest
from transformers import LlamaConfig

from implicit_models.families.sizes import SIZES, from_size
from implicit_models.problems.downstream.evaluation.published import (
    PUBLISHED,
    published_beside,
    published_rows,
)
from implicit_models.problems.downstream.tasks import AVERAGE, PAPERS_ACCURACIES, PERPLEXITY

COLUMNS = (PERPLEXITY, *PAPERS_ACCURACIES, AVERAGE)


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: f"{row.family}-{row.size}{row.kind}")
def test_averages_are_those_of_the_accuracies(row):
    assert tuple(row.scores) == COLUMNS
    average = sum(row.scores[column] for column in PAPERS_ACCURACIES) / len(PAPERS_ACCURACIES)
    # The paper's digits are rounded, and its average was taken before that.
    assert row.scores[AVERAGE] == pytest.approx(average, abs=1.1e-4)
    assert f"{row.family}-{row.size}" in SIZES


def test_rows_of_a_size():
    rows = published_rows("mamba2", "1.3b")
    assert [row.kind for row in rows] == ["explicit", "(4+1)", "(24+4)"]
    assert [row.is_implicit for row in rows] == [False, True, True]
    assert [row.pile_perplexity for row in rows] == [8.28, 7.97, 7.70]
    assert rows == published_rows("Mamba2", "mamba2-1.3B")
    assert [row.kind for row in published_rows("llama", "760m")] == ["explicit", "(4+1)", "(32+4)"]


def test_what_more_computation_buys():
    for family in ("llama", "mamba2"):
        for size in ("760m", "1.3b"):
            explicit, bounded, free = published_rows(family, size)
            assert explicit.pile_perplexity > bounded.pile_perplexity > free.pile_perplexity
            assert free.scores[PERPLEXITY] < explicit.scores[PERPLEXITY]


def test_sizes_the_paper_does_not_list():
    assert published_rows("mamba2", "130m") == ()
    assert published_rows("lstm", "1.3b") == ()


def test_rows_beside_a_model():
    for name in SIZES:
        expected = published_rows(*name.split("-", 1))
        assert published_beside(from_size(name, implicit=False)) == expected
    theirs = LlamaConfig(hidden_size=2048, num_hidden_layers=24, num_attention_heads=32)
    assert published_beside(theirs) == published_rows("llama", "1.3b")
    assert published_beside(LlamaConfig(hidden_size=2048, num_hidden_layers=23)) == ()
    assert published_beside(from_size("mamba2-760m", num_hidden_layers=47)) == ()


def test_rows_as_json():
    explicit, _, free = (row.as_row() for row in published_rows("mamba2", "1.3b"))
    assert (explicit["model"], free["model"]) == ("Mamba2 1.3B", "Mamba2 1.3B (24+4)")
    assert free["row"]["D-Pile ppl"] == 7.70 and free["row"]["average"] == 0.5620
    assert tuple(free["row"]) == ("D-Pile ppl", *COLUMNS)
