"""Make every figure: run the presets behind the notebooks, and the notebooks on what came out.

    python scripts/make_figures.py                 # all; what `make figures` does
    python scripts/make_figures.py length layers   # those notebooks, and the presets behind them
    python scripts/make_figures.py --list          # which preset is behind which notebook

Every preset has a copy of this project of its own, under `.figures`, so that no results of yours
are touched; the copies share DVC's cache with it, so that nothing is trained twice. What is stopped
goes on where it was. Written are the notebooks, where they are, what was measured, docs/measured,
and from that the tables of README.md and docs/results.md.

A preset that reads files of yours, such as a text, is left out where they are not here, with the
line that says what it wants; what its notebooks show of them stays in the copy.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.clones import interrupted, reproduced  # noqa: E402
from scripts.measured import take_own_seeds  # noqa: E402
from scripts.results_tables import main as write_tables  # noqa: E402
from scripts.store_notebooks import (  # noqa: E402
    NotStoredError,
    composed,
    notebooks,
    preset_of,
    store,
)

FOLDER = ROOT / ".figures"


def main(arguments: Sequence[str] | None = None) -> int:
    """Make them; the exit status is 1 where a preset failed, and 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = notebooks()
    parser.add_argument("names", nargs="*", metavar="NOTEBOOK", help=f"of {', '.join(known)}")
    parser.add_argument("--jobs", type=int, default=2, help="stages that run at once")
    parser.add_argument("--list", action="store_true", help="say which preset is behind which")
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - set(known):
        parser.error(f"no such notebook: {', '.join(sorted(unknown))} (of {', '.join(known)})")
    behind: dict[str, list[str]] = {}
    for name in options.names or known:
        behind.setdefault(preset_of(known[name]), []).append(name)
    if options.list:
        for preset, names in behind.items():
            print(f"{preset}: {', '.join(names)}")
        return 0
    try:
        return _make(behind, known, options.jobs)
    except KeyboardInterrupt:
        return interrupted(goes_on=True)


def _make(behind: Mapping[str, Sequence[str]], known: Mapping[str, Path], jobs: int) -> int:
    failed, begun = 0, time.monotonic()
    for preset, names in behind.items():
        start = time.monotonic()
        if missing := what_is_missing(preset):
            print(f"{preset} is left out, and {', '.join(names)} with it:\n{missing}")
            continue
        print(f"{preset}: for {', '.join(names)}", flush=True)
        folder = FOLDER / preset
        own = folder / "notebooks" if _reads_files(preset) else None
        try:
            with reproduced(folder, preset, jobs=jobs, cached=True):
                if own is None:
                    take_own_seeds(preset, folder)
                for name in names:
                    try:
                        store(known[name], folder, own)
                    except NotStoredError as error:
                        failed = _say_failed(f"{name}.ipynb", error)
        except RuntimeError as error:
            failed = _say_failed(preset, error)
            continue
        print(f"{preset}: {time.monotonic() - start:,.0f} s", flush=True)
    if write_tables([]):
        failed = 1
    print(f"all: {(time.monotonic() - begun) / 60:,.0f} min")
    return failed


def _say_failed(what: str, error: Exception) -> int:
    print(f"failed: {what}: {error}", file=sys.stderr)
    return 1


def _reads_files(preset: str) -> bool:
    """Return whether a preset reads files of a user's own."""
    tables = yaml.safe_load(composed(preset))
    return bool(tables["corpora"] or tables["tasks"])


def what_is_missing(preset: str) -> str:
    """Return the lines that say what a preset reads and this machine lacks."""
    command = [sys.executable, "-m", "stages.check", preset]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    lines = (done.stdout + done.stderr).splitlines()
    return "\n".join(line for line in lines if line.startswith("missing: "))


if __name__ == "__main__":
    sys.exit(main())
