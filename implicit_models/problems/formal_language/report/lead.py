"""What came out of the models of one formal language, in a few sentences."""

from collections.abc import Sequence

from implicit_models.problems.formal_language.data.languages import ASKING, IGNORING
from implicit_models.problems.formal_language.parameters import FormalLanguageParameters
from implicit_models.problems.formal_language.report.results import (
    VALIDATION,
    FormalLanguageResults,
)
from implicit_models.reporting.comparison import best_of_kinds, candidates
from implicit_models.reporting.intervals import wilson
from implicit_models.reporting.lead import (
    compared,
    cost_sentences,
    listed,
    noise_sentence,
    outcome,
    share_shown,
)
from implicit_models.reporting.summary import group_by_seed
from implicit_models.reporting.tables.table import percent


def formal_language_lead(
    runs: Sequence[FormalLanguageResults], dataset: FormalLanguageParameters, threshold: float
) -> list[str]:
    """Return the headline, and the sentences that tell more.

    Parameters
    ----------
    threshold
        Accuracy from which a language counts as learned.
    """
    split = runs[0].tests[0]
    best = best_of_kinds(candidates(runs, lambda run: run.score(split)), higher_is_better=True)
    told = outcome(best, lambda each: share_shown(each, "accuracy", split), higher_is_better=True)
    return [
        f"{runs[0].dataset}, share of right answers to {split_words(split, dataset)}: {told}.",
        f"{what_is_learned(dataset)}{_cut(runs, dataset)}; {chances(runs)}; {compared(runs)}.",
        _learned(runs, VALIDATION, split_words(VALIDATION, dataset), threshold),
        *(_learned(runs, name, split_words(name, dataset), threshold) for name in runs[0].tests),
        *([noise_sentence(best)] if len(best) > 1 else []),
        *cost_sentences(best, runs),
    ]


def what_is_learned(dataset: FormalLanguageParameters) -> str:
    """Return which language it is, and what is trained on."""
    name = dataset.language.replace("_", " ")
    strings = dataset.train
    learned = "all tokens" if dataset.objective == "all" else "the answers alone"
    asked = ", asked at every prefix" if dataset.answers == "every" else ""
    ends = " to ".join(map(str, dict.fromkeys((strings.shortest, strings.longest))))
    return f"The formal language {name}, trained on lengths of {ends}{asked}, on {learned}"


def chances(runs: Sequence[FormalLanguageResults]) -> str:
    """Return what who knows nothing gets right in the first test."""
    first = runs[0].tests[0]
    known = sorted({run.chance_of("accuracy", first) for run in runs})
    levels = listed([percent(level) for level in known])
    return f"always giving the most frequent answer would be right in {levels}"


def _cut(runs: Sequence[FormalLanguageResults], dataset: FormalLanguageParameters) -> str:
    """Return to how many tokens strings were cut in training, where they were."""
    most = dataset.drawn.most_tokens(dataset.train.longest)
    cuts = sorted({run.training_length for run in runs if run.training_length < most})
    return f", cut to {listed([str(cut) for cut in cuts])} tokens at most" if cuts else ""


def split_words(split: str, dataset: FormalLanguageParameters) -> str:
    """Return which strings a split has: ``strings of length 41 to 500``."""
    strings, probabilities = dataset.splits[split]
    ends = dict.fromkeys((strings.shortest, strings.longest))
    told = f"strings of length {' to '.join(map(str, ends))}"
    if dataset.language in IGNORING:
        told += f", {100 * probabilities['ignore_probability']:g} % to be ignored"
    if dataset.language in ASKING:
        told += f", {100 * probabilities['ask_probability']:g} % of the statements asking"
    return told


def _learned(
    runs: Sequence[FormalLanguageResults], split: str, strings: str, threshold: float
) -> str:
    """Return how many seeds of each model answer a split right."""
    parts = []
    for name, group in group_by_seed(runs).items():
        count = sum(run.evaluation["accuracy"][split] >= threshold for run in group)
        ends = " to ".join(percent(end, 0) for end in wilson(count, len(group)))
        interval = f" (95 % interval of the share: {ends})" if len(group) > 1 else ""
        seeds = "seed" if len(group) == 1 else "seeds"
        parts.append(f"{count} of {len(group)} {seeds} of {name}{interval}")
    answers = f"{percent(threshold, 0)} or more of the answers to {strings}"
    return f"{answers} are right with {listed(parts)}."
