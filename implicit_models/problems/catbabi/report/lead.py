"""What came out of the models of one stream of bAbI's tasks, in a few sentences."""

from collections.abc import Sequence

from implicit_models.problems.catbabi.report.comparing import (
    LEVEL,
    TaskComparison,
    best_comparison,
    compare_tasks,
    models_of,
    runs_of,
)
from implicit_models.problems.catbabi.report.published import ELSEWHERE
from implicit_models.problems.catbabi.report.results import CatbabiResults, mean_of
from implicit_models.reporting.comparison import Candidate, best_of_kinds
from implicit_models.reporting.lead import (
    compared,
    cost_sentences,
    factor,
    listed,
    noise_sentence,
    outcome,
    share_shown,
)
from implicit_models.reporting.tables.table import number, percent, said_of_each, scientific

_TRAINED_ON = {"answers": "trained on the answers alone", "all": "trained on all tokens"}


def catbabi_lead(runs: Sequence[CatbabiResults]) -> list[str]:
    """Return the headline, and the sentences that tell more."""
    best = best_of_kinds(models_of(runs), higher_is_better=True)
    told = outcome(best, lambda each: share_shown(each, "accuracy"), higher_is_better=True)
    costly = _with_rival(best, best_comparison(runs))
    return [
        f"{runs[0].dataset}, {stream_name(runs)}, share of right answers: {told}.",
        f"{what_is_read(runs)}; {compared(runs)}.",
        *([noise_sentence(best)] if len(best) > 1 else []),
        interval_sentence(best),
        *task_sentences(compare_tasks(runs), best),
        *cost_sentences(costly, runs),
        *test_cost_sentences(costly),
        *([] if runs[0].is_original else [f"{ELSEWHERE}; it is not about these stories."]),
    ]


def stream_name(runs: Sequence[CatbabiResults]) -> str:
    """Return what a stream is called: of generated stories it is only in CatbAbI's manner."""
    return "CatbAbI" if runs[0].is_original else "catbAbI-style"


def what_is_read(runs: Sequence[CatbabiResults]) -> str:
    """Return what the models are tested on, and what they were trained on."""
    stories = "from bAbI's files" if runs[0].is_original else "generated here"
    counts = {run.name: f"{run.overall.num_questions:,} test questions" for run in runs}
    chances = listed([percent(level) for level in sorted({r.chance_of("accuracy") for r in runs})])
    objectives = {run.name: _TRAINED_ON.get(run.objective, run.objective) for run in runs}
    return (
        f"The stories of bAbI's twenty tasks, {stories}, joined into one endless stream; "
        f"{'; '.join(said_of_each(counts))}; {'; '.join(said_of_each(objectives))}; always giving "
        f"the most frequent answer of each task would be right in {chances}"
    )


def interval_sentence(models: Sequence[Candidate]) -> str:
    """Return how sure the models' accuracies are."""
    each = (f"{low} to {high} for {model.name}" for model in models for low, high in [_ends(model)])
    is_one = all(len(model.values) == 1 for model in models)
    errors = "test questions" + (", one seed each" if is_one else " and seeds")
    return f"The 95 % intervals ({errors}) are {listed(list(each))}."


def task_sentences(found: Sequence[TaskComparison], best: Sequence[Candidate]) -> list[str]:
    """Return on how many tasks implicit models are ahead of explicit ones of as many layers."""
    if not found:
        if not {"implicit", "explicit"} <= {model.kind for model in best}:
            return []
        return ["No explicit model here has as many layers as an implicit one: no tasks compared."]
    models = [model for each in found for model in (each.implicit, each.explicit)]
    is_one = all(len(model.values) == 1 for model in models)
    noise = "alone, one seed each" if is_one else "and, of models with several seeds, of the seeds"
    return [
        f"Task by task: {'; '.join(_on_tasks(each) for each in found)}.",
        f"Noise is that of the test questions {noise}, at a level of {percent(LEVEL, 0)} for all "
        "tasks of a pair together.",
    ]


def _on_tasks(found: TaskComparison) -> str:
    layers = f"{found.num_layers} {'layer' if found.num_layers == 1 else 'layers'} each"
    rival = f"{found.explicit.name} (explicit, {layers})"
    if not found.ahead and not found.behind:
        return f"{found.implicit.name} is within noise of {rival} on all {found.num_tasks}"
    told = [f"is ahead of {rival} on {_counted(found.ahead, f' of {found.num_tasks}')}"]
    told += [f"behind it on {_counted(found.behind)}", f"within noise of it on {len(found.level)}"]
    return f"{found.implicit.name} {listed(told)}"


def test_cost_sentences(models: Sequence[Candidate]) -> list[str]:
    """Return what a token of the test took each model, where it is known of the first."""
    costs = [(model, _mean(model, "test_flops_per_token")) for model in models]
    (first, reference), *others = costs
    if not reference:
        return []
    work = [mean_of(run.evaluation.get("evaluations_per_token")) for run in runs_of(first)]
    known = [each for each in work if each is not None]
    evaluations = f" ({number(sum(known) / len(known))} evaluations of the cell)" if known else ""
    told = [f"A token of the test took {first.name} {scientific(reference)} FLOPs{evaluations}"]
    told += [
        f"{model.name} {scientific(cost)} ({factor(cost / reference)})"
        for model, cost in others
        if cost
    ]
    return [f"{'; '.join(told)}."]


def _with_rival(best: Sequence[Candidate], found: TaskComparison | None) -> list[Candidate]:
    """Add the explicit model of as many layers, if it is not among the best."""
    if found is None or found.explicit.name in {model.name for model in best}:
        return list(best)
    return [*best, found.explicit]


def _counted(tasks: Sequence[int], of: str = "") -> str:
    named = f" ({listed([str(task) for task in tasks])})" if tasks else ""
    return f"{len(tasks) or 'none'}{of}{named}"


def _mean(model: Candidate, name: str) -> float | None:
    found = [getattr(run, name) for run in runs_of(model)]
    return None if None in found else sum(found) / len(found)


def _ends(model: Candidate) -> tuple[str, str]:
    """Return the ends of the 95 % interval of the mean."""
    low, high = model.mean - model.margin, model.mean + model.margin
    return percent(max(low, 0.0)), percent(min(high, 1.0))
