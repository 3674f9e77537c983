"""Tables of catbAbI: accuracy by task and by distance, the search, and what others published."""

from collections.abc import Sequence

from implicit_models.problems.catbabi.report.comparing import (
    iterations_of,
    layers_of,
    models_of,
    of_task,
    tasks_of,
)
from implicit_models.problems.catbabi.report.published import PUBLISHED
from implicit_models.problems.catbabi.report.results import (
    CatbabiResults,
    Share,
    distances_of,
    mean_of,
)
from implicit_models.problems.catbabi.tasks import numbered
from implicit_models.reporting.comparison import Candidate
from implicit_models.reporting.tables.table import (
    WORK,
    Table,
    number,
    percent,
    perplexity,
    said_of_each,
)

SOLVED = 0.95
"""The accuracy from which a task of bAbI counts as solved (Weston et al. 2015)."""

TOKEN_ITERATIONS = (
    "Self-iterations are here the evaluations of the cell that each token took part in, the one "
    "that gives the output included"
)

_OBJECTIVES = {"answers": "the answers", "all": "all tokens"}
_MODES = {"answers": "question mode (QM)", "all": "language-modelling mode (LM)"}


def accuracy_table(runs: Sequence[CatbabiResults]) -> Table:
    """Return the table of the accuracy of every run, over all questions and over its tasks."""
    has_perplexity = any(run.evaluation.get("perplexity") is not None for run in runs)
    rows = [
        [
            *(run.name, run.kind, _OBJECTIVES.get(run.objective, run.objective)),
            _count(run.num_layers),
            _with_error(run.overall),
            *_range(run),
            f"{sum(found.accuracy >= SOLVED for found in run.by_task.values())} of "
            f"{len(run.by_task)}",
            *([perplexity(run.evaluation.get("perplexity"))] if has_perplexity else []),
            number(run.evaluation.get("seconds")),
        ]
        for run in runs
    ]
    counts = {run.name: f"{run.overall.num_questions:,} questions." for run in runs}
    return Table(
        title="Accuracy",
        note=f"The share of questions answered right. {' '.join(said_of_each(counts))} After ± is "
        "the standard error, as if questions were independent. After the worst and the best task "
        "stands its number. "
        + ("The perplexity is that of all tokens of the stream. " if has_perplexity else "")
        + "The time is that of the test.",
        columns=[
            *("run", "kind", "trained on", "layers", "accuracy", "worst task", "best task"),
            f"tasks at {percent(SOLVED, 0)}",
            *(["perplexity"] if has_perplexity else []),
            "time (s)",
        ],
        rows=rows,
        num_text_columns=3,
    )


def task_table(runs: Sequence[CatbabiResults]) -> Table:
    """Return the table of the accuracy of every model on each task."""
    models = models_of(runs)
    return Table(
        title="Accuracy by task (%)",
        note="The share of questions of a task that is answered right; of a model with several "
        "seeds the mean. ± reaches the ends of the 95 % interval, by test questions and seeds. "
        f"{_headings_note(runs, models)}",
        columns=["task", "questions", *(heading(model.name) for model in models)],
        rows=[
            [
                numbered(task),
                _questions(runs, task),
                *(_percents(of_task(model, task)) for model in models),
            ]
            for task in tasks_of(runs)
        ],
        num_text_columns=1,
    )


def distance_table(runs: Sequence[CatbabiResults]) -> Table:
    """Return the table of the accuracy by the lines back to the furthest supporting fact."""
    distances = distances_of(runs)
    counts = {
        run.name: "Questions: "
        + ", ".join(f"{found.num_questions:,} ({d})" for d, found in run.by_distance.items())
        + "."
        for run in runs
        if run.by_distance
    }
    return Table(
        title="Accuracy by distance to the supporting facts",
        note="The lines from the question back to the furthest of the facts that the answer "
        f"follows from. After ± is the standard error. {' '.join(said_of_each(counts))}",
        columns=["run", "kind", *(lines(distance) for distance in distances)],
        rows=[
            [run.name, run.kind, *(_with_error(run.by_distance.get(d)) for d in distances)]
            for run in runs
        ],
    )


