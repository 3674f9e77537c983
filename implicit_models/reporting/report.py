"""The report: one set of tables and figures, as self-contained HTML and as Markdown."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from implicit_models.reporting import figures
from implicit_models.reporting.entry_results import EntryResults
from implicit_models.reporting.illustration import Illustration
from implicit_models.reporting.parameters import ReportParameters
from implicit_models.reporting.results import RunResults
from implicit_models.reporting.summary import TESTED_APART, summarise
from implicit_models.reporting.tables.cost import cost_cells, with_costs
from implicit_models.reporting.tables.success import success_table
from implicit_models.reporting.tables.table import Table

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
    tested_apart: Mapping[str, Sequence[EntryResults]] | None = None,
) -> Report:
    """Return the report about some runs.

    Parameters
    ----------
    runs
        What `read_results` gives.
    datasets
        What they learned from: the entries of params.yaml, by name.
    mlflow_run_ids
        Identifier of each run's, and each benchmark's, parent run in the tracking store, where
        there is one.
    tested_apart
        What `EntryResults.read` gives, by table.
    """
    summary = summarise(runs, parameters, mlflow_run_ids, tested_apart)
    styles = figures.run_styles(runs)
    by_dataset: dict[str, list[RunResults]] = {}
    for run in runs:
        by_dataset.setdefault(run.dataset, []).append(run)
    sections = [
        type(group[0]).section(group, datasets[name], parameters, styles)
        for name, group in by_dataset.items()
    ]
    for table in TESTED_APART:
        if found := (tested_apart or {}).get(table):
            sections.append(type(found[0]).section(found, runs))
    content = {
        "sections": sections,
        "success": _success(summary, runs, by_dataset.values()),
        "mlflow_run_ids": {name: key for name, key in mlflow_run_ids.items() if key},
    }
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=lambda name: name is not None and ".html" in name,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["plain"] = _plain
    return Report(
        summary=summary,
        html=environment.get_template("report.html.j2").render(content),
        markdown=environment.get_template("report.md.j2").render(content),
        figures={f"{i.name}.svg": i for section in sections for i in section.illustrations},
    )


def _plain(value: Any) -> str:
    """Return a value of results for Markdown, in which it is one line of text and no HTML."""
    text = " ".join(str(value).split("\n"))
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("](", "]\\(")


def _success(
    summary: Mapping[str, Any],
    runs: Sequence[RunResults],
    groups: Iterable[Sequence[RunResults]],
) -> Table | None:
    """Return the table of success rates, where a problem knows success."""
    if not summary["success"]:
        return None
    cells = {name: cost for group in groups for name, cost in cost_cells(group).items()}
    return with_costs(success_table(summary["success"], runs), cells)
