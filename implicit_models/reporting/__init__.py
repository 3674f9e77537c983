"""Reporting: from the results on disk to a summary, figures and a report. Imports no torch."""
