"""A section of the report: what it says about some models on the same data."""

from collections.abc import Sequence
from dataclasses import dataclass

from implicit_models.reporting.illustration import Illustration
from implicit_models.reporting.results import RunResults
from implicit_models.reporting.tables.cost import cost_cells, cost_table, with_costs
from implicit_models.reporting.tables.table import Table


@dataclass(frozen=True, kw_only=True)
class Section:
    """What the report says about some models on the same data."""

    title: str
    description: str
    illustrations: Sequence[Illustration]
    tables: Sequence[Table]


def with_all_costs(tables: Sequence[Table], runs: Sequence[RunResults]) -> list[Table]:
    """Return a section's tables, each with the costs, and the table of the costs at their end."""
    cells = cost_cells(runs)
    return [*(with_costs(table, cells) for table in tables), cost_table(runs)]
