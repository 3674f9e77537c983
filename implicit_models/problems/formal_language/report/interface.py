"""What the report asks of formal languages."""

from implicit_models.problems.formal_language.report.results import FormalLanguageResults
from implicit_models.reporting.entry_results import EntryResults

RUN = FormalLanguageResults
ENTRIES: dict[str, type[EntryResults]] = {}
