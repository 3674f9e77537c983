"""Perplexity of documents, with every token scored exactly once."""

import dataclasses
import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int, Integer

from implicit_models.equilibrium.phase import Phase
from implicit_models.evaluation.score_store import ScoreStore, measure_batches
from implicit_models.evaluation.scoring import IGNORED, score
from implicit_models.evaluation.statistics import (
    bits_per_byte,
    finite,
    perplexity,
    perplexity_error,
)
from implicit_models.language_models.language_model import LanguageModel
from implicit_models.problems.text.evaluation.documents import Documents
from implicit_models.problems.text.evaluation.totals import Totals, totals_of
from implicit_models.problems.text.evaluation.windows import Windows

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Perplexity:
    """How well some documents are predicted.

    Attributes
    ----------
    perplexity, nats_per_token
        Of all their tokens, each weighing the same; infinite or NaN where the model's
        likelihoods are.
    standard_error
        Of the perplexity: the bootstrap over documents, or where there is but one, over its
        windows. None where there is one window.
    bits_per_byte
        The same likelihoods for each byte of the text, comparable between tokenizers; None where
        the number of bytes is not known.
    num_tokens, num_documents, num_bytes
        What was scored.
    """

    perplexity: float
    standard_error: float | None
    nats_per_token: float
    bits_per_byte: float | None
    num_tokens: int
    num_documents: int
    num_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class PerplexityResult:
    """Perplexity of a corpus, of its domains and of its documents.

    Attributes
    ----------
    documents, nats
        What was scored, and each document's negative log-likelihood.
    num_documents_in_all
        How many there were to choose from.
    max_tokens
        How many tokens were to be scored at most; None for all.
    context_length, stride
        How it was read.
    totals
        What it took.
    """

    whole: Perplexity
    domains: dict[str, Perplexity]
    documents: Documents
    nats: Float[np.ndarray, " D"]
    num_documents_in_all: int
    max_tokens: int | None
    context_length: int
    stride: int
    totals: Totals

    def metrics(self) -> dict[str, object]:
        """Return the values under ``perplexity`` in ``evaluation.json``.

        With ``bootstrap`` saying what the standard error was drawn from.
        """
        return self._metrics(self.whole) | {
            "num_cut_documents": int(self.documents.is_cut.sum()),
            "num_documents_in_all": self.num_documents_in_all,
            "max_tokens": self.max_tokens,
            "bootstrap": "documents" if self.whole.num_documents > 1 else "windows",
        }

    def domain_metrics(self) -> dict[str, dict[str, object]]:
        """Return the values under ``domains``."""
        return {domain: self._metrics(found) for domain, found in self.domains.items()}

    def document_rows(self) -> list[dict[str, object]]:
        """Return the rows of ``evaluation_documents.csv``."""
        found = self.documents
        rows: list[dict[str, object]] = []
        for index, (name, domain) in enumerate(zip(found.names, found.domains, strict=True)):
            one = np.array([index])
            score = _sum_up(found, self.nats, one)
            rows.append(
                {
                    "document": name,
                    "domain": domain,
                    "num_tokens": score.num_tokens,
                    "num_bytes": score.num_bytes,
                    "nats_per_token": finite(score.nats_per_token),
                    "perplexity": finite(score.perplexity),
                    "bits_per_byte": finite(score.bits_per_byte),
                }
            )
        return rows

    def _metrics(self, found: Perplexity) -> dict[str, object]:
        return {
            "perplexity": finite(found.perplexity),
            "standard_error": found.standard_error,
            "nats_per_token": finite(found.nats_per_token),
            "bits_per_byte": finite(found.bits_per_byte),
            "num_tokens": found.num_tokens,
            "num_documents": found.num_documents,
            "num_bytes": found.num_bytes,
            "context_length": self.context_length,
            "stride": self.stride,
        }


