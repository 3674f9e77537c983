"""The sections of the report: one per data set or corpus, and one of the downstream tasks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from implicit_models.reporting import figures
from implicit_models.reporting.benchmark_results import BenchmarkResults
from implicit_models.reporting.illustration import Draw, Illustration, illustrate
from implicit_models.reporting.parameters import ReportParameters
from implicit_models.reporting.reading_results import ReadingResults
from implicit_models.reporting.results import RunResults
from implicit_models.reporting.summary import group_by_seed
from implicit_models.reporting.tables import text, word_problem
from implicit_models.reporting.tables.cost import cost_cells, cost_table, with_costs
from implicit_models.reporting.tables.downstream import downstream_table
from implicit_models.reporting.tables.readings import reading_table
from implicit_models.reporting.tables.table import SELF_ITERATIONS, Table


@dataclass(frozen=True, kw_only=True)
class Section:
    """What the report says about some models on the same data."""

    title: str
    description: str
    illustrations: Sequence[Illustration]
    tables: Sequence[Table]


def dataset_section(
    runs: Sequence[RunResults],
    dataset: Mapping[str, Any],
    parameters: ReportParameters,
    styles: Mapping[str, figures.RunStyle],
) -> Section:
    """Write the section of the runs on one data set or corpus."""
    if runs[0].data == "text":
        return _text_section(runs, dataset, styles)
    return _word_problem_section(runs, dataset, parameters, styles)


def downstream_section(
    benchmarks: Sequence[BenchmarkResults], runs: Sequence[RunResults]
) -> Section:
    """Write the section of the downstream tasks."""
    return Section(
        title="Downstream tasks",
        description="The harness's own tasks, scored by the log-likelihood of the answers.",
        illustrations=[],
        tables=[downstream_table(benchmarks, {run.name: run for run in runs})],
    )


def readings_section(readings: Sequence[ReadingResults]) -> Section:
    """Write the section of models on corpora that they were not trained on."""
    return Section(
        title="Further corpora",
        description="The test text of corpora that the models were not trained on.",
        illustrations=[],
        tables=[reading_table(readings)],
    )


def _word_problem_section(
    runs: Sequence[RunResults],
    dataset: Mapping[str, Any],
    parameters: ReportParameters,
    styles: Mapping[str, figures.RunStyle],
) -> Section:
    implicit = [run for run in runs if run.kind == "implicit"]
    drawn: list[tuple[Draw, Sequence[RunResults], str]] = [
        (
            figures.accuracy_by_length,
            runs,
            "Accuracy of the last 10 tokens against the length of the test sequences.",
        ),
        (
            figures.training_curves,
            runs,
            "Training. The dotted line marks the change from the bounded phase to the free one.",
        ),
        (
            figures.accuracy_by_position,
            runs,
            "Accuracy by position in the longest test sequences.",
        ),
    ]
    tables = [
        word_problem.accuracy_table(runs, metric) for metric in ("accuracy_last_10", "accuracy")
    ]
    if implicit:
        drawn.append(
            (
                figures.accuracy_by_compute,
                implicit,
                "Test-time compute: left whole sequences against the allowed number of "
                "self-iterations, right the sliding window against the tolerance of the search. "
                f"{SELF_ITERATIONS}.",
            )
        )
        tables.append(word_problem.search_table(implicit))
        compared = [run for run in implicit if run.evaluation["modes"]]
        tables += [word_problem.mode_table(compared)] if compared else []
        tables += word_problem.compute_tables(implicit)
    return Section(
        title=f"Dataset {runs[0].dataset}",
        description=f"Word problem of {dataset['group']}, identity probability "
        f"{dataset['identity_probability']:g}. "
        f"{word_problem.cheapest_to_solve(runs, parameters.success_threshold)}",
        illustrations=[illustrate(draw, shown, styles, caption) for draw, shown, caption in drawn],
        tables=_with_costs(tables, runs),
    )


def _text_section(
    runs: Sequence[RunResults], corpus: Mapping[str, Any], styles: Mapping[str, figures.RunStyle]
) -> Section:
    implicit = [run for run in runs if run.kind == "implicit"]
    extrapolated = [run for run in runs if run.lengths]
    drawn: list[tuple[Draw, Sequence[RunResults], str]] = [
        (
            figures.text_training_curves,
            runs,
            "Training: the loss against the tokens read and against the floating-point operations "
            "made, on the batches (thin) and on validation text (marked). The dotted line marks "
            "the change from the bounded phase to the free one."
            + (" A source's training is not drawn." if any(run.has_source for run in runs) else ""),
        )
    ]
    tables = [text.perplexity_table(runs)]
    if any(len(run.evaluation["domains"]) > 1 for run in runs):
        tables.append(text.domain_table(runs))
    if extrapolated:
        drawn += [
            (
                figures.perplexity_by_length,
                extrapolated,
                "Length extrapolation: perplexity of the same text in longer sequences.",
            ),
            (
                figures.perplexity_by_position,
                extrapolated,
                "Perplexity by position in the longest sequences.",
            ),
        ]
        tables += text.extrapolation_tables(extrapolated)
    if implicit:
        drawn.append(
            (
                figures.perplexity_by_compute,
                implicit,
                "Test-time compute: left whole sequences against the allowed number of "
                "self-iterations, right the three modes against the tolerance of the search. "
                f"{SELF_ITERATIONS}.",
            )
        )
        tables += [text.text_search_table(implicit), *text.text_compute_tables(implicit)]
    shown = [group[0] for group in group_by_seed(implicit).values() if group[0].shown_tokens]
    if shown:
        drawn.append(
            (
                figures.hard_tokens,
                shown,
                "Where the models need many self-iterations and where few: the beginning of the "
                "test text, each token in the colour of the evaluations of the cell at the token "
                "that it is predicted from, and of its surprise.",
            )
        )
    return Section(
        title=f"Corpus {runs[0].dataset}",
        description=f'Text from "{corpus["source"]}", tokenizer "{corpus["tokenizer"]}", training '
        f"sequences of {corpus['sequence_length']} tokens. {text.compare_kinds(runs)}",
        illustrations=[illustrate(draw, shown, styles, caption) for draw, shown, caption in drawn],
        tables=_with_costs(tables, runs),
    )


def _with_costs(tables: Sequence[Table], runs: Sequence[RunResults]) -> list[Table]:
    """Let every table of a section carry the costs, and end with the table of the costs."""
    cells = cost_cells(runs)
    return [*(with_costs(table, cells) for table in tables), cost_table(runs)]
