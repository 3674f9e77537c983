"""The report: one set of tables and figures, as self-contained HTML and as Markdown."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from implicit_models.reporting import figures
from implicit_models.reporting.benchmark_results import BenchmarkResults
from implicit_models.reporting.illustration import Illustration
from implicit_models.reporting.parameters import ReportParameters
from implicit_models.reporting.reading_results import ReadingResults
from implicit_models.reporting.results import RunResults
from implicit_models.reporting.sections import dataset_section, downstream_section, readings_section
from implicit_models.reporting.summary import summarise
from implicit_models.reporting.tables.cost import cost_cells, with_costs
from implicit_models.reporting.tables.table import Table
from implicit_models.reporting.tables.word_problem import success_table

_TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True, kw_only=True)
class Report:
    """The finished report.

    Attributes
    ----------
    summary
        The content of ``summary.json``.
    html, markdown
        The content of ``report.html`` and ``report.md``. The latter shows the pictures of
        ``figures/`` beside it.
    figures
        The illustrations whose light version is for ``figures/``, by the name of the file.
    """

    summary: Mapping[str, Any]
    html: str
    markdown: str
    figures: Mapping[str, Illustration]


def make_report(
    runs: Sequence[RunResults],
    datasets: Mapping[str, Any],
    parameters: ReportParameters,
    mlflow_run_ids: Mapping[str, str | None],
    benchmarks: Sequence[BenchmarkResults] = (),
    readings: Sequence[ReadingResults] = (),
) -> Report:
    """Write the report about some runs.

    Parameters
    ----------
    runs
        What `read_results` gives.
    datasets
        The entries of the tables ``datasets`` and ``corpora`` of params.yaml.
    mlflow_run_ids
        Identifier of each run's, and each benchmark's, parent run in the tracking store, where
        there is one.
    benchmarks, readings
        What `read_benchmarks` and `read_readings` give.
    """
    summary = summarise(runs, parameters, mlflow_run_ids, benchmarks, readings)
    styles = figures.run_styles(runs)
    by_dataset: dict[str, list[RunResults]] = {}
    for run in runs:
        by_dataset.setdefault(run.dataset, []).append(run)
    sections = [
        dataset_section(group, datasets[name], parameters, styles)
        for name, group in by_dataset.items()
    ]
    if readings:
        sections.append(readings_section(readings))
    if benchmarks:
        sections.append(downstream_section(benchmarks, runs))
    content = {
        "sections": sections,
        "success": _success(summary, by_dataset.values()),
        "mlflow_run_ids": {name: key for name, key in mlflow_run_ids.items() if key},
    }
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=lambda name: name is not None and ".html" in name,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    return Report(
        summary=summary,
        html=environment.get_template("report.html.j2").render(content),
        markdown=environment.get_template("report.md.j2").render(content),
        figures={f"{i.name}.svg": i for section in sections for i in section.illustrations},
    )


def _success(summary: Mapping[str, Any], groups: Iterable[Sequence[RunResults]]) -> Table | None:
    """Give the table of success rates, where there are word problems."""
    if not summary["success"]:
        return None
    cells = {name: cost for group in groups for name, cost in cost_cells(group).items()}
    return with_costs(success_table(summary), cells)
