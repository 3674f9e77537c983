"""What models made of corpora that they were not trained on, entry by entry of ``readings``."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from implicit_models.problems.text.report.lead import perplexity_score, shown_perplexity
from implicit_models.reporting.comparison import (
    STEPS_LEFT_OUT,
    best_of_kinds,
    candidates_apart,
    fullest,
)
from implicit_models.reporting.entry_results import EntryResults
from implicit_models.reporting.lead import listed, outcome
from implicit_models.reporting.results import RunResults
from implicit_models.reporting.sections import Section
from implicit_models.reporting.tables.table import Table, number, perplexity


@dataclass(frozen=True, kw_only=True)
class ReadingResults(EntryResults):
    """A model on a corpus."""

    file = "evaluation.json"
    written_by = "evaluate_reading"

    def scores(self) -> dict[str, Any]:
        """Return what ``summary.json`` says of the reading."""
        names = ("perplexity", "standard_error", "nats_per_token", "bits_per_byte", "num_tokens")
        return {
            "model": self.label,
            "corpus": self.dataset,
            "kind": self.content["kind"],
            "num_parameters": self.content["num_parameters"],
            **{name: self.content["perplexity"][name] for name in names},
        }

    @classmethod
    def section(cls, results: "Sequence[ReadingResults]", runs: Sequence[RunResults]) -> Section:
        """Write the section of models on corpora that they were not trained on."""
        return Section(
            title="Further corpora",
            lead=reading_lead(results, runs),
            description="The test text of corpora that the models were not trained on.",
            illustrations=[],
            tables=[reading_table(results)],
        )


def reading_lead(results: Sequence[ReadingResults], runs: Sequence[RunResults]) -> list[str]:
    """Return a sentence for each corpus: which model of each kind reads it best, by all seeds.

    Of searches that differ in ``max_steps`` alone the `fullest` count, and a sentence says so.
    """
    sentences, num_counted = [], 0
    for corpus in dict.fromkeys(reading.dataset for reading in results):
        read = [reading for reading in results if reading.dataset == corpus]
        found, without = candidates_apart(
            read, runs, lambda reading: perplexity_score(reading.content["perplexity"])
        )
        num_counted += len(fullest(read, runs))
        if best := best_of_kinds(found, higher_is_better=False):
            told = outcome(best, shown_perplexity, higher_is_better=False)
            sentences.append(
                f"Perplexity of {corpus}, which these models were not trained on: {told}."
            )
        if without:
            sentences.append(f"The perplexity of {corpus} is no number for {listed(without)}.")
    if num_counted < len(results):
        sentences.append(STEPS_LEFT_OUT)
    return sentences


def reading_table(readings: Sequence[ReadingResults]) -> Table:
    """Return the table of the perplexity of every model on its corpus."""
    rows = []
    for reading in readings:
        found, cost = reading.content["perplexity"], reading.content.get("cost") or {}
        rows.append(
            [
                *(reading.name, reading.label, reading.content["kind"], reading.dataset),
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
