"""What the flow costs over `dvc repro`, and whether two slots are used and kept to.

The cached pipeline is this project's own, under the preset `quick`: everything is up to date, so
that whatever the flow takes longer than `dvc repro` is overhead. Cold it has no server and no
database of runs yet, as in a new clone. Prefect's share of it, its imports and the start of its
server, is measured by a flow of one empty task; the rest is ours, DVC's look at the pipeline
included. In `--quick` a pipeline of four shell commands stands for the project's.
"""

import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import yaml

from benchmarks import harness
from benchmarks.clones import clone, python

DVC = ("-m", "dvc", "repro", "--quiet")
FLOW = ("-m", "pipelines.reproduce")
EMPTY_FLOW = (
    "-c",
    """
from pathlib import Path
from pipelines.server.embedded import prefect_api
with prefect_api(Path.cwd()):
    from prefect import flow, task
    from pipelines.server.open_runs import untagged_tasks
    empty = task(lambda: None, name="empty")
    @flow(name="empty")
    def run():
        with untagged_tasks():
            empty.submit().wait()
    run()
""",
)
STAGE = "from time import time, sleep; start = time(); sleep({seconds}); print(start, time())"


def run(quick: bool) -> harness.Report:
    """Measure the cached pipeline, then four stages on two slots."""
    with tempfile.TemporaryDirectory() as folder:
        rows, overhead, ours = _cached(Path(folder) / "cached", quick)
    with tempfile.TemporaryDirectory() as folder:
        slots, most, ratio = _slots(Path(folder) / "slots", 3 if quick else 20)
    return harness.Report(
        [*rows, slots],
        {
            "overhead_seconds": harness.at_most(overhead, 15.0),
            "ours_seconds": harness.at_most(ours, 3.0),
            "most_at_once": harness.at_most(most, 2),
            "over_ideal": harness.at_most(ratio, 1.2),
        },
    )


def _cached(path: Path, quick: bool) -> tuple[list[dict], float, float]:
    if quick:
        _project(path, {f"s{i}": f"echo {i} > s{i}.txt" for i in range(4)})
    else:
        clone(path, "quick")
    python(path, *DVC)
    repeats, warm_up = (1, 0) if quick else (5, 1)
    cold = "the flow, no database yet"
    commands = {"dvc repro": DVC, cold: FLOW, "an empty flow": EMPTY_FLOW, "the flow": FLOW}
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for turn in range(warm_up + repeats):
        for name, command in commands.items():
            if name == cold:
                shutil.rmtree(path / ".prefect", ignore_errors=True)
            start = time.perf_counter()
            python(path, *command)
            if turn >= warm_up:  # the first warms the caches
                seconds[name].append(time.perf_counter() - start)
    median = {name: statistics.median(times) for name, times in seconds.items()}
    rows = [{"what": f"{name}, all cached", "seconds": median[name]} for name in commands]
    overhead = median[cold] - median["dvc repro"]
    ours = median["the flow"] - median["an empty flow"]
    rows += [
        {"what": "overhead of the flow, no database yet", "seconds": overhead},
        {"what": "overhead of the flow", "seconds": median["the flow"] - median["dvc repro"]},
        {"what": "of that ours", "seconds": ours},
    ]
    return rows, overhead, ours


def _slots(path: Path, seconds: float) -> tuple[dict, int, float]:
    """Run four independent stages on two slots; return a row, most at once, time over the ideal."""
    code = STAGE.format(seconds=seconds)
    _project(path, {f"s{i}": f'python -c "{code}" > s{i}.txt' for i in range(4)})
    python(path, *FLOW, "--jobs", "2")
    times = [tuple(map(float, (path / f"s{i}.txt").read_text().split())) for i in range(4)]
    most = max(sum(a <= start < b for a, b in times) for start, _ in times)
    total = max(end for _, end in times) - min(start for start, _ in times)
    ratio = total / (2 * seconds)
    row = {"what": f"four stages of {seconds} s, two slots", "seconds": total, "over_ideal": ratio}
    return row, most, ratio


def _project(path: Path, commands: Mapping[str, str]) -> None:
    (path / ".dvc").mkdir(parents=True)
    (path / ".dvc" / "config").write_text("[core]\n    analytics = false\n    no_scm = true\n")
    stages = {name: {"cmd": command, "outs": [f"{name}.txt"]} for name, command in commands.items()}
    (path / "dvc.yaml").write_text(yaml.safe_dump({"stages": stages}))


if __name__ == "__main__":
    sys.exit(harness.main("orchestration", run, packages=("prefect", "dvc")))
