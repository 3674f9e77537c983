"""The column of the paper's downstream table that an evaluation on text fills."""

import re

PILE_PERPLEXITY = "D-Pile ppl"


def perplexity_column(corpus: str) -> str | None:
    """Return the paper's column for the perplexity of a corpus, by the corpus's name."""
    words = re.findall(r"[a-z]+", corpus.lower())
    is_pile = "pile" in words and any(word == "d" or word.startswith("dedup") for word in words)
    return PILE_PERPLEXITY if is_pile or "dpile" in words else None
