"""What came out of the models of one corpus, in a few sentences."""

import math
from collections.abc import Sequence

from implicit_models.problems.text.parameters import CorpusParameters
from implicit_models.problems.text.report.results import TextResults
from implicit_models.reporting.comparison import Candidate, Score, best_of_kinds, candidates
from implicit_models.reporting.lead import compared, cost_sentences, noise_sentence, outcome
from implicit_models.reporting.tables.table import perplexity


def text_lead(runs: Sequence[TextResults], corpus: CorpusParameters) -> list[str]:
    """Return the headline, and the sentences that tell more."""
    name = runs[0].dataset
    best = best_of_kinds(candidates(runs, _score), higher_is_better=False)
    what = (
        f'Text from "{corpus.source}", tokenizer "{corpus.tokenizer}", training sequences of '
        f"{corpus.sequence_length} tokens: {compared(runs)}."
    )
    if not best:
        return [f"{name}: no model's perplexity is a number.", what]
    told = outcome(best, _shown, higher_is_better=False)
    return [
        f"{name}, perplexity of the test text (lower is better): {told}.",
        what,
        *([noise_sentence(best)] if len(best) > 1 else []),
        *cost_sentences(best, runs),
    ]


def _score(run: TextResults) -> Score | None:
    """Return the logarithm of the perplexity, and its standard error."""
    found = run.evaluation["perplexity"]
    value, error = found["perplexity"], found["standard_error"]
    if value is None or not math.isfinite(value):
        return None
    known = error is not None and math.isfinite(error)
    return math.log(value), error / value if known else 0.0


def _shown(each: Candidate) -> str:
    if len(each.values) == 1:
        value = math.exp(each.mean)
        return perplexity(value, value * each.error)
    return each.written(lambda nats: perplexity(math.exp(nats)))
