"""What a reproduction leaves and must always leave the same."""

import collections
import csv
import hashlib
import json
import re
import sqlite3
from pathlib import Path
from typing import Any

# Of a machine and a moment, not of a result.
TIMES = re.compile(r"second|memory|joules|energy|utilisation|mlflow_run_id|time\b|_time")
LEFT = ("data", "models", "results")
NOT_COMPARED = ("report.html", "report.md", "_checksums.json")  # of wall times, too


def files(root: Path) -> dict[str, str]:
    """Digest the files of a reproduction; those of results without wall times."""
    found = {}
    for folder in LEFT:
        for path in sorted((root / folder).rglob("*")):
            content = content_of(path, timeless=folder == "results") if path.is_file() else None
            if content is not None:
                found[str(path.relative_to(root))] = hashlib.sha256(content).hexdigest()
    return found


def content_of(path: Path, *, timeless: bool) -> bytes | None:
    """Return a file's content, without wall times if asked; None for what is of them alone."""
    if path.name.endswith(NOT_COMPARED):
        return None
    return _content(path) if timeless else path.read_bytes()


def metrics(database: Path) -> dict[tuple[str, str, int], list[float]]:
    """Read all values that MLflow has of each run's name, metric and step; one a run is right.

    Sorted: in which order the runs of one name were made, the flow decides.
    """
    query = """
        SELECT runs.name, metrics.key, metrics.step, metrics.value
        FROM metrics JOIN runs USING (run_uuid)
        WHERE runs.lifecycle_stage = 'active' ORDER BY 1, 2, 3, 4
    """
    found = collections.defaultdict(list)
    connection = sqlite3.connect(database)
    for name, key, step, value in connection.execute(query):
        if not key.startswith("system/"):
            found[name, key, step].append("" if TIMES.search(key) else value)
    connection.close()
    return dict(found)


def _content(path: Path) -> bytes:
    if path.suffix == ".json":
        return json.dumps(_timeless(json.loads(path.read_text()))).encode()
    if path.suffix == ".csv":
        with path.open(newline="") as file:
            return json.dumps([_timeless(row) for row in csv.DictReader(file)]).encode()
    return path.read_bytes()


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _timeless(each) for key, each in value.items() if not TIMES.search(key)}
    if isinstance(value, list):
        return [_timeless(each) for each in value]
    return value
