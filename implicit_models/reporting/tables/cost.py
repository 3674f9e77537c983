"""What models cost: the columns that every table carries, and a table of their own."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from implicit_models.reporting.history import cost_to_loss, final_loss
from implicit_models.reporting.results import RunResults
from implicit_models.reporting.tables.table import Table, fixed, number, ratio, scientific

PLUS_SOURCE = " + source"
COST_COLUMNS = ("parameters", "training FLOPs", "train time (s)", "tokens/s")


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
    train_seconds: float | None = None
    tokens_per_second: float | None = None

    @classmethod
    def of(cls, run: RunResults) -> "Cost":
        """Return the cost of one of our runs."""
        return cls(
            num_parameters=run.evaluation["num_parameters"],
            training_flops=_with_source(run, run.training_flops),
            lacks_source=run.source_flops is None,
            train_seconds=run.train_seconds,
            tokens_per_second=run.tokens_per_second,
        )

    def cells(self, reference: "Cost | None") -> list[str]:
        """Return the cells of ``COST_COLUMNS``, the first two also relative to a reference."""
        parameters, flops = f"{self.num_parameters:,}", scientific(self.training_flops)
        if reference is not None:
            size = ratio(self.num_parameters, reference.num_parameters)
            work = self.relative(self.training_flops, reference)
            parameters = f"{parameters} ({size})"
            flops = f"{flops} ({work})" if work != "-" else flops
        return [
            *(parameters, self.marked(flops)),
            *(number(self.train_seconds), number(self.tokens_per_second)),
        ]

    def marked(self, flops: str) -> str:
        """Mark FLOPs of training from which those of the source are missing."""
        return f"{flops}{PLUS_SOURCE}" if self.lacks_source and flops != "-" else flops

    @staticmethod
    def relative(flops: float | None, reference: "Cost") -> str:
        """Return FLOPs relative to a reference's training, if both are fully known."""
        return "-" if reference.lacks_source else ratio(flops, reference.training_flops)


def reference_run(runs: Sequence[RunResults]) -> RunResults | None:
    """Return the run that the others' costs are compared with: the first implicit one."""
    return next((run for run in runs if run.kind == "implicit"), None)


def cost_cells(runs: Sequence[RunResults]) -> dict[str, list[str]]:
    """Return the cells of ``COST_COLUMNS`` by run, relative to the first implicit of these runs."""
    reference = reference_run(runs)
    compared = reference and Cost.of(reference)
    return {run.name: Cost.of(run).cells(compared) for run in runs}


def with_costs(table: Table, cells: Mapping[str, Sequence[str]]) -> Table:
    """Add the columns of the costs to a table whose first column names runs."""
    unknown = ["-"] * len(COST_COLUMNS)
    return dataclasses.replace(
        table,
        columns=[*table.columns, *COST_COLUMNS],
        rows=[[*row, *cells.get(row[0], unknown)] for row in table.rows],
    )


def cost_table(runs: Sequence[RunResults]) -> Table:
    """Return a table of all costs of a section's models."""
    reference = reference_run(runs)
    compared = Cost.of(reference) if reference else Cost(num_parameters=0)
    finals = [loss for run in runs if (loss := final_loss(run.history)) is not None]
    threshold = max(finals, default=None)
    rows = []
    for run in runs:
        cost = Cost.of(run)
        tokens, memory = run.num_training_tokens, run.peak_memory_bytes
        rows.append(
            [
                *(run.name, run.kind),
                f"{cost.num_parameters:,}",
                ratio(cost.num_parameters, compared.num_parameters),
                cost.marked(scientific(cost.training_flops)),
                cost.marked(cost.relative(cost.training_flops, compared)),
                "-" if tokens is None else f"{tokens:,.0f}",
                *(number(cost.train_seconds), number(cost.tokens_per_second)),
                fixed(memory and memory / 2**30, 2),
                number(run.energy_joules and run.energy_joules / 1e3),
                *_cells_to_loss(run, threshold, compared),
                scientific((run.evaluation.get("cost") or {}).get("flops_per_token")),
            ]
        )
    return Table(
        title="Cost",
        note=" ".join(_notes(runs, reference, threshold)),
        columns=[
            *("run", "kind", "parameters", "iso-parameter", "training FLOPs", "iso-FLOP"),
            *("training tokens", "train time (s)", "tokens/s", "peak memory (GiB)", "energy (kJ)"),
            *("FLOPs to the loss", "x reference's training", "time to the loss (s)"),
            "evaluation FLOPs per token",
        ],
        rows=rows,
    )


def _cells_to_loss(run: RunResults, threshold: float | None, reference: Cost) -> list[str]:
    found = None if threshold is None else cost_to_loss(run.history, threshold)
    if found is None:
        return ["-", "-", "-"]
    cost, flops = Cost.of(run), _with_source(run, found.flops)
    return [
        cost.marked(scientific(flops)),
        cost.marked(cost.relative(flops, reference)),
        number(found.seconds),
    ]


def _with_source(run: RunResults, flops: float | None) -> float | None:
    return None if flops is None else flops + (run.source_flops or 0.0)


def _notes(
    runs: Sequence[RunResults], reference: RunResults | None, threshold: float | None
) -> list[str]:
    sentences = [
        "FLOPs are those of the matrix products, counted from the shapes and from the iterations "
        "really made; energy is given where the machine tells it."
    ]
    if reference is not None:
        sentences.append(
            f"The columns iso-parameter and iso-FLOP are against {reference.name}: a baseline at "
            "1.00x is of its size, or was trained for as many FLOPs."
        )
    sentences += _source_notes(runs, reference)
    if threshold is not None:
        sentences.append(
            "The FLOPs and the wall time to the loss are those of training until the loss on "
            f"validation sequences was first at or below {threshold:.3g} nats, which is where the "
            "worst of these runs ended."
        )
    return sentences


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
        sentences.append("Tokens, times, memory and energy are without the source's.")
    return sentences
