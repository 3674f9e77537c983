"""Write the tables of README.md and docs/results.md from what was measured: docs/measured.

    python scripts/results_tables.py                             # write the tables anew
    python scripts/results_tables.py --measured laptop=../clone  # with a repository's results
    python scripts/results_tables.py --measured laptop=../clone KEY=VALUE  # of the preset with it
    python scripts/results_tables.py --measured laptop=../clone --further  # beside what is kept

Between ``<!-- WHAT: PRESET -->`` and ``<!-- end of WHAT -->`` nothing is written by hand. WHAT is
``table``, ``rates`` (how many seeds hold), ``tasks`` (of stories, means of seeds), ``scores``
(medians of seeds, a row a score) or, without a preset, ``published`` (of CatbAbI). Of several
presets the last that has a model has all its seeds, whatever seeds were asked for (``--seeds``).
``WHAT: PRESET identity 0.9`` is of the further test with that share of easy tokens.
"""

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from implicit_models.files import write_whole  # noqa: E402
from scripts import measured, measured_tables  # noqa: E402

PAGES = (ROOT / "README.md", ROOT / "docs" / "results.md")

_TABLE = re.compile(
    r"(<!-- (table|rates|tasks|scores): (\w+(?: \w+)*?)(?: identity ([\d.]+))?( short)? -->\n)"
    r".*?(<!-- end of \2 -->)",
    re.DOTALL,
)
_PUBLISHED = re.compile(r"(<!-- published -->\n).*?(<!-- end of published -->)", re.DOTALL)
_WRITTEN = {
    "table": measured_tables.table,
    "rates": measured_tables.rates,
    "tasks": measured_tables.tasks,
    "scores": measured_tables.scores,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        *("--measured", "-m"),
        action="append",
        default=[],
        metavar="PRESET=FOLDER",
        help="first take the results of a repository in which the preset was reproduced",
    )
    parser.add_argument(
        "--further", action="store_true", help="keep the models that are not among them as well"
    )
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="KEY=VALUE",
        help="with what the preset was reproduced there",
    )
    options = parser.parse_args(arguments)
    if options.overrides and len(options.measured) != 1:
        parser.error(f"{options.overrides[0]}: give one --measured, which was reproduced so")
    if options.further and not options.measured:
        parser.error("--further: give --measured as well")
    wanted = [(each, *each.partition("=")) for each in options.measured]
    for each, preset, _, folder in wanted:
        if not (preset and folder):
            parser.error(f"--measured {each}: write PRESET=FOLDER")
    try:
        for _, preset, _, folder in wanted:
            measured.take(preset, Path(folder), options.overrides, further=options.further)
        pages = {page: written(page.read_text()) for page in PAGES}
        for page, text in pages.items():
            write_whole(page, text)
    except (measured.NotMeasuredError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def written(page: str) -> str:
    """Return a page with its tables as they were measured.

    Raises
    ------
    NotMeasuredError
        Where a table is asked for that nothing was measured of, or how many seeds hold in a
        measure that is no accuracy.
    """

    def replaced(found: re.Match[str]) -> str:
        begin, which, presets, identity, short, end = found.groups()
        runs = runs_of(presets.split())
        if identity is not None:
            runs = _further(runs, identity)
        text = _WRITTEN[which](runs, short=True) if short else _WRITTEN[which](runs)
        return begin + text + measured.said_of(runs, dated=which != "rates") + end

    return _PUBLISHED.sub(rf"\g<1>{measured_tables.published()}\g<2>", _TABLE.sub(replaced, page))


def runs_of(presets: Sequence[str]) -> list[Mapping[str, Any]]:
    """Return the runs of presets; the last that has a model has all of its seeds.

    Raises
    ------
    NotMeasuredError
        Where nothing was measured of one.
    """
    runs: list[Mapping[str, Any]] = []
    for preset in presets:
        more = measured.of_preset(preset)
        again = {_alike(run) for run in more}
        runs = [*(run for run in runs if _alike(run) not in again), *more]
    return runs


def _alike(run: Mapping[str, Any]) -> tuple[str, str]:
    """Return what runs have in common that differ in their seed alone."""
    return run["group"], run["dataset"]


def _further(runs: Sequence[Mapping[str, Any]], identity: str) -> list[Mapping[str, Any]]:
    """Return the runs that have a further test, each with its scores."""
    tested = [run for run in runs if identity in run.get("further_tests", {})]
    if not tested:
        raise measured.NotMeasuredError(
            f"no further test with identity {identity} was measured; --measured takes the results "
            "of one"
        )
    return [{**run, "scores": run["further_tests"][identity]} for run in tested]


if __name__ == "__main__":
    sys.exit(main())