def evaluate_perplexity(
    model: LanguageModel,
    documents: Sequence[Integer[np.ndarray, " n"]],
    *,
    start_token: int,
    context_length: int,
    stride: int,
    batch_size: int,
    phase: Phase | None,
    generator: np.random.Generator,
    names: Sequence[str] | None = None,
    domains: Sequence[str] | None = None,
    num_bytes: Integer[np.ndarray, " D"] | None = None,
    piece_length: int | None = None,
    max_tokens: int | None = None,
    bootstrap_samples: int = 1000,
    store: ScoreStore | None = None,
) -> PerplexityResult:
    """Measure the perplexity of documents, each in strided windows (see `Windows`).

    Parameters
    ----------
    documents
        Token ids; any sequence whose elements are read from where they lie when asked for, so that
        no document needs to fit into memory.
    start_token
        Stands before each document, that its first token can be predicted; it is not scored.
    context_length, stride
        The most tokens that a token is predicted from, and by how many the windows move on. With
        ``stride`` as long as the context, windows are disjoint and the text is read once.
    batch_size
        Windows read together.
    phase, piece_length
        As in `score`.
    generator
        Of the bootstrap.
    names, domains
        Of the documents; by default their numbers, and one domain, ``all``.
    num_bytes
        Of each document's text in UTF-8.
    max_tokens
        How many tokens are scored at most; see `Documents.sample`. None scores all.
    store
        Where finished batches are kept, and continued from.

    Raises
    ------
    TextError
        Where there is no document, or one that is empty or not in the model's vocabulary.
    """
    chosen = Documents.of(documents, names=names, domains=domains, num_bytes=num_bytes)
    if max_tokens is not None:
        chosen = chosen.sample(max_tokens, context_length)
    windows = Windows.over(chosen.num_tokens, context_length=context_length, stride=stride)

    def measure(batch: Int[np.ndarray, " B"]) -> dict[str, np.ndarray]:
        lengths = windows.length[batch]
        inputs = np.zeros((len(batch), int(lengths.max())), dtype=np.int64)
        labels = np.full(inputs.shape, IGNORED)
        for row, window in enumerate(batch):
            document = chosen.tokens(int(windows.document[window]))
            read, wanted = windows.read(window, document, start_token)
            first, end = len(wanted) - windows.num_scored[window], len(wanted)
            inputs[row, :end], labels[row, first:end] = read, wanted[first:]
        scores = score(
            model, inputs, labels, phase=phase, lengths=lengths, piece_length=piece_length
        )
        is_scored = labels != IGNORED
        nats = np.where(is_scored, scores.nll, 0.0).sum(axis=1)
        return {"nats": nats} | totals_of(scores, num_read=int(lengths.sum()), wanted=is_scored)

    batches = windows.batches(batch_size)
    measured = measure_batches(
        batches, measure, store=store, part="perplexity", description="perplexity"
    )
    nats = np.empty(len(windows))
    nats[np.concatenate(batches)] = measured["nats"]
    sums = np.bincount(windows.document, weights=nats, minlength=len(chosen.names))
    if not np.isfinite(sums).all():
        bad = chosen.names[int((~np.isfinite(sums)).argmax())]
        log.warning("the model's likelihoods are not finite, first in %s", bad)

    def sum_up(group: Int[np.ndarray, " G"]) -> Perplexity:
        if len(group) > 1:
            units = sums[group], chosen.num_tokens[group]
        else:
            of_it = windows.document == group[0]
            units = nats[of_it], windows.num_scored[of_it]
        error = perplexity_error(*units, num_samples=bootstrap_samples, generator=generator)
        return dataclasses.replace(_sum_up(chosen, sums, group), standard_error=error)

    domain_of = np.array(chosen.domains)
    return PerplexityResult(
        whole=sum_up(np.arange(len(sums))),
        domains={
            str(domain): sum_up(np.flatnonzero(domain_of == domain))
            for domain in np.unique(domain_of)
        },
        documents=chosen,
        nats=sums,
        num_documents_in_all=len(documents),
        max_tokens=max_tokens,
        context_length=context_length,
        stride=stride,
        totals=Totals.of(measured),
    )


def _sum_up(
    documents: Documents, nats: Float[np.ndarray, " D"], group: Int[np.ndarray, " G"]
) -> Perplexity:
    total, num_tokens = float(nats[group].sum()), int(documents.num_tokens[group].sum())
    size = None if documents.num_bytes is None else float(documents.num_bytes[group].sum())
    return Perplexity(
        perplexity=perplexity(total, num_tokens),
        standard_error=None,
        nats_per_token=total / num_tokens,
        bits_per_byte=bits_per_byte(total, size) if size else None,
        num_tokens=num_tokens,
        num_documents=len(group),
        num_bytes=None if size is None else round(size),
    )
