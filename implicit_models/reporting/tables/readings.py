"""The table of models on corpora that they were not trained on."""

from collections.abc import Sequence

from implicit_models.reporting.reading_results import ReadingResults
from implicit_models.reporting.tables.table import Table, number, perplexity


def reading_table(readings: Sequence[ReadingResults]) -> Table:
    """Give the perplexity of every model on its corpus."""
    rows = []
    for reading in readings:
        found, cost = reading.content["perplexity"], reading.content.get("cost") or {}
        rows.append(
            [
                *(reading.name, reading.model, reading.content["kind"], reading.corpus),
                perplexity(found["perplexity"], found["standard_error"]),
                number(found["bits_per_byte"]),
                f"{found['num_tokens']:,}",
                f"{reading.content['num_parameters']:,}",
                number(cost.get("seconds")),
            ]
        )
    return Table(
        title="Perplexity of further corpora",
        note="After ± is the standard error, by bootstrap.",
        columns=[
            *("reading", "model", "kind", "corpus"),
            *("perplexity", "bits/byte", "tokens", "parameters", "time (s)"),
        ],
        rows=rows,
        num_text_columns=4,
    )
