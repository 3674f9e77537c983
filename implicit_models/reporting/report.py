"""The report: one set of tables and figures, as self-contained HTML and as Markdown."""

import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from implicit_models.parameters.names import TESTED_APART
from implicit_models.reporting import figures
from implicit_models.reporting.entry_results import EntryResults
from implicit_models.reporting.illustration import Illustration
from implicit_models.reporting.lead import unfinished_sentence
from implicit_models.reporting.parameters import ReportParameters
from implicit_models.reporting.provenance import Provenance
from implicit_models.reporting.results import RunResults
from implicit_models.reporting.summary import summarise
from implicit_models.reporting.tables.success import success_table

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


@dataclass(frozen=True, kw_only=True)
class TrackedPage:
    """The run of an entry in MLflow.

    Attributes
    ----------
    run_id
        Of its parent run.
    address
        Of its page, where the tracking store is a server.
    """

    run_id: str
    address: str | None = None


def make_report(
    runs: Sequence[RunResults],
    datasets: Mapping[str, Any],
    parameters: ReportParameters,
    tracked: Mapping[str, TrackedPage],
    tested_apart: Mapping[str, Sequence[EntryResults]] | None = None,
    *,
    provenance: Provenance | None = None,
    missing: Mapping[str, str] | None = None,
) -> Report:
    """Return the report about some runs.

    Parameters
    ----------
    runs
        What `read_results` gives.
    datasets
        What they learned from: the entries of params.yaml, by name.
    tracked
        Where each run, and each benchmark, is in MLflow; those that are not there are left out.
    tested_apart
        What `EntryResults.read` gives, by table.
    provenance
        When and where the report is made; None says nothing about it.
    missing
        Entries without results, and the commands that make them.
    """
    tested_apart, missing = tested_apart or {}, missing or {}
    run_ids = {name: page.run_id for name, page in tracked.items()}
    summary = summarise(runs, parameters, run_ids, tested_apart)
    by_dataset: dict[str, list[RunResults]] = {}
    for run in runs:
        by_dataset.setdefault(run.dataset, []).append(run)
    sections = [
        type(group[0]).section(group, datasets[name], parameters, figures.run_styles(group))
        for name, group in by_dataset.items()
    ]
    for table in TESTED_APART:
        if found := tested_apart.get(table):
            sections.append(type(found[0]).section(found, runs))
    finished = len(runs) + sum(map(len, tested_apart.values()))
    content = {
        "sections": sections,
        "success": success_table(summary["success"], runs) if summary["success"] else None,
        "tracked": tracked,
        "provenance": provenance,
        "unfinished": unfinished_sentence(missing, finished + len(missing)) if missing else None,
    }
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=lambda name: name is not None and ".html" in name,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["plain"] = _plain
    environment.filters["address"] = _address
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


def _address(value: str) -> str:
    """Return an address for Markdown, in which nothing ends it early."""
    return urllib.parse.quote(value, safe=":/?#=&%@,;+~[]")
