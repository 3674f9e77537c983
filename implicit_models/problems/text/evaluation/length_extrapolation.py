"""Length extrapolation: the same text in longer and longer sequences, position by position."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from implicit_models.equilibrium.phase import Phase
from implicit_models.evaluation.score_store import ScoreStore, measure_batches
from implicit_models.evaluation.scoring import score
from implicit_models.evaluation.statistics import finite, perplexity, perplexity_error
from implicit_models.language_models.language_model import LanguageModel
from implicit_models.problems.text.evaluation.stream import Tokens, cut, num_sequences
from implicit_models.problems.text.evaluation.totals import Totals, totals_of

LAST_SHARE = 8
"""The last tokens of a sequence are its last eighth."""


@dataclass(frozen=True, kw_only=True)
class LengthScores:
    """The text in sequences of one length.

    Attributes
    ----------
    perplexity
        Of all tokens.
    standard_error
        Of that: the bootstrap over sequences; None where there is one.
    perplexity_last
        Of the last eighth of each sequence: there the context is longest.
    buckets
        The last position of each bucket of positions, from 1.
    by_bucket
        Perplexity of each bucket.
    num_sequences, num_tokens
        What was read.
    totals
        What it took.
    """

    perplexity: float
    standard_error: float | None
    perplexity_last: float
    buckets: Int[np.ndarray, " K"]
    by_bucket: Float[np.ndarray, " K"]
    num_sequences: int
    num_tokens: int
    totals: Totals

    def metrics(self) -> dict[str, object]:
        """Return the values under ``length_extrapolation`` in ``evaluation.json``."""
        iterations = self.totals.self_iterations
        return {
            "perplexity": finite(self.perplexity),
            "standard_error": self.standard_error,
            "perplexity_last": finite(self.perplexity_last),
            "num_sequences": self.num_sequences,
            "num_tokens": self.num_tokens,
            "self_iterations": None if iterations is None else iterations["mean"],
            "evaluations_per_token": self.totals.evaluations_per_token,
            "share_converged": self.totals.share_converged,
            "seconds": self.totals.seconds,
        }

    def position_rows(self) -> Iterator[dict[str, object]]:
        """Return the rows of ``evaluation_by_position.csv``, without the length."""
        for position, found in zip(self.buckets, self.by_bucket, strict=True):
            yield {"position": int(position), "perplexity": finite(float(found))}


def evaluate_length_extrapolation(
    model: LanguageModel,
    stream: Tokens,
    lengths: Sequence[int],
    *,
    phase: Phase | None,
    batch_size: int,
    piece_length: int | None,
    generator: np.random.Generator,
    max_sequences: int | None = None,
    bootstrap_samples: int = 1000,
    store: ScoreStore | None = None,
) -> dict[int, LengthScores]:
    """Read the same tokens in sequences of each length, every token after what its sequence has.

    Parameters
    ----------
    stream
        Documents one after another, each followed by the end of text.
    phase, piece_length
        As in `score`; with pieces the memory does not grow with the length, but for what a model
        remembers of each token (keys and values).
    batch_size
        Sequences of the shortest length that are read together; of longer ones as many as have no
        more tokens together, but one.
    generator
        Of the bootstrap.
    max_sequences
        Sequences of the longest length; the shorter ones are of the same tokens. None for as many
        as there are.
    store
        Where finished batches are kept, and continued from.

    Raises
    ------
    TextError
        Where the text is shorter than a sequence, or not in the model's vocabulary.
    ParameterError
        Where it holds fewer sequences than asked for.
    """
    if not lengths:
        return {}
    longest, shortest = max(lengths), min(lengths)
    num_tokens = longest * num_sequences(stream, longest, max_sequences)
    found = {}
    for length in sorted(lengths):
        at_once = max(1, batch_size * shortest // length)
        found[length] = _read(
            model,
            stream,
            length,
            num_tokens // length,
            at_once,
            phase,
            piece_length,
            store,
        ).scores(bootstrap_samples, generator)
    return found


def buckets(length: int) -> Int[np.ndarray, " K"]:
    """Return the last position of each bucket, from 1: four a doubling, the same at all lengths.

    1 to 8 stand alone, then follow 10, 12, 14, 16, 20, 24, and so on; the last is the length.
    """
    octaves = 2.0 ** np.arange(1, max(2, int(length).bit_length()))
    ends = np.concatenate([octaves * (1 + quarter / 4) for quarter in range(4)])
    ends = np.unique([1, length, *ends[ends == ends.round()].astype(np.int64)])
    return ends[ends <= length]


@dataclass(frozen=True)
class _Read:
    """Sums over the positions of each bucket, and over the last ones, of each sequence."""

    length: int
    buckets: Int[np.ndarray, " K"]
    by_bucket: Float[np.ndarray, "N K"]
    last: Float[np.ndarray, " N"]
    totals: Totals

    def scores(self, bootstrap_samples: int, generator: np.random.Generator) -> LengthScores:
        count, length = len(self.by_bucket), self.length
        nats = self.by_bucket.sum(axis=1)
        sizes = np.diff(self.buckets, prepend=0)
        sums = self.by_bucket.sum(axis=0)
        return LengthScores(
            perplexity=perplexity(float(nats.sum()), count * length),
            standard_error=perplexity_error(
                nats, np.full(count, length), num_samples=bootstrap_samples, generator=generator
            ),
            perplexity_last=perplexity(float(self.last.sum()), count * _num_last(length)),
            buckets=self.buckets,
            by_bucket=np.array(
                [perplexity(total, count * size) for total, size in zip(sums, sizes, strict=True)]
            ),
            num_sequences=count,
            num_tokens=count * length,
            totals=self.totals,
        )


def _read(
    model: LanguageModel,
    stream: Tokens,
    length: int,
    count: int,
    at_once: int,
    phase: Phase | None,
    piece_length: int | None,
    store: ScoreStore | None,
) -> _Read:
    ends = buckets(length)
    starts = np.concatenate(([0], ends[:-1]))

    def measure(first: int) -> dict[str, np.ndarray]:
        inputs, labels = cut(stream, length, first, min(first + at_once, count))
        scores = score(model, inputs, labels, phase=phase, piece_length=piece_length)
        everything = np.ones(inputs.shape, dtype=bool)
        return {
            "by_bucket": np.add.reduceat(scores.nll, starts, axis=1),
            "last": scores.nll[:, -_num_last(length) :].sum(axis=1),
        } | totals_of(scores, num_read=inputs.size, wanted=everything)

    measured = measure_batches(
        range(0, count, at_once),
        measure,
        store=store,
        part=f"length_{length}",
        description=f"length {length}",
    )
    return _Read(length, ends, measured["by_bucket"], measured["last"], Totals.of(measured))


def _num_last(length: int) -> int:
    return -(-length // LAST_SHARE)
