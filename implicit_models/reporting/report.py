"""The report: one set of tables and figures, as self-contained HTML and as Markdown."""

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import matplotlib as mpl
from matplotlib.figure import Figure

from implicit_models.reporting import figures, tables
from implicit_models.reporting.parameters import ReportParameters
from implicit_models.reporting.results import RunResults
from implicit_models.reporting.summary import summarise

_TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True, kw_only=True)
class Illustration:
    """A figure with its text, drawn on light and on dark ground.

    Attributes
    ----------
    name
        Stem of its file.
    runs
        Names of the runs that it shows.
    light, dark
        The figure as SVG.
    """

    name: str
    runs: Sequence[str]
    caption: str
    light: str
    dark: str

    @staticmethod
    def as_link(svg: str) -> str:
        """Give the picture as a ``data:`` address, which holds all of it."""
        return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"


@dataclass(frozen=True, kw_only=True)
class Section:
    """Everything about the runs on one dataset."""

    dataset: str
    description: str
    illustrations: Sequence[Illustration]
    tables: Sequence[tables.Table]


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
) -> Report:
    """Write the report about some runs.

    Parameters
    ----------
    runs
        What `read_results` gives.
    datasets
        The table ``datasets`` of params.yaml.
    mlflow_run_ids
        Identifier of each run's parent run in the tracking store, where there is one.
    """
    summary = summarise(runs, parameters, mlflow_run_ids)
    styles = figures.run_styles(runs)
    names = dict.fromkeys(run.dataset for run in runs)
    sections = [
        _section([run for run in runs if run.dataset == name], datasets[name], parameters, styles)
        for name in names
    ]
    content = {
        "sections": sections,
        "success": tables.success_table(summary),
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


def _section(
    runs: Sequence[RunResults],
    dataset: Mapping[str, Any],
    parameters: ReportParameters,
    styles: Mapping[str, figures.RunStyle],
) -> Section:
    name = runs[0].dataset
    implicit = [run for run in runs if run.kind == "implicit"]
    threshold = parameters.success_threshold
    description = (
        f"Word problem of {dataset['group']}, identity probability "
        f"{dataset['identity_probability']:g}. {tables.cheapest_to_solve(runs, threshold)}"
    )

    def illustrate(
        draw: Callable[..., Figure], shown: Sequence[RunResults], caption: str
    ) -> Illustration:
        stem = f"{name}_{draw.__name__}"
        light, dark = (_svg(draw, shown, styles, stem, theme) for theme in ("light", "dark"))
        names = [run.name for run in shown]
        return Illustration(name=stem, runs=names, caption=caption, light=light, dark=dark)

    illustrations = [
        illustrate(
            figures.accuracy_by_length,
            runs,
            "Accuracy of the last 10 tokens against the length of the test sequences.",
        ),
        illustrate(
            figures.training_curves,
            runs,
            "Training. The dotted line marks the change from the bounded phase to the free one.",
        ),
        illustrate(
            figures.accuracy_by_position,
            runs,
            "Accuracy by position in the longest test sequences.",
        ),
    ]
    shown = [tables.accuracy_table(runs, metric) for metric in ("accuracy_last_10", "accuracy")]
    if implicit:
        illustrations.append(
            illustrate(
                figures.accuracy_by_compute,
                implicit,
                "Test-time compute: left whole sequences against the allowed number of "
                "self-iterations, right the sliding window against the tolerance of the search. "
                f"{tables.SELF_ITERATIONS}.",
            )
        )
        shown.append(tables.search_table(implicit))
        compared = [run for run in implicit if run.evaluation["modes"]]
        shown += [tables.mode_table(compared)] if compared else []
        shown += tables.compute_tables(implicit)
    return Section(dataset=name, description=description, illustrations=illustrations, tables=shown)


def _svg(
    draw: Callable[..., Figure],
    runs: Sequence[RunResults],
    styles: Mapping[str, figures.RunStyle],
    stem: str,
    theme: str,
) -> str:
    """Draw a figure as SVG whose text depends on the results alone (no time, no random ids)."""
    buffer = io.StringIO()
    with figures.theme(theme), mpl.rc_context({"svg.hashsalt": stem}):
        draw(runs, styles).savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()
