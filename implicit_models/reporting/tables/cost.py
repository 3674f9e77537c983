"""What models cost: the columns that every table carries, and a table of their own."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from implicit_models.reporting.history import final_loss, flops_to_loss
from implicit_models.reporting.results import RunResults
from implicit_models.reporting.tables.table import Table, fixed, number, ratio, scientific

COST_COLUMNS = ("parameters", "training FLOPs", "train time (s)", "tokens/s")


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a model has cost; None for what is not known."""

    num_parameters: int
    training_flops: float | None = None
    train_seconds: float | None = None
    tokens_per_second: float | None = None

    @classmethod
    def of(cls, run: RunResults) -> "Cost":
        """Give the cost of a run of ours."""
        return cls(
            num_parameters=run.evaluation["num_parameters"],
            training_flops=run.training_flops,
            train_seconds=run.train_seconds,
            tokens_per_second=run.tokens_per_second,
        )

    def cells(self, reference: "Cost | None") -> list[str]:
        """Give the cells of ``COST_COLUMNS``, the first two against a reference as well."""
        parameters, flops = f"{self.num_parameters:,}", scientific(self.training_flops)
        if reference is not None:
            size = ratio(self.num_parameters, reference.num_parameters)
            work = ratio(self.training_flops, reference.training_flops)
            parameters = f"{parameters} ({size})"
            flops = f"{flops} ({work})" if work != "-" else flops
        return [parameters, flops, number(self.train_seconds), number(self.tokens_per_second)]


def reference_run(runs: Sequence[RunResults]) -> RunResults | None:
    """Give the run that the others' costs are compared with: the first implicit one."""
    return next((run for run in runs if run.kind == "implicit"), None)


def cost_cells(runs: Sequence[RunResults]) -> dict[str, list[str]]:
    """Give the cells of ``COST_COLUMNS`` by run, against the first implicit of these runs."""
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
    """Give everything that the models of a section have cost."""
    reference = reference_run(runs)
    compared = Cost.of(reference) if reference else Cost(num_parameters=0)
    finals = [loss for run in runs if (loss := final_loss(run.history)) is not None]
    threshold = max(finals, default=None)
    rows = []
    for run in runs:
        cost = Cost.of(run)
        reached = None if threshold is None else flops_to_loss(run.history, threshold)
        tokens, memory = run.num_training_tokens, run.peak_memory_bytes
        rows.append(
            [
                *(run.name, run.kind),
                f"{cost.num_parameters:,}",
                ratio(cost.num_parameters, compared.num_parameters),
                scientific(cost.training_flops),
                ratio(cost.training_flops, compared.training_flops),
                "-" if tokens is None else f"{tokens:,.0f}",
                *(number(cost.train_seconds), number(cost.tokens_per_second)),
                fixed(memory and memory / 2**30, 2),
                number(run.energy_joules and run.energy_joules / 1e3),
                scientific(reached),
                ratio(reached, compared.training_flops),
                scientific((run.evaluation.get("cost") or {}).get("flops_per_token")),
            ]
        )
    return Table(
        title="Cost",
        note=_note(reference, threshold),
        columns=[
            *("run", "kind", "parameters", "iso-parameter", "training FLOPs", "iso-FLOP"),
            *("training tokens", "train time (s)", "tokens/s", "peak memory (GiB)", "energy (kJ)"),
            *("FLOPs to the loss", "x reference's training"),
            "evaluation FLOPs per token",
        ],
        rows=rows,
    )


def _note(reference: RunResults | None, threshold: float | None) -> str:
    sentences = [
        "FLOPs are those of the matrix products, counted from the shapes and from the iterations "
        "really made; energy is given where the machine tells it."
    ]
    if reference is not None:
        sentences.append(
            f"The columns iso-parameter and iso-FLOP are against {reference.name}: a baseline at "
            "1.00x is of its size, or was trained for as many FLOPs."
        )
    if threshold is not None:
        sentences.append(
            f"The FLOPs to the loss are those of training until the loss on validation sequences "
            f"was first at or below {threshold:.3g} nats, which is where the worst of these runs "
            "ended."
        )
    return " ".join(sentences)
