"""What came out of the models of one corpus, in a few sentences."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from implicit_models.problems.text.parameters import CorpusParameters
from implicit_models.problems.text.report.results import TextResults
from implicit_models.reporting.comparison import Candidate, Score, best_of_kinds, candidates
from implicit_models.reporting.lead import (
    compared,
    cost_sentences,
    listed,
    noise_sentence,
    outcome,
)
from implicit_models.reporting.summary import group_by_seed
from implicit_models.reporting.tables.table import perplexity


def text_lead(runs: Sequence[TextResults], corpus: CorpusParameters) -> list[str]:
    """Return the headline, and the sentences that tell more."""
    name = runs[0].dataset
    scored = candidates(runs, _score)
    without = [each for each in group_by_seed(runs) if each not in {known.name for known in scored}]
    best = best_of_kinds(scored, higher_is_better=False)
    what = (
        f'Text from "{corpus.source}", tokenizer "{corpus.tokenizer}", training sequences of '
        f"{corpus.sequence_length} tokens: {compared(runs)}."
    )
    if not best:
        return [f"{name}: no model's perplexity is a number.", what]
    if len({_reading_of(run) for run in runs}) > 1:
        other = "another context length, stride or number of tokens"
        headline = f"models were evaluated with {other}: no comparison can be made"
        return [f"{name}: {headline}.", what]
    told = outcome(best, shown_perplexity, higher_is_better=False)
    return [
        f"{name}, perplexity of the test text (lower is better): {told}.",
        what,
        *([f"The perplexity of {listed(without)} is no number."] if without else []),
        *([noise_sentence(best)] if len(best) > 1 else []),
        *cost_sentences(best, runs),
    ]


def perplexity_score(found: Mapping[str, Any]) -> Score | None:
    """Return the logarithm of a perplexity, and its standard error; None where it is no number.

    An error that is not known is infinite: no difference can be told from noise by it.

    Parameters
    ----------
    found
        What an evaluation has under ``perplexity``.
    """
    value, error = found["perplexity"], found["standard_error"]
    if value is None or not math.isfinite(value):
        return None
    known = error is not None and math.isfinite(error)
    return math.log(value), error / value if known else math.inf


def shown_perplexity(each: Candidate) -> str:
    """Return the perplexity of a candidate whose values are logarithms of it."""
    if len(each.values) == 1 and not each.num_without:
        value = math.exp(each.mean)
        return perplexity(value, value * each.sampling_error)
    return each.written(lambda nats: perplexity(math.exp(nats)))


def _score(run: TextResults) -> Score | None:
    return perplexity_score(run.evaluation["perplexity"])


def _reading_of(run: TextResults) -> tuple[Any, ...]:
    """Return how the test text was read; perplexities compare where it was the same."""
    found = run.evaluation["perplexity"]
    return tuple(found.get(name) for name in ("context_length", "stride", "max_tokens"))
