"""What the report asks of catbAbI."""

from implicit_models.problems.catbabi.report.results import CatbabiResults
from implicit_models.reporting.entry_results import EntryResults

RUN = CatbabiResults
ENTRIES: dict[str, type[EntryResults]] = {}
