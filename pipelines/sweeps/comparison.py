"""One table of a sweep: what each point set, what came of it, and its headline metrics."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from implicit_models.files import write_whole
from pipelines.sweeps.points import Point

FOLDER = Path("results") / "sweeps"
HEADLINE = "metrics.json"  # what an evaluation writes for `dvc metrics show`
SHOWN_METRICS = 12
THERE = ("done", "already there")  # the states of points that have an experiment


@dataclass(frozen=True)
class Row:
    """What came of a point.

    Attributes
    ----------
    state
        ``done``, ``already there``, ``failed`` or ``stopped``.
    metrics
        Of its experiment, under ``FILE:KEY``.
    reason
        Of one that has failed.
    """

    point: Point
    state: str
    metrics: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""

    def with_metrics(self, metrics: Mapping[str, Any]) -> "Row":
        """Return the row with other metrics."""
        return replace(self, metrics=metrics)


def read_metrics(root: Path, commit: str, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the metrics of a commit's experiments, under ``FILE:KEY``, from `dvc exp show`."""
    from dvc.repo import Repo

    with Repo(str(root)) as repo:
        shown = repo.experiments.show(revs=[commit])
    found: dict[str, dict[str, Any]] = {}
    for state in shown:
        for experiment in state.experiments or ():
            if experiment.name is None or experiment.name not in names:
                continue
            data = experiment.revs[0].data
            found[experiment.name] = {
                f"{file}:{key}": value
                for file, content in (data.metrics if data else {}).items()
                for key, value in _flat(content.get("data") or {}).items()
            }
    return found


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {prefix.rstrip("."): value}
    return {k: v for key, each in value.items() for k, v in _flat(each, f"{prefix}{key}.").items()}


def write(root: Path, name: str, rows: Sequence[Row]) -> Path:
    """Write ``results/sweeps/NAME.csv``, with every metric, and ``NAME.md``; return the latter."""
    folder = root / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    keys = list(dict.fromkeys(key for row in rows for key in row.point.values))
    metrics = list(dict.fromkeys(metric for row in rows for metric in row.metrics))
    with (folder / f"{name}.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["experiment", "state", *keys, *metrics])
        for row in rows:
            values = [row.point.values.get(key, "") for key in keys]
            numbers = [row.metrics.get(metric, "") for metric in metrics]
            writer.writerow([row.point.name, row.state, *values, *numbers])
    page = folder / f"{name}.md"
    write_whole(page, markdown(rows))
    return page


def markdown(rows: Sequence[Row]) -> str:
    """Return the table with the overrides and the headline metrics that differ."""
    keys = list(dict.fromkeys(key for row in rows for key in row.point.values))
    shown = [key for key in keys if len({row.point.values.get(key) for row in rows}) > 1] or keys
    metrics = headline(rows)
    lines = ["| " + " | ".join([*shown, *_short(metrics), "state", "experiment"]) + " |"]
    alignment = ["---"] * len(shown) + ["--:"] * len(metrics) + ["---", "---"]
    lines.append("|" + "|".join(alignment) + "|")
    for row in rows:
        cells = [row.point.values.get(key, "") for key in shown]
        cells += [_number(row.metrics.get(metric)) for metric in metrics]
        lines.append("| " + " | ".join([*cells, row.state, row.point.name]) + " |")
    return "\n".join(lines) + "\n"


def headline(rows: Sequence[Row]) -> list[str]:
    """Choose the metrics to show: numbers that differ, those of evaluations first."""
    every = dict.fromkeys(metric for row in rows for metric in row.metrics)
    differing = [
        metric
        for metric in every
        if len({row.metrics.get(metric) for row in rows if row.metrics}) > 1
        and all(isinstance(row.metrics.get(metric, 0), int | float) for row in rows)
    ]
    evaluated = [metric for metric in differing if metric.partition(":")[0].endswith(HEADLINE)]
    return (evaluated or differing)[:SHOWN_METRICS]


def _short(metrics: Sequence[str]) -> list[str]:
    """Return short names of metrics: their keys, and their folder where there are several."""
    parts = [metric.partition(":") for metric in metrics]
    folders = [Path(file).parent.name for file, _, _ in parts]
    keys = [key for _, _, key in parts]
    if len(set(folders)) < 2:
        return keys
    return [f"{folder} {key}".strip() for folder, key in zip(folders, keys, strict=True)]


def _number(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
