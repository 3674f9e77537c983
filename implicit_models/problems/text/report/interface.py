"""What the report asks of text."""

from implicit_models.problems.text.report.readings import ReadingResults
from implicit_models.problems.text.report.results import TextResults

RUN = TextResults
ENTRIES = {"readings": ReadingResults}
