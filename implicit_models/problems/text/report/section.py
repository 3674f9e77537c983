"""The section of the report about the models of one corpus."""

from collections.abc import Mapping, Sequence

from implicit_models.problems.text.parameters import CorpusParameters
from implicit_models.problems.text.report import tables
from implicit_models.problems.text.report.figures import (
    perplexity_by_compute,
    perplexity_by_length,
    perplexity_by_position,
)
from implicit_models.problems.text.report.hard_tokens import hard_tokens
from implicit_models.problems.text.report.lead import text_lead
from implicit_models.problems.text.report.results import TextResults
from implicit_models.problems.text.report.training_figure import text_training_curves
from implicit_models.reporting.figures.style import RunStyle
from implicit_models.reporting.illustration import Draw, illustrate
from implicit_models.reporting.sections import Section
from implicit_models.reporting.summary import group_by_seed
from implicit_models.reporting.tables.cost import cost_tables
from implicit_models.reporting.tables.table import SELF_ITERATIONS
from implicit_models.reporting.training_notes import training_notes


def text_section(
    runs: Sequence[TextResults], corpus: CorpusParameters, styles: Mapping[str, RunStyle]
) -> Section:
    """Write the section."""
    implicit = [run for run in runs if run.kind == "implicit"]
    has_source = any(run.has_source for run in runs)
    extrapolated = [run for run in runs if run.lengths]
    drawn: list[tuple[Draw, Sequence[TextResults], str]] = [
        (
            text_training_curves,
            runs,
            " ".join(
                [
                    "Training: the loss against the tokens read and against the floating-point "
                    "operations made, on the batches (thin) and on validation text (marked).",
                    *training_notes(runs),
                    *(["A source's training is not drawn."] if has_source else []),
                ]
            ),
        )
    ]
    shown = [tables.perplexity_table(runs), *cost_tables(runs)]
    if any(len(run.evaluation["domains"]) > 1 for run in runs):
        shown.append(tables.domain_table(runs))
    if extrapolated:
        drawn += [
            (
                perplexity_by_length,
                extrapolated,
                "Length extrapolation: perplexity of the same text in longer sequences.",
            ),
            (
                perplexity_by_position,
                extrapolated,
                "Perplexity by position in the longest sequences.",
            ),
        ]
        shown += tables.extrapolation_tables(extrapolated)
    if implicit:
        drawn.append(
            (
                perplexity_by_compute,
                implicit,
                "Test-time compute: left whole sequences against the allowed number of "
                "self-iterations, right the search's modes against its tolerance. "
                f"{SELF_ITERATIONS}.",
            )
        )
        shown += [tables.text_search_table(implicit), *tables.text_compute_tables(implicit)]
    with_tokens = [group[0] for group in group_by_seed(implicit).values() if group[0].shown_tokens]
    if with_tokens:
        drawn.append(
            (
                hard_tokens,
                with_tokens,
                "Where the models need many self-iterations and where few: the beginning of the "
                "test text, each token in the colour of the evaluations of the cell at the token "
                "that it is predicted from, and of its surprise.",
            )
        )
    return Section(
        title=f"Corpus {runs[0].dataset}",
        lead=text_lead(runs, corpus),
        description=f'Text from "{corpus.source}", tokenizer "{corpus.tokenizer}", training '
        f"sequences of {corpus.sequence_length} tokens.",
        illustrations=[illustrate(draw, of, styles, caption) for draw, of, caption in drawn],
        tables=shown,
    )