def search_table(runs: Sequence[CatbabiResults]) -> Table:
    """Return the table of what the implicit runs' searches took over the test stream."""
    rows = []
    for run in runs:
        evaluation = run.evaluation
        steps = evaluation.get("self_iterations") or {}
        rows.append(
            [
                run.name,
                *(number(steps.get(name)) for name in ("mean", "p50", "p95")),
                number(mean_of(evaluation.get("evaluations_per_token"))),
                number(mean_of(evaluation.get("relative_residual"))),
                percent(evaluation.get("share_converged"), 2),
            ]
        )
    return Table(
        title="Search for the fixed point",
        note=f"{TOKEN_ITERATIONS}. {WORK}. What did not reach the tolerance was "
        "given up after the largest number of evaluations and is counted like the others.",
        columns=[
            *("run", "self-iterations, mean", "p50", "p95", "evaluations per token, mean"),
            *("residual, mean", "converged"),
        ],
        rows=rows,
        num_text_columns=1,
    )


def iteration_table(runs: Sequence[CatbabiResults]) -> Table:
    """Return the table of the self-iterations of every implicit model on each task."""
    models = models_of(runs)
    tasks = sorted({task for run in runs for task in run.iterations_by_task})
    return Table(
        title="Self-iterations by task",
        note=f"{TOKEN_ITERATIONS}; on average over the tokens of a task, and over the seeds. "
        f"{_headings_note(runs, models)}",
        columns=["task", *(heading(model.name) for model in models)],
        rows=[
            [numbered(task), *(number(iterations_of(model, task)) for model in models)]
            for task in tasks
        ],
        num_text_columns=1,
    )


def published_tables(runs: Sequence[CatbabiResults]) -> list[Table]:
    """Return a table of published rows beside ours for each objective; none for other stories."""
    objectives = dict.fromkeys(run.objective for run in runs if run.is_original)
    return [
        _published_table([run for run in runs if run.objective == objective], objective)
        for objective in objectives
        if objective in _MODES
    ]


def heading(name: str) -> str:
    """Return a model's name as a column's heading, which may break into lines."""
    return name.replace("_", " ")


def lines(distance: str) -> str:
    """Return a distance in words: ``1 line``, ``3-4 lines``."""
    return f"{distance} {'line' if distance == '1' else 'lines'}"


def _published_table(runs: Sequence[CatbabiResults], objective: str) -> Table:
    ours = [
        [
            model.name,
            "this report",
            _count(layers_of(model)),
            f"{model.runs[0].num_parameters:,}",
            _percents(model),
        ]
        for model in models_of(runs)
    ]
    others = [
        [row.model, row.source, _count(row.num_layers), "-", f"{100 * accuracy:.2f}"]
        for row in PUBLISHED
        if (accuracy := row.accuracy(objective)) is not None
    ]
    return Table(
        title=f"Beside published results: {_MODES[objective]}",
        note="No comparison like for like: the published models read the stories in another "
        "shuffle, and have other sizes and trainings. A dash: the row does not tell. ± "
        "reaches the ends of our 95 % intervals.",
        columns=["run", "from", "layers", "parameters", "accuracy (%)"],
        rows=[*ours, *others],
    )


def _headings_note(runs: Sequence[CatbabiResults], models: Sequence[Candidate]) -> str:
    return "Each column is a run." if len(models) == len(runs) else "Each column is a model."


def _questions(runs: Sequence[CatbabiResults], task: int) -> str:
    counts = {run.by_task[task].num_questions for run in runs if task in run.by_task}
    return " or ".join(f"{count:,}" for count in sorted(counts))


def _range(run: CatbabiResults) -> list[str]:
    if not run.by_task:
        return ["-", "-"]
    ordered = sorted(run.by_task, key=lambda task: run.by_task[task].accuracy)
    return [f"{percent(run.by_task[task].accuracy)} ({task})" for task in (ordered[0], ordered[-1])]


def _with_error(found: Share | None) -> str:
    if found is None:
        return "-"
    accuracy, error = found.score
    return f"{100 * accuracy:.1f} ± {100 * error:.1f} %"


def _percents(model: Candidate | None) -> str:
    return "-" if model is None else f"{100 * model.mean:.1f} ± {100 * model.margin:.1f}"


def _count(value: int | None) -> str:
    return "-" if value is None else str(value)
