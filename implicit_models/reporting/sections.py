"""A section of the report: what it says about some models on the same data."""

from collections.abc import Sequence
from dataclasses import dataclass

from implicit_models.reporting.illustration import Illustration
from implicit_models.reporting.tables.table import Table


@dataclass(frozen=True, kw_only=True)
class Section:
    """What the report says about some models on the same data.

    Attributes
    ----------
    lead
        What came out, for the report's beginning: a headline, and sentences that tell more.
    illustrations, tables
        The first figure and the first two tables, scores and costs, stand before the others.
    """

    title: str
    lead: Sequence[str]
    description: str
    illustrations: Sequence[Illustration]
    tables: Sequence[Table]
