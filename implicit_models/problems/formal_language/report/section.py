"""The section of the report about the models of one formal language."""

from collections.abc import Mapping, Sequence

from implicit_models.problems.formal_language.parameters import FormalLanguageParameters
from implicit_models.problems.formal_language.report import tables
from implicit_models.problems.formal_language.report.figures import (
    accuracy_by_compute,
    accuracy_by_length,
)
from implicit_models.problems.formal_language.report.lead import (
    formal_language_lead,
    split_words,
    what_is_learned,
)
from implicit_models.problems.formal_language.report.results import (
    VALIDATION,
    FormalLanguageResults,
)
from implicit_models.reporting.figures.compute import COMPUTE_CAPTION
from implicit_models.reporting.figures.style import RunStyle
from implicit_models.reporting.figures.training import training_curves
from implicit_models.reporting.illustration import Draw, illustrate
from implicit_models.reporting.parameters import ReportParameters
from implicit_models.reporting.sections import Section
from implicit_models.reporting.tables.compute import compute_tables
from implicit_models.reporting.tables.cost import cost_tables
from implicit_models.reporting.tables.table import Table
from implicit_models.reporting.training_notes import training_notes


def formal_language_section(
    runs: Sequence[FormalLanguageResults],
    dataset: FormalLanguageParameters,
    parameters: ReportParameters,
    styles: Mapping[str, RunStyle],
) -> Section:
    """Write the section."""
    implicit = [run for run in runs if run.kind == "implicit"]
    drawn: list[tuple[Draw, Sequence[FormalLanguageResults], str]] = []
    first, known = runs[0].tests[0], split_words(VALIDATION, dataset)
    if len({each.longest for name in (VALIDATION, first) for each in runs[0].by_length(name)}) > 1:
        caption = (
            "The share of right answers by the length of the strings, of neighbouring lengths "
        )
        caption += f"together: validation ({known}), and test ({split_words(first, dataset)})."
        drawn.append((accuracy_by_length, runs, caption))
    drawn.append((training_curves, runs, " ".join(["Training.", *training_notes(runs)])))
    shown = [tables.accuracy_table(runs, dataset), *cost_tables(runs)]
    if implicit:
        shown.append(tables.search_table(implicit, dataset))
    swept = [run for run in implicit if run.test_time_compute is not None]
    if swept:
        drawn.append((accuracy_by_compute, swept, COMPUTE_CAPTION))
        shown += swept_tables(swept)
    shown += tables.published_tables(dataset)
    return Section(
        title=f"Formal language {runs[0].dataset}",
        lead=formal_language_lead(runs, dataset, parameters.success_threshold),
        description=f"{what_is_learned(dataset)}.",
        illustrations=[illustrate(draw, of, styles, caption) for draw, of, caption in drawn],
        tables=shown,
    )


def swept_tables(runs: Sequence[FormalLanguageResults]) -> list[Table]:
    """Return the tables of runs that were swept."""
    return compute_tables(runs, {"accuracy": "accuracy"}, "Strings of at most {length} tokens.")
