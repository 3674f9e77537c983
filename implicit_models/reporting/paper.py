"""The columns of the paper's downstream table."""

import re

PERPLEXITIES = ("D-Pile ppl", "LAMBADA ppl")
ACCURACIES = ("LAMBADA", "HellaSwag", "PIQA", "ARC-E", "ARC-C", "WinoGrande", "OpenbookQA")
AVERAGE = "average"
COLUMNS = (*PERPLEXITIES, *ACCURACIES, AVERAGE)


def perplexity_column(corpus: str) -> str | None:
    """Return the paper's column for the perplexity of a corpus, by the corpus's name."""
    words = re.findall(r"[a-z]+", corpus.lower())
    is_pile = "pile" in words and any(word == "d" or word.startswith("dedup") for word in words)
    return "D-Pile ppl" if is_pile or "dpile" in words else None
