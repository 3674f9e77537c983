"""Summarise the results of all models and benchmarks of params.yaml."""

from implicit_models.parameters import read_section
from implicit_models.problems.problem import parameters_of, report_of, results_of
from implicit_models.problems.table import TESTED_APART
from implicit_models.reporting.parameters import ReportParameters
from stages.common import (
    DATA_TABLES,
    RESULTS,
    TABLES,
    owner,
    read_data,
    read_entries,
    run_stage,
    write_json,
    write_text,
)
from stages.entries import read_models
from stages.tracked import open_run, tracked_run_id


def main(_: str) -> None:
    """Write ``results/summary.json``, ``report.html``, ``report.md`` and ``figures``.

    The report, and the figures that show it, become artifacts of each entry's run.
    """
    parameters = read_section("report", ReportParameters)
    models = read_models()
    data = {
        name: read_data(table, name).parameters
        for table in DATA_TABLES
        for name in read_entries(table)
    }
    tested_apart = {
        table: {
            name: read_section(f"{table}.{name}", parameters_of(kind).ENTRIES[table])
            for name in read_entries(table)
        }
        for table, kind in TESTED_APART.items()
    }

    from implicit_models.reporting.report import make_report
    from implicit_models.reporting.results import read_results

    folder = RESULTS / "runs"
    run_ids = {name: tracked_run_id(table, name) for table in TABLES for name in models[table]}
    for table, entries in tested_apart.items():
        for name, entry in entries.items():
            run_ids[name] = tracked_run_id(*(owner(entry.model) or (table, name)))
    report = make_report(
        read_results(folder, models, results_of),
        data,
        parameters,
        run_ids,
        {
            table: report_of(kind).ENTRIES[table].read(folder, tested_apart[table])
            for table, kind in TESTED_APART.items()
        },
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


if __name__ == "__main__":
    run_stage(main)
