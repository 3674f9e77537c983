"""A sweep and its table: what each point set, what came of it, and its headline metrics."""

import csv
import hashlib
import io
import json
import logging
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from implicit_models.files import write_whole
from implicit_models.parameters.dotted import dotted
from pipelines.git import git
from pipelines.outcomes import Outcomes
from pipelines.results import SUMMARY, is_accuracy, shown
from pipelines.sweeps.points import Origin, Point

log = logging.getLogger(__name__)

FOLDER = Path("results") / "sweeps"
HEADLINE = "metrics.json"  # what an evaluation writes for `dvc metrics show`
SHOWN_METRICS = 12
_COSTS = {
    "train_seconds": ("train seconds", "{:,.1f}"),
    "training_flops": ("training FLOPs", "{:.2e}"),
}
_KNOWN = (*_COSTS, "chance", "standard_errors")  # of a run, in the summary
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


@dataclass
class Sweep:
    """A sweep, and what came of it; whoever runs the flow looks here, even where Prefect is gone.

    Attributes
    ----------
    root
        The repository.
    origin
        The code that all points run.
    limit
        A global concurrency limit of Prefect, of which each point holds a slot.
    gpus
        That each point has; with 0 it sees those that this process sees.
    share
        Of the environment of points, what shares the machine's cores.
    rows
        What came of the points that have ended, in their order once all have.
    page
        The file of the comparison, once it is written.
    """

    root: Path
    name: str
    origin: Origin
    points: Sequence[Point]
    limit: str | None = None
    gpus: int = 0
    share: Mapping[str, str] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    outcomes: Outcomes = field(default_factory=Outcomes)
    page: Path | None = None

    def compare(self) -> Path:
        """Put the rows into the points' order, with their metrics, and write the comparison.

        Returns
        -------
        Path
            The page.

        Raises
        ------
        OSError
            Where it cannot be written; what was there stays.
        """
        metrics = read_metrics(self.root, self.origin.commit, [each.name for each in self.points])
        rows = {row.point.name: row for row in self.rows}
        # A point without a row was cancelled before it began.
        self.rows[:] = [
            rows.get(point.name, Row(point, "stopped")).with_metrics(metrics.get(point.name, {}))
            for point in self.points
        ]
        self.page = write(self.root, self.name, self.rows)
        return self.page


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
            } | read_summary(root, experiment.revs[0].rev)
    return found


def read_summary(root: Path, revision: str) -> dict[str, Any]:
    """Return costs, chance and standard errors of an experiment's runs, from its summary."""
    done = git(root, "show", f"{revision}:{SUMMARY.as_posix()}")
    try:
        runs = json.loads(done.stdout)["runs"]
        return {
            f"{SUMMARY}:{name}.{key}": value
            for name, run in runs.items()
            for key, value in _flat({key: run[key] for key in _KNOWN if key in run}).items()
        }
    except (ValueError, LookupError, AttributeError, TypeError):  # it has none, or another kind
        return {}


def _flat(content: Any) -> dict[str, Any]:
    return {key: value for key, value in dotted(content) if not isinstance(value, Mapping)}


def write(root: Path, name: str, rows: Sequence[Row]) -> Path:
    """Write ``results/sweeps/NAME.csv``, with every metric, and ``NAME.md``; return the latter.

    What was there of other points is kept beside it.
    """
    folder = root / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    keys = list(dict.fromkeys(key for row in rows for key in row.point.values))
    metrics = list(dict.fromkeys(metric for row in rows for metric in row.metrics))
    table = io.StringIO()
    writer = csv.writer(table)
    writer.writerow(["experiment", "state", *keys, *metrics])
    for row in rows:
        values = [row.point.values.get(key, "") for key in keys]
        numbers = [row.metrics.get(metric, "") for metric in metrics]
        writer.writerow([row.point.name, row.state, *values, *numbers])
    _set_others_aside(folder, name, {row.point.name for row in rows})
    write_whole(folder / f"{name}.csv", table.getvalue())
    page = folder / f"{name}.md"
    write_whole(page, markdown(rows))
    return page


def _set_others_aside(folder: Path, name: str, points: Set[str]) -> None:
    """Rename a table that has points which the next one will not have."""
    table = folder / f"{name}.csv"
    if not table.exists():
        return
    content = table.read_bytes()
    there = {line.partition(",")[0] for line in content.decode(errors="replace").splitlines()[1:]}
    if there <= points:
        return
    kept = f"{name}-{hashlib.sha256(content).hexdigest()[:8]}"
    for old in filter(Path.exists, (table, folder / f"{name}.md")):
        old.rename(folder / f"{kept}{old.suffix}")
    log.warning("the table of other points that was there is kept as %s", FOLDER / f"{kept}.md")


def markdown(rows: Sequence[Row]) -> str:
    """Return the table with the overrides, the headline metrics that differ, and the costs."""
    keys = list(dict.fromkeys(key for row in rows for key in row.point.values))
    varied = [key for key in keys if len({row.point.values.get(key) for row in rows}) > 1] or keys
    metrics = headline(rows)
    costs = _costs(rows, metrics)
    names = [*_short(metrics), *costs.values()]
    lines = ["| " + " | ".join([*varied, *names, "state", "experiment"]) + " |"]
    alignment = ["---"] * len(varied) + ["--:"] * len(names) + ["---", "---"]
    lines.append("|" + "|".join(alignment) + "|")
    for row in rows:
        cells = [row.point.values.get(key, "") for key in varied]
        cells += [_cell(row, metric) for metric in metrics]
        cells += [_cost(row, metric) for metric in costs]
        lines.append("| " + " | ".join([*cells, row.state, row.point.name]) + " |")
    if any(" ± " in line for line in lines):
        lines += ["", "±: two standard errors of the test data."]
    return "\n".join(lines) + "\n"


def headline(rows: Sequence[Row]) -> list[str]:
    """Choose the metrics to show: numbers that differ, those of evaluations first."""
    every = dict.fromkeys(metric for row in rows for metric in row.metrics)
    differing = [
        metric
        for metric in every
        if not metric.startswith(f"{SUMMARY}:")
        and len({row.metrics.get(metric) for row in rows if row.metrics}) > 1
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


def _costs(rows: Sequence[Row], metrics: Sequence[str]) -> dict[str, str]:
    """Return the costs that differ, of the runs whose metrics are shown, with their heads."""
    names = list(dict.fromkeys(_run(metric) for metric in metrics))
    found = {}
    for name in names:
        for key, (words, _) in _COSTS.items():
            metric = f"{SUMMARY}:{name}.{key}"
            if len({row.metrics.get(metric) for row in rows if row.metrics}) > 1:
                found[metric] = f"{name} {words}" if len(names) > 1 else words
    return found


def _cost(row: Row, metric: str) -> str:
    value = row.metrics.get(metric)
    return "" if value is None else _COSTS[metric.rpartition(".")[2]][1].format(value)


def _cell(row: Row, metric: str) -> str:
    """Return a metric for people: an accuracy with its standard error, where the summary has it."""
    value, key = row.metrics.get(metric), metric.partition(":")[2]
    if value is None or not is_accuracy(key):
        return _number(value)
    of_run = f"{SUMMARY}:{_run(metric)}"
    error = row.metrics.get(f"{of_run}.standard_errors.{key}")
    return shown(key, value, error, row.metrics.get(f"{of_run}.chance.{key}"))


def _run(metric: str) -> str:
    """Return whose metric it is: the folder of its file."""
    return Path(metric.partition(":")[0]).parent.name


def _number(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
