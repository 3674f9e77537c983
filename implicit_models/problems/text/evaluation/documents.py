"""The documents of a corpus that are scored: all of them, or a sample from everywhere."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int, Integer

from implicit_models.evaluation.scoring import TextError


@dataclass(frozen=True, kw_only=True)
class Documents:
    """Documents, of which the tokens are read when they are needed.

    Attributes
    ----------
    names, domains
        Of each document.
    num_tokens
        How many of its tokens are scored: the first ones.
    num_bytes
        Of their text; of a document that is cut, in proportion to its tokens. None where not
        known.
    is_cut
        Whether a document has more tokens.
    """

    names: tuple[str, ...]
    domains: tuple[str, ...]
    num_tokens: Int[np.ndarray, " D"]
    num_bytes: Float[np.ndarray, " D"] | None
    is_cut: Bool[np.ndarray, " D"]
    _all: Sequence[Integer[np.ndarray, " n"]]
    _numbers: Int[np.ndarray, " D"]

    @classmethod
    def of(
        cls,
        documents: Sequence[Integer[np.ndarray, " n"]],
        *,
        names: Sequence[str] | None,
        domains: Sequence[str] | None,
        num_bytes: Integer[np.ndarray, " D"] | None,
    ) -> "Documents":
        """Take all documents; by default their names are numbers, and they are of one domain.

        Raises
        ------
        TextError
            Where there is none, or one is empty.
        """
        count = len(documents)
        if not count:
            raise TextError("there is no document to score; give one or more")
        if names is None:
            names = [f"document {number}" for number in range(count)]
        domains = ["all"] * count if domains is None else domains
        lengths = np.array([len(documents[number]) for number in range(count)])
        if not lengths.all():
            empty = names[int((lengths == 0).argmax())]
            raise TextError(
                f"{empty} has no token; leave it out: an empty document has no perplexity"
            )
        return cls(
            names=tuple(map(str, names)),
            domains=tuple(map(str, domains)),
            num_tokens=lengths,
            num_bytes=None if num_bytes is None else np.asarray(num_bytes, dtype=np.float64),
            is_cut=np.zeros(count, dtype=bool),
            _all=documents,
            _numbers=np.arange(count),
        )

    def tokens(self, index: int) -> Integer[np.ndarray, " n"]:
        """Return a document's tokens, including those that are not scored."""
        return self._all[int(self._numbers[index])]

    def sample(self, max_tokens: int, at_least: int) -> "Documents":
        """Return documents from all over the corpus, with so many tokens at most.

        The longest are cut, all to the same length, though not to fewer than ``at_least``; where
        those are too many, documents at equal distances are taken.
        """
        total = len(self.names)
        shares = np.minimum(self.num_tokens, max(at_least, _longest(self.num_tokens, max_tokens)))
        count = max(1, min(total, int(total * max_tokens / shares.sum())))
        chosen = np.arange(count) * total // count
        fits = shares[chosen].cumsum() <= max_tokens
        chosen = chosen[: max(1, int(fits.sum()))]
        kept = np.minimum(shares[chosen], max_tokens)
        size = None
        if self.num_bytes is not None:
            size = self.num_bytes[chosen] * (kept / self.num_tokens[chosen])
        return dataclasses.replace(
            self,
            names=tuple(self.names[index] for index in chosen),
            domains=tuple(self.domains[index] for index in chosen),
            num_tokens=kept,
            num_bytes=size,
            is_cut=kept < self.num_tokens[chosen],
            _numbers=self._numbers[chosen],
        )


def _longest(lengths: Int[np.ndarray, " D"], max_tokens: int) -> int:
    """Return the largest length to which documents can be cut to have so many tokens at most."""
    ordered = np.sort(lengths)
    before = ordered.cumsum() - ordered  # in the shorter ones, which stay whole
    num_cut = np.arange(len(ordered), 0, -1)
    is_too_much = before + ordered * num_cut > max_tokens
    if not is_too_much.any():
        return int(ordered[-1])
    first = int(is_too_much.argmax())
    return int((max_tokens - before[first]) // num_cut[first])
