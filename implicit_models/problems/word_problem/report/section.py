"""The section of the report about the models of one word problem."""

from collections.abc import Mapping, Sequence

from implicit_models.problems.word_problem.parameters import WordProblemParameters
from implicit_models.problems.word_problem.report import tables
from implicit_models.problems.word_problem.report.figures import (
    accuracy_by_compute,
    accuracy_by_length,
    accuracy_by_position,
    past_distances,
)
from implicit_models.problems.word_problem.report.lead import (
    trained_on,
    what_is_learned,
    word_problem_lead,
)
from implicit_models.problems.word_problem.report.results import WordProblemResults
from implicit_models.reporting.figures.compute import COMPUTE_CAPTION
from implicit_models.reporting.figures.style import RunStyle
from implicit_models.reporting.figures.training import training_curves
from implicit_models.reporting.illustration import Draw, illustrate
from implicit_models.reporting.parameters import ReportParameters
from implicit_models.reporting.sections import Section
from implicit_models.reporting.tables.compute import compute_tables
from implicit_models.reporting.tables.cost import cost_tables
from implicit_models.reporting.training_notes import training_notes

_PASTS = (
    "Pairs of sequences have one product by different words, and then go on with the same tokens. "
    "Where their states meet, an error is forgotten as well; where they stay apart, errors are "
    "handed on from token to token and add up."
)


def word_problem_section(
    runs: Sequence[WordProblemResults],
    dataset: WordProblemParameters,
    parameters: ReportParameters,
    styles: Mapping[str, RunStyle],
) -> Section:
    """Write the section."""
    implicit = [run for run in runs if run.kind == "implicit"]
    drawn: list[tuple[Draw, Sequence[WordProblemResults], str]] = [
        (
            accuracy_by_length,
            runs,
            "Accuracy of the last 10 tokens against the length of the test sequences.",
        ),
        (training_curves, runs, " ".join(["Training.", *training_notes(runs)])),
        (accuracy_by_position, runs, "Accuracy by position in the longest test sequences."),
    ]
    remembering = [run for run in runs if run.past_distance]
    if remembering:
        drawn.append((past_distances, remembering, _PASTS))
    last, every = (tables.accuracy_table(runs, each) for each in ("accuracy_last_10", "accuracy"))
    further = [run for run in runs if run.further_tests]
    shown = [last, *([tables.further_table(further)] if further else []), *cost_tables(runs), every]
    if implicit:
        drawn.append(
            (
                accuracy_by_compute,
                implicit,
                COMPUTE_CAPTION,
            )
        )
        shown.append(tables.search_table(implicit))
        compared = [run for run in implicit if run.evaluation["modes"]]
        shown += [tables.mode_table(compared)] if compared else []
        names = {"accuracy_last_10": "accuracy, last 10", "accuracy": "accuracy"}
        shown += compute_tables(implicit, names)
    return Section(
        title=f"Dataset {runs[0].dataset}",
        lead=word_problem_lead(runs, dataset, parameters.success_threshold),
        description=f"{what_is_learned(dataset)}, {trained_on(runs)}. Accuracy is over the last 10 "
        "tokens of each test sequence unless it says otherwise.",
        illustrations=[illustrate(draw, of, styles, caption) for draw, of, caption in drawn],
        tables=shown,
    )
