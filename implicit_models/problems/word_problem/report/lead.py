"""What came out of the models of one word problem, in a few sentences."""

import math
from collections.abc import Sequence

from implicit_models.problems.word_problem.data import groups
from implicit_models.problems.word_problem.parameters import WordProblemParameters
from implicit_models.problems.word_problem.report.results import WordProblemResults
from implicit_models.reporting.comparison import Score, best_of_kinds, candidates
from implicit_models.reporting.intervals import wilson
from implicit_models.reporting.lead import (
    compared,
    cost_sentences,
    factor,
    listed,
    noise_sentence,
    outcome,
    share_shown,
)
from implicit_models.reporting.summary import group_by_seed
from implicit_models.reporting.tables.table import percent


def word_problem_lead(
    runs: Sequence[WordProblemResults], dataset: WordProblemParameters, threshold: float
) -> list[str]:
    """Return the headline, and the sentences that tell more.

    Parameters
    ----------
    threshold
        Accuracy from which a run counts as solved.
    """
    length = compared_length(runs)
    sentences = [f"{what_is_learned(dataset)}, {trained_on(runs)}; {compared(runs)}."]
    if length is None:
        headline = "the models were tested at no length in common: no comparison can be made"
        return [f"{runs[0].dataset}: {headline}.", *sentences, solved(runs, threshold)]
    best = best_of_kinds(candidates(runs, lambda run: _score(run, length)), higher_is_better=True)
    ratios = {factor(length / run.training_length) for run in runs}
    longer = f" ({ratios.pop()} the length trained on)" if len(ratios) == 1 else ""
    told = outcome(
        best, lambda each: share_shown(each, "accuracy_last_10", length), higher_is_better=True
    )
    return [
        f"{runs[0].dataset}, accuracy of the last 10 of {length} tokens{longer}: {told}.",
        *sentences,
        solved(runs, threshold),
        *([noise_sentence(best)] if len(best) > 1 else []),
        *cost_sentences(best, runs),
    ]


def what_is_learned(dataset: WordProblemParameters) -> str:
    """Return which word problem it is."""
    share = dataset.identity_probability
    hard = "every token hard" if share == 0 else f"{percent(1 - share, 0)} of the tokens hard"
    told = dataset.group
    if "<" in told:  # generators; names tell how large a group is
        told += f" ({math.prod(each.size for each in groups.parse(told)):,} elements)"
    return f"The word problem of {told}, {hard}"


def trained_on(runs: Sequence[WordProblemResults]) -> str:
    """Return how long the training sequences were."""
    lengths = sorted({run.training_length for run in runs})
    return f"trained on up to {' or '.join(map(str, lengths))} tokens"


def compared_length(runs: Sequence[WordProblemResults]) -> int | None:
    """Return the longest length that a model of each kind was tested at; None without one."""
    tested: dict[str, set[int]] = {}
    for run in runs:
        tested.setdefault(run.kind, set()).update(run.lengths)
    return max(set.intersection(*tested.values()), default=None)


def solved(runs: Sequence[WordProblemResults], threshold: float) -> str:
    """Return which models solve the task at the length that they were trained on."""
    did, did_not = [], []
    for name, group in group_by_seed(runs).items():
        count = sum(run.solutions()[run.solved_length] >= threshold for run in group)
        if len(group) > 1:
            ends = " to ".join(percent(end, 0) for end in wilson(count, len(group)))
            name = f"{name} ({count} of {len(group)} seeds; 95 % interval of the share: {ends})"
        (did if count else did_not).append(name)
    what = f"the length trained on ({percent(threshold, 0)} or more of its last 10 tokens right)"
    if not did:
        return f"No model solves {what}."
    verb = "solve" if len(did) > 1 else "solves"
    rest = f", {listed(did_not)} {'do' if len(did_not) > 1 else 'does'} not" if did_not else ""
    return f"{listed(did)} {verb} {what}{rest}."


def _score(run: WordProblemResults, length: int) -> Score | None:
    """Return an accuracy, and its standard error."""
    accuracy = run.evaluation["accuracy_last_10"].get(str(length))
    return None if accuracy is None else (accuracy, run.accuracy_error(str(length)))
