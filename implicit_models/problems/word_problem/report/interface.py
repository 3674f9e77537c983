"""What the report asks of word problems."""

from implicit_models.problems.word_problem.report.results import WordProblemResults
from implicit_models.reporting.entry_results import EntryResults

RUN = WordProblemResults
ENTRIES: dict[str, type[EntryResults]] = {}
