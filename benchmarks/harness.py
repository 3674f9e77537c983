"""What all benchmarks share: the command line, the clock, the table and the results file.

A benchmark is a module with a function ``run(quick) -> Report`` that ends in

    if __name__ == "__main__":
        sys.exit(harness.main("word_problems", run))

``python -m benchmarks.word_problems`` measures in full, writes
``benchmarks/results/word_problems.json`` and fails (exit code 1) where a bar does not hold.
``--quick`` takes less than a minute and writes ``word_problems.quick.json``, which git ignores; it
judges nothing, because a short measurement on a busy machine proves nothing.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Bar:
    """A number a benchmark has to reach."""

    value: float
    required: float
    holds: bool


def at_least(value: float, required: float) -> Bar:
    """Make a bar for a number of which more is better."""
    return Bar(value, required, bool(value >= required))


def at_most(value: float, required: float) -> Bar:
    """Make a bar for a number of which less is better."""
    return Bar(value, required, bool(value <= required))


@dataclass(frozen=True)
class Report:
    """What a benchmark has measured: rows of a table, and the bars judged by them."""

    rows: Sequence[Mapping[str, Any]]
    bars: Mapping[str, Bar] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Whether all bars hold."""
        return all(bar.holds for bar in self.bars.values())


@dataclass(frozen=True)
class Timing:
    """Seconds of repeated calls: the fastest and the median."""

    best: float
    median: float


def measure(function: Callable[[], Any], *, repeats: int = 5, warmup: int = 1) -> Timing:
    """Time repeated calls, after ``warmup`` calls that do not count."""
    for _ in range(warmup):
        function()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return Timing(min(seconds), statistics.median(seconds))


def interleaved(calls: Mapping[Any, Callable[[], Any]], repeats: int) -> dict[Any, float]:
    """Return the median seconds of functions that are called in turn, after one call each."""
    seconds: dict[Any, list[float]] = {key: [] for key in calls}
    for turn in range(repeats + 1):
        for key, call in calls.items():
            start = time.perf_counter()
            call()
            if turn:
                seconds[key].append(time.perf_counter() - start)
    return {key: statistics.median(times) for key, times in seconds.items()}


def main(
    name: str,
    run: Callable[[bool], Report],
    *,
    num_cores: int | None = None,
    packages: Sequence[str] = ("numpy",),
    arguments: Sequence[str] | None = None,
    results: Path = RESULTS,
) -> int:
    """Run a benchmark from the command line and return the exit code.

    Parameters
    ----------
    name
        Of the module, and of the results file.
    run
        Measures; takes whether ``--quick`` was asked for.
    num_cores
        Cores that may be used, by this process and its children; ``None`` is all there are.
    packages
        Whose versions the results name.
    arguments
        Command line, without the program; ``None`` is that of the process.
    results
        Folder of the results files.
    """
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}")
    parser.add_argument("--quick", action="store_true", help="under a minute, judges nothing")
    quick = parser.parse_args(arguments).quick
    if num_cores is not None:
        _restrict(num_cores)
    report = run(quick)
    tell(report)
    content = {
        "benchmark": name,
        "command": f"python -m benchmarks.{name}{' --quick' if quick else ''}",
        "device": device(),
        "versions": versions(packages),
        "rows": [dict(row) for row in report.rows],
        "bars": {label: asdict(bar) for label, bar in report.bars.items()},
    }
    results.mkdir(parents=True, exist_ok=True)
    path = results / f"{name}{'.quick' if quick else ''}.json"
    path.write_text(json.dumps(content, indent=2) + "\n")
    print(f"written to {os.path.relpath(path)}")
    return 0 if quick or report.holds else 1


def tell(report: Report) -> None:
    """Print the rows of a report as a table, and its bars."""
    print(table(report.rows))
    for label, bar in report.bars.items():
        verdict = "holds" if bar.holds else "DOES NOT HOLD"
        print(f"{label}: {_text(bar.value)} (required {_text(bar.required)}) {verdict}")


def device() -> dict[str, Any]:
    """Describe the machine: processor, cores of the machine and usable ones, accelerator."""
    processor = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                processor = line.partition(":")[2].strip()
                break
    accelerator = None
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        accelerator = torch.cuda.get_device_name()
    return {
        "cpu": processor,
        "cores": os.cpu_count(),
        "cores_used": _num_usable_cores(),
        "accelerator": accelerator,
    }


def versions(packages: Sequence[str]) -> dict[str, str]:
    """Return the versions of Python and of installed packages."""
    return {
        "python": platform.python_version(),
        **{package: importlib.metadata.version(package) for package in packages},
    }


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Lay rows out as an aligned text table; a row may lack a column."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    cells = [columns, *([_text(row.get(column)) for column in columns] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    lines = ["  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)) for row in cells]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _num_usable_cores() -> int | None:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def _restrict(num_cores: int) -> None:
    """Keep this process, its libraries' threads and its children on a number of cores."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-num_cores:])
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = str(num_cores)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(num_cores)
