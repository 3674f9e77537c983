"""Summarise the results of all models and benchmarks of params.yaml."""

from typing import TypeVar

from implicit_models.evaluation.parameters import BenchmarkParameters, ReadingParameters
from implicit_models.parameters import read_section
from implicit_models.reporting.parameters import ReportParameters
from stages.common import (
    DATA,
    RESULTS,
    TABLES,
    owner,
    read_entries,
    run_stage,
    write_json,
    write_text,
)
from stages.entries import read_models
from stages.tracked import open_run, tracked_run_id

T = TypeVar("T")


def main(_: str) -> None:
    """Write ``results/summary.json``, ``report.html``, ``report.md`` and ``figures``.

    The report, and the figures that show it, become artifacts of each entry's run.
    """
    parameters = read_section("report", ReportParameters)
    models = read_models()
    benchmarks = _read_table("benchmarks", BenchmarkParameters)
    readings = _read_table("readings", ReadingParameters)
    data = {
        name: read_section(f"{table}.{name}", schema).model_dump()
        for table, schema in DATA.items()
        for name in read_entries(table)
    }

    from implicit_models.reporting.benchmark_results import read_benchmarks
    from implicit_models.reporting.reading_results import read_readings
    from implicit_models.reporting.report import make_report
    from implicit_models.reporting.results import read_results

    folder = RESULTS / "runs"
    run_ids = {name: tracked_run_id(table, name) for table in TABLES for name in models[table]}
    for table, entries in (("benchmarks", benchmarks), ("readings", readings)):
        for name, entry in entries.items():
            run_ids[name] = tracked_run_id(*(owner(entry.model) or (table, name)))
    report = make_report(
        read_results(folder, models),
        data,
        parameters,
        run_ids,
        read_benchmarks(folder, benchmarks),
        read_readings(folder, readings),
    )
    write_json(RESULTS / "summary.json", report.summary)
    write_text(RESULTS / "report.html", report.html)
    write_text(RESULTS / "report.md", report.markdown)
    for file, figure in report.figures.items():
        write_text(RESULTS / "figures" / file, figure.light)
    for table in TABLES:
        for name in models[table]:
            with open_run(table, name, "report", {"report": parameters}) as tracker:
                tracker.log_artifact(RESULTS / "report.html")
                for file, figure in report.figures.items():
                    if name in figure.runs:
                        tracker.log_artifact(RESULTS / "figures" / file, "figures")


def _read_table(table: str, schema: type[T]) -> dict[str, T]:
    return {name: read_section(f"{table}.{name}", schema) for name in read_entries(table)}


if __name__ == "__main__":
    run_stage(main)
