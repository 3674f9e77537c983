"""What the report asks of downstream tasks."""

from implicit_models.problems.downstream.report.benchmarks import BenchmarkResults

RUN = None
ENTRIES = {"benchmarks": BenchmarkResults}
