"""Tables of formal languages: accuracy, the search, and what others published."""

from collections.abc import Sequence

from implicit_models.problems.formal_language.parameters import FormalLanguageParameters
from implicit_models.problems.formal_language.report.lead import split_words
from implicit_models.problems.formal_language.report.published import published_on
from implicit_models.problems.formal_language.report.results import FormalLanguageResults
from implicit_models.reporting.tables.table import (
    RESIDUALS,
    SELF_ITERATIONS,
    WORK,
    Table,
    number,
    percent,
)


def accuracy_table(
    runs: Sequence[FormalLanguageResults], dataset: FormalLanguageParameters
) -> Table:
    """Return the table of the accuracy of every run on every split."""
    rows = []
    for run in runs:
        found = run.evaluation
        for split in run.splits:
            rows.append(
                [
                    *(run.name, run.kind, split_words(split, dataset)),
                    f"{percent(found['accuracy'][split])} ± {percent(run.score(split)[1])}",
                    percent(found["scaled_accuracy"][split]),
                    percent(found["share_all_right"][split]),
                    f"{found['num_answers'][split]:,}",
                    f"{found['num_sequences'][split]:,}",
                    number(found["seconds"][split]),
                ]
            )
    return Table(
        title="Accuracy",
        note="The share of right answers; after ± the standard error, as if each string counted "
        "once. Scaled, an answer drawn at random counts as 0 and no error as 100 %. All right is "
        "the share of the strings without an error. The time is that of the test.",
        columns=[
            *("run", "kind", "tested on", "accuracy", "scaled", "all right"),
            *("answers", "strings", "time (s)"),
        ],
        rows=rows,
        num_text_columns=3,
    )


def search_table(runs: Sequence[FormalLanguageResults], dataset: FormalLanguageParameters) -> Table:
    """Return the table of what the search for fixed points cost the implicit runs."""
    rows = []
    for run in runs:
        found = run.evaluation
        for split in run.splits:
            steps, work = found["self_iterations"][split], found["evaluations_per_token"][split]
            residual = found["relative_residual"][split]
            rows.append(
                [
                    *(run.name, split_words(split, dataset)),
                    *(number(steps[name]) for name in ("mean", "p50", "p95")),
                    *(number(work[name]) for name in ("mean", "p95")),
                    *(number(residual[name]) for name in ("mean", "p95", "max")),
                    percent(found["share_converged"][split], 2),
                ]
            )
    return Table(
        title="Search for the fixed point",
        note=f"{SELF_ITERATIONS}: here per string. {WORK}. {RESIDUALS}. What did not reach the "
        "tolerance was given up after the largest number of evaluations and is counted like the "
        "others.",
        columns=[
            *("run", "tested on"),
            *("self-iterations, mean", "p50", "p95"),
            *("evaluations per token, mean", "p95"),
            *("residual, mean", "p95", "max"),
            "converged",
        ],
        rows=rows,
        num_text_columns=2,
    )


def published_tables(dataset: FormalLanguageParameters) -> list[Table]:
    """Return the table of what others published on the language; none where nothing is known."""
    rows = published_on(dataset.language)
    if not rows or dataset.size != 5:  # what the sources have
        return []
    return [
        Table(
            title="Published elsewhere",
            note="Each source trains and tests in its own setting, so that these are no rivals in "
            "an equal race: none of them has the sizes and the budget of the runs above.",
            columns=["model", "source", "accuracy (%)", "scaled (%)"],
            rows=[
                [
                    *(row.model, row.source),
                    "" if row.is_scaled else f"{row.accuracy:g}",
                    f"{row.accuracy:g}" if row.is_scaled else "",
                ]
                for row in rows
            ],
            num_text_columns=2,
        )
    ]
