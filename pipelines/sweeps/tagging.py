"""The tag by which MLflow finds the runs of a sweep's points, whoever has trained them."""

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from implicit_models.parameters import digest, without_tests
from pipelines.sweeps.points import Point


def tag_points(root: Path, sweep: str, points: Iterable[Point]) -> str | None:
    """Tag the runs of all entries of points with the sweep, and the points that they are in.

    A point that DVC had in its cache has trained nothing, and stages that all points share have
    run once, for none of them: their entries have runs from before.

    Returns
    -------
    str or None
        Why that failed, in one line.
    """
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for point in points:
        for entry in _entries(point):
            found[entry].append(point.name)
    if not found:
        return None
    tags = [[*entry, {_tag(sweep): " ".join(names)}] for entry, names in found.items()]
    # In a process of its own, as MLflow is imported there.
    done = subprocess.run(
        [sys.executable, "-m", "implicit_models.tracking.tagging"],
        cwd=root,
        input=json.dumps(tags),
        capture_output=True,
        text=True,
    )
    *_, said = done.stderr.strip().splitlines() or ["nothing was said"]
    return None if done.returncode == 0 else said


def filter_of(sweep: str) -> str:
    """Return what to search for in MLflow."""
    return f"tags.\"{_tag(sweep)}\" LIKE '%'"


def _tag(sweep: str) -> str:
    return f"sweep.{sweep}"


def _entries(point: Point) -> Iterator[tuple[str, str]]:
    """Yield the entries of models, with the digests that their runs have."""
    for table in point.parameters.values():
        for name, entry in (table or {}).items() if isinstance(table, Mapping) else ():
            if isinstance(entry, Mapping) and "model" in entry:
                yield str(name), digest(without_tests(entry))
