"""The paper's downstream results, to be printed beside ours for the same family and size."""

from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedConfig

from implicit_models.families.family import family_named
from implicit_models.families.sizes import from_size
from implicit_models.problems.downstream.tasks import AVERAGE, PAPERS_ACCURACIES, PERPLEXITY
from implicit_models.reporting.paper import PILE_PERPLEXITY

SOURCE = "Schöne et al. 2025, arXiv 2502.07827: zero-shot, pretrained on the deduplicated Pile"


@dataclass(frozen=True, kw_only=True)
class PublishedRow:
    """One model of the paper.

    Attributes
    ----------
    family, size
        ``mamba2`` or ``llama``, and ``760m`` or ``1.3b``; the paper's other sizes are not known.
    kind
        ``explicit``, ``(4+1)`` for a bounded, or ``(24+4)`` and ``(32+4)`` for a free phase: steps
        of the search and phantom steps.
    pile_perplexity
        Of the test split of the deduplicated Pile.
    scores
        By the columns of `downstream.tasks` that are the paper's, the average included, to the
        paper's digits.
    """

    family: str
    size: str
    kind: str
    pile_perplexity: float
    scores: dict[str, float]

    @property
    def model(self) -> str:
        """Name it as the paper's table does: ``Llama 1.3B (32+4)``."""
        name = f"{self.family.capitalize()} {self.size.upper()}"
        return f"{name} {self.kind}" if self.is_implicit else name

    def as_row(self) -> dict[str, Any]:
        """Return its name and all its columns."""
        return {"model": self.model, "row": {PILE_PERPLEXITY: self.pile_perplexity, **self.scores}}

    @property
    def is_implicit(self) -> bool:
        """Whether the model seeks a fixed point."""
        return self.kind != "explicit"


_COLUMNS = (PILE_PERPLEXITY, PERPLEXITY, *PAPERS_ACCURACIES, AVERAGE)
_NUMBERS = {
    ("llama", "760m", "explicit"): "8.88 5.77 .6375 .5448 .7171 .5905 .2816 .6054 .338 .5307",
    ("llama", "760m", "(4+1)"): "8.27 5.15 .6524 .5853 .7312 .6052 .3097 .5967 .356 .5481",
    ("llama", "760m", "(32+4)"): "7.90 4.82 .6703 .5995 .7416 .6187 .3012 .5991 .344 .5535",
    ("llama", "1.3b", "explicit"): "7.99 4.95 .6569 .5936 .7432 .6385 .3217 .6062 .352 .5589",
    ("llama", "1.3b", "(4+1)"): "7.66 4.40 .6852 .6397 .7448 .6338 .3396 .6575 .360 .5801",
    ("llama", "1.3b", "(32+4)"): "7.24 4.24 .6901 .6583 .7465 .6654 .3601 .6401 .364 .5892",
    ("mamba2", "760m", "explicit"): "8.98 6.24 .6125 .5418 .7231 .6044 .2858 .5777 .338 .5262",
    ("mamba2", "760m", "(4+1)"): "8.60 6.15 .6117 .5569 .7296 .6077 .3140 .5509 .336 .5295",
    ("mamba2", "760m", "(24+4)"): "8.35 5.90 .6191 .5698 .7334 .6090 .3131 .5730 .338 .5365",
    ("mamba2", "1.3b", "explicit"): "8.28 5.12 .6456 .5939 .7416 .6145 .3123 .6117 .352 .5531",
    ("mamba2", "1.3b", "(4+1)"): "7.97 5.21 .6383 .6136 .7437 .6343 .3302 .5746 .354 .5555",
    ("mamba2", "1.3b", "(24+4)"): "7.70 4.99 .6489 .6267 .7416 .6423 .3336 .5888 .352 .5620",
}


def _row(family: str, size: str, kind: str, numbers: str) -> PublishedRow:
    scores = dict(zip(_COLUMNS, map(float, numbers.split()), strict=True))
    perplexity = scores.pop(PILE_PERPLEXITY)
    return PublishedRow(
        family=family, size=size, kind=kind, pile_perplexity=perplexity, scores=scores
    )


PUBLISHED = tuple(_row(*key, numbers) for key, numbers in _NUMBERS.items())


def published_rows(family: str, size: str) -> tuple[PublishedRow, ...]:
    """Return the paper's rows of a family and a size, the explicit model first.

    None for what the paper does not list: an empty tuple, so that a table prints nothing beside
    a model of ours that has no counterpart.
    """
    family = family.lower()
    size = size.lower().removeprefix(f"{family}-")
    return tuple(row for row in PUBLISHED if (row.family, row.size) == (family, size))


def published_beside(config: PreTrainedConfig) -> tuple[PublishedRow, ...]:
    """Return the paper's rows for a model's family, width and depth, be it ours or its peer's.

    An empty tuple where the paper lists none.
    """
    shape = (getattr(config, "hidden_size", None), getattr(config, "num_hidden_layers", None))
    for family, size in dict.fromkeys((row.family, row.size) for row in PUBLISHED):
        theirs = from_size(f"{family}-{size}")
        sizes = (theirs.hidden_size, theirs.num_hidden_layers)
        if family_named(family).has_model_of(config) and shape == sizes:
            return published_rows(family, size)
    return ()
