"""Summarise the results of all models and benchmarks of params.yaml."""

from pathlib import Path

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
    read_dataset,
    read_entries,
    run_stage,
    write_json,
    write_text,
)
from stages.entries import read_models
from stages.tracked import open_run, tracked_address, tracked_run_id, tracking_server


def main(_: str) -> None:
    """Write ``results/summary.json``, ``report.html``, ``report.md`` and ``figures``.

    An entry that has no results yet is named in the report, and in nothing else of it.

    The report, and the figures that show it, become artifacts of each entry's run.
    """
    parameters = read_section("report", ReportParameters)
    models = read_models()
    data = {
        name: read_data(table, name).parameters
        for table in DATA_TABLES
        for name in read_entries(table)
    }
    for table, entries in models.items():
        for name, entry in entries.items():
            if entry.dataset not in data:
                read_dataset(table, name)  # says which there are
    tested_apart = {
        table: {
            name: read_section(f"{table}.{name}", parameters_of(kind).ENTRIES[table])
            for name in read_entries(table)
        }
        for table, kind in TESTED_APART.items()
    }

    from implicit_models.reporting.files import MissingResultError
    from implicit_models.reporting.provenance import Provenance
    from implicit_models.reporting.report import TrackedPage, make_report
    from implicit_models.reporting.results import read_results

    folder = RESULTS / "runs"
    missing: dict[str, str] = {}
    results = read_results(folder, models, results_of, missing)
    tests = {
        table: report_of(kind).ENTRIES[table].read(folder, tested_apart[table], missing)
        for table, kind in TESTED_APART.items()
    }
    if missing and not results and not any(tests.values()):
        first, command = next(iter(missing.items()))
        raise MissingResultError(
            f"no entry has all its results in {folder} yet; `{command}` makes what {first} lacks",
            command,
        )
    finished = {table: [name for name in models[table] if name not in missing] for table in TABLES}
    owners = {name: (table, name) for table, names in finished.items() for name in names}
    for table, entries in tested_apart.items():
        for name, entry in entries.items():
            if name not in missing:
                owners[name] = owner(entry.model) or (table, name)
    tracked = {
        name: TrackedPage(run_id=run_id, address=tracked_address(owner_of[1], run_id))
        for name, owner_of in owners.items()
        if (run_id := tracked_run_id(*owner_of)) is not None
    }
    report = make_report(
        results,
        data,
        parameters,
        tracked,
        tests,
        provenance=Provenance.now(Path(), tracking_server()),
        missing=missing,
    )
    write_json(RESULTS / "summary.json", report.summary)
    write_text(RESULTS / "report.html", report.html)
    write_text(RESULTS / "report.md", report.markdown)
    (RESULTS / "figures").mkdir(exist_ok=True)  # DVC wants it where nothing is drawn too
    for file, figure in report.figures.items():
        write_text(RESULTS / "figures" / file, figure.light)
    for table in TABLES:
        for name in finished[table]:
            with open_run(table, name, "report", {"report": parameters}) as tracker:
                tracker.log_artifact(RESULTS / "report.html")
                for file, figure in report.figures.items():
                    if name in figure.runs:
                        tracker.log_artifact(RESULTS / "figures" / file, "figures")


if __name__ == "__main__":
    run_stage(main)
