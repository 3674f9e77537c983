"""Kill the whole pipeline at random moments until it has come to its end, again and again.

`make crash`, or ``python -m tests.crash --kills 100``; settings of its preset may follow, as
``scripts/compose.py`` takes them. One reproduction of a preset runs undisturbed. Then it runs from
nothing in a fresh clone, with `dvc repro` and as the flow in turn, and the whole process group is
killed with SIGKILL at random moments; what was killed is started again, until it ends by itself.
Its files must be the undisturbed one's to the last byte, wall times aside, and MLflow must have
each metric of each step once.
"""

import argparse
import collections
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import psutil

from tests.crash.leftovers import files, metrics
from tests.repositories import Repository, clone

# The second as `make repro` runs it.
COMMANDS = {
    "dvc repro": ("sh", "-c", "python -m pipelines.dvc_files && exec dvc repro"),
    "flow": ("python", "-m", "pipelines.reproduce", "--jobs", "2"),
}


def main() -> int:
    """Return 1 where a round has left something else than the undisturbed one."""
    arguments = read_arguments()
    draw = random.Random(arguments.seed)
    root = Path(tempfile.mkdtemp(prefix="crash_"))
    print(f"in {root}, which stays if something differs", flush=True)
    undisturbed = cold(clone(root / "undisturbed", arguments.preset, *arguments.settings))
    started = time.monotonic()
    undisturbed.run("dvc", "repro")
    seconds = time.monotonic() - started
    expected = left_by(undisturbed)
    print(f"undisturbed: {seconds:.0f} s, {count(expected)}", flush=True)
    kills: collections.Counter[str] = collections.Counter()
    rounds = number_wrong = 0
    while kills.total() < arguments.kills:
        kind = list(COMMANDS)[rounds % len(COMMANDS)]
        repository = cold(clone(root / f"round_{rounds}", arguments.preset, *arguments.settings))
        killed = disturbed(repository, COMMANDS[kind], draw, seconds / arguments.kills_a_round)
        kills += killed
        rounds += 1
        wrong = differences(expected, left_by(repository))
        number_wrong += bool(wrong)
        print(f"{kind}: {killed.total()} kills, {len(wrong)} differences", *wrong[:20], sep="\n  ")
        sys.stdout.flush()
        if not wrong:
            shutil.rmtree(repository.path)
    found = ", ".join(f"{name} {number}" for name, number in kills.most_common())
    print(f"{rounds} rounds, {kills.total()} kills ({found}): {number_wrong} rounds differ")
    if not number_wrong:
        shutil.rmtree(root)
    return int(number_wrong > 0)


def read_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--kills-a-round", type=int, default=12, help="expected, more or less")
    parser.add_argument("--preset", default="quick")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="of the preset")
    return parser.parse_args()


def cold(repository: Repository) -> Repository:
    """Return the repository with a real `python`, which a kill reaches at once."""
    return replace(repository, is_warm=False)


def disturbed(
    repository: Repository, command: tuple[str, ...], draw: random.Random, mean_seconds: float
) -> collections.Counter[str]:
    """Run a command, killed again and again, until it ends by itself; return what was killed."""
    killed: collections.Counter[str] = collections.Counter()
    while True:
        process = repository.start(*command)
        try:
            output, _ = process.communicate(timeout=draw.expovariate(1 / mean_seconds))
        except subprocess.TimeoutExpired:
            killed[running_stage(process.pid)] += 1
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            continue
        if process.returncode:
            raise SystemExit(f"after {dict(killed)} in {repository.path}:\n{output}")
        return killed


def running_stage(process: int) -> str:
    """Return the stage that a process has started, as far as its command lines say."""
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(process).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                for word in child.cmdline():
                    if word.startswith("stages."):
                        return word.rpartition(".")[2]
    return "between stages"


def left_by(repository: Repository) -> dict[str, dict]:
    """Return what a finished reproduction has left, as far as it must always be the same."""
    repository.run(sys.executable, "-m", "implicit_models.tracking.sync")
    return {"files": files(repository.path), "metrics": metrics(repository.path / "mlflow.db")}


def count(left: dict[str, dict]) -> str:
    """Return how much there is to compare, in words."""
    return f"{len(left['files'])} files, {len(left['metrics'])} metrics of single steps"


def differences(expected: dict[str, dict], found: dict[str, dict]) -> list[str]:
    """Return what differs, a line each."""
    return [
        f"{what}: {key}: {json.dumps(found[what].get(key))[:80]} instead of "
        f"{json.dumps(expected[what].get(key))[:80]}"
        for what in expected
        for key in sorted(expected[what].keys() | found[what].keys(), key=str)
        if expected[what].get(key) != found[what].get(key)
    ]


if __name__ == "__main__":
    sys.exit(main())
