"""What models cost: the one table of what is the same of a run wherever it is tested."""

from collections.abc import Sequence
from dataclasses import dataclass

from implicit_models.reporting.history import cost_to_loss, final_loss
from implicit_models.reporting.matching import match_sentence
from implicit_models.reporting.results import RunResults
from implicit_models.reporting.tables.table import Table, fixed, number, ratio, scientific

PLUS_SOURCE = " + source"

LEARNED = 0.75
"""A loss of at most this part of chance's is well below it."""

NOT_KNOWN = "-"


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a model has cost; None for what is not known.

    Attributes
    ----------
    training_flops
        Those of training its source included, where they are known.
    lacks_source
        Whether there was a source, and those are not known.
    """

    num_parameters: int
    training_flops: float | None = None
    lacks_source: bool = False

    @classmethod
    def of(cls, run: RunResults) -> "Cost":
        """Return the cost of one of our runs."""
        return cls(
            num_parameters=run.num_parameters,
            training_flops=_with_source(run, run.training_flops),
            lacks_source=run.source_flops is None,
        )

    def marked(self, flops: str) -> str:
        """Mark FLOPs of training from which those of the source are missing."""
        return f"{flops}{PLUS_SOURCE}" if self.lacks_source and flops != NOT_KNOWN else flops

    @staticmethod
    def relative(flops: float | None, reference: "Cost") -> str:
        """Return FLOPs relative to a reference's training, if both are fully known."""
        return NOT_KNOWN if reference.lacks_source else ratio(flops, reference.training_flops)


def reference_run(runs: Sequence[RunResults]) -> RunResults | None:
    """Return the run that the others' costs are compared with: the first implicit one."""
    return next((run for run in runs if run.kind == "implicit"), None)


def cost_tables(runs: Sequence[RunResults]) -> list[Table]:
    """Return the table of all costs of a section's models, and that of what a loss has cost."""
    threshold = loss_to_reach(runs)
    return [cost_table(runs), *([] if threshold is None else [_loss_table(runs, threshold)])]


def cost_table(runs: Sequence[RunResults]) -> Table:
    """Return a table of all costs; a column that nothing is known for is left out."""
    reference = reference_run(runs)
    compared = Cost.of(reference) if reference else Cost(num_parameters=0)
    rows = [_row(run, compared) for run in runs]
    columns = [
        *("run", "kind", "parameters", "x parameters", "training steps", "training tokens"),
        *("training FLOPs", "x FLOPs", "train time (s)", "tokens/s", "peak memory (GiB)"),
        *("energy (kJ)", "evaluation FLOPs per token"),
    ]
    return _without_empty_columns(
        Table(title="Cost", note=" ".join(_notes(runs, reference)), columns=columns, rows=rows)
    )


def loss_to_reach(runs: Sequence[RunResults]) -> float | None:
    """Return the loss that the worst of the runs that have learned has ended at.

    None where no loss is known, or none is well below chance's.
    """
    finals = [loss for run in runs if (loss := final_loss(run.history)) is not None]
    chances = [run.chance_loss for run in runs if run.chance_loss is not None]
    most = LEARNED * max(chances) if chances else float("inf")
    return max((loss for loss in finals if loss <= most), default=None)


def _row(run: RunResults, compared: Cost) -> list[str]:
    cost = Cost.of(run)
    memory = run.peak_memory_bytes
    return [
        *(run.name, run.kind),
        f"{cost.num_parameters:,}",
        ratio(cost.num_parameters, compared.num_parameters),
        *(_count(run.num_training_steps), _count(run.num_training_tokens)),
        cost.marked(scientific(cost.training_flops)),
        cost.marked(cost.relative(cost.training_flops, compared)),
        *(number(run.train_seconds), number(run.tokens_per_second)),
        fixed(memory and memory / 2**30, 2),
        number(run.energy_joules and run.energy_joules / 1e3),
        scientific((run.evaluation.get("cost") or {}).get("flops_per_token")),
    ]


def _loss_table(runs: Sequence[RunResults], threshold: float) -> Table:
    reference = reference_run(runs)
    compared = Cost.of(reference) if reference else Cost(num_parameters=0)
    rows = [[run.name, run.kind, *_cells_to_loss(run, threshold, compared)] for run in runs]
    has_chance = any(run.chance_loss is not None for run in runs)
    note = (
        "What training took until the loss on validation sequences was first at or below "
        f"{threshold:.3g} nats, which is where the worst run ended"
        + (" of those that end well below chance" if has_chance else "")
        + ". A dash: it never was, or what it took is not known."
    )
    columns = ("run", "kind", "training step", "FLOPs to the loss", "x reference's training")
    return _without_empty_columns(
        Table(
            title="Cost of reaching a loss",
            note=note,
            columns=[*columns, "time to the loss (s)"],
            rows=rows,
        )
    )


def _cells_to_loss(run: RunResults, threshold: float, reference: Cost) -> list[str]:
    found = cost_to_loss(run.history, threshold)
    if found is None:
        return [NOT_KNOWN] * 4
    cost, flops = Cost.of(run), _with_source(run, found.flops)
    return [
        f"{found.step:,}",
        cost.marked(scientific(flops)),
        cost.marked(cost.relative(flops, reference)),
        number(found.seconds),
    ]


def _count(value: float | None) -> str:
    return NOT_KNOWN if value is None else f"{value:,.0f}"


def _with_source(run: RunResults, flops: float | None) -> float | None:
    return None if flops is None else flops + (run.source_flops or 0.0)


def _without_empty_columns(table: Table) -> Table:
    """Leave out the columns of numbers of which none is known."""
    kept = [
        index
        for index in range(len(table.columns))
        if index < table.num_text_columns or any(row[index] != NOT_KNOWN for row in table.rows)
    ]
    return Table(
        title=table.title,
        note=table.note,
        columns=[table.columns[index] for index in kept],
        rows=[[row[index] for index in kept] for row in table.rows],
        num_text_columns=table.num_text_columns,
    )


def _notes(runs: Sequence[RunResults], reference: RunResults | None) -> list[str]:
    sentences = [
        "FLOPs are those of the matrix products, counted from the shapes and from the iterations "
        "really made. Times are wall times of the training loops, validation and checkpoints "
        "included."
    ]
    if reference is not None:
        sentences.append(f"The columns x parameters and x FLOPs are against {reference.name}.")
    named = {run.name: run for run in runs}
    sentences += filter(None, (match_sentence(run, named) for run in runs))
    return [*sentences, *_source_notes(runs, reference)]


def _source_notes(runs: Sequence[RunResults], reference: RunResults | None) -> list[str]:
    """Return sentences on which runs' FLOPs include those of a source, and which lack them."""
    sentences = []
    unknown = [run for run in runs if run.source_flops is None]
    known = [run for run in runs if run.has_source and run.source_flops is not None]
    if known:
        each = ", ".join(f"{run.name} (from {run.source.name})" for run in known if run.source)
        sentences.append(f"The training FLOPs of {each} include those of training its source.")
    if unknown:
        each = ", ".join(run.name for run in unknown)
        sentences.append(
            f"What training the source of {each} took is not among these results: "
            f'"{PLUS_SOURCE.strip()}" stands for it.'
        )
        if reference is not None and reference.source_flops is None:
            sentences.append("So no FLOPs are given against those of the reference.")
    if known or unknown:
        sentences.append("Steps, tokens, times, memory and energy are without the source's.")
    return sentences
