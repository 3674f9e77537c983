"""Write the tables of README.md and docs/results.md from what was measured: docs/measured.

    python scripts/results_tables.py                             # write the tables anew
    python scripts/results_tables.py --measured laptop=../clone  # with a repository's results

A table stands between ``<!-- table: PRESET -->`` and ``<!-- end of table -->``, and nothing there
is written by hand. `make figures` takes what its presets leave, and `tests/test_results_tables.py`
fails where a page is not what this writes.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
MEASURED = ROOT / "docs" / "measured"
PAGES = (ROOT / "README.md", ROOT / "docs" / "results.md")

_KEPT = (
    *("kind", "data", "num_parameters", "train_seconds", "training_flops", "peak_memory_bytes"),
    *("accuracy", "accuracy_last_10", "share_all_right", "language", "chance", "num_questions"),
)
_TABLE = re.compile(r"(<!-- table: (\w+)( short)? -->\n)(.*?)(<!-- end of table -->)", re.DOTALL)
_LABELS = (
    (r"(\w+)_implicit_mamba2(?:_seed_(\d+))?", "implicit Mamba2, 1 layer, seed {0}"),
    (r"(\w+)_mamba2_(\d+)_layers?", "explicit Mamba2, {0} layer{1}"),
    (r"(\w+)_mamba2_neg_eigval", "explicit Mamba2, eigenvalues in [-1, 1]"),
    (r"(\w+)_share_(\d+)(?:_seed_(\d+))?", "implicit Mamba2, {0} % bounded, seed {1}"),
    (r"(\w+)_lstm", "LSTM, 1 layer"),
)


class _Column(NamedTuple):
    title: str
    cell: Callable[[Mapping[str, Any]], str]


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
    options = parser.parse_args(arguments)
    for each in options.measured:
        preset, _, folder = each.partition("=")
        try:
            take(preset, Path(folder))
        except FileNotFoundError as error:
            print(f"error: {error.filename} does not exist; dvc repro writes it", file=sys.stderr)
            return 2
    for page in PAGES:
        page.write_text(written(page.read_text()))
    return 0


def take(preset: str, folder: Path) -> None:
    """Keep what a repository's summary says of its runs."""
    summary = json.loads((folder / "results" / "summary.json").read_text())
    runs = {
        name: {key: run[key] for key in _KEPT if run.get(key) is not None}
        for name, run in summary["runs"].items()
    }
    MEASURED.mkdir(exist_ok=True)
    text = json.dumps({"runs": runs, "success": summary["success"]}, indent=1, sort_keys=True)
    (MEASURED / f"{preset}.json").write_text(text + "\n")


def written(page: str) -> str:
    """Return a page with its tables as they were measured.

    Raises
    ------
    FileNotFoundError
        Where a table is asked for that nothing was measured of.
    """

    def replaced(found: re.Match[str]) -> str:
        begin, preset, short, _, end = found.groups()
        runs = json.loads((MEASURED / f"{preset}.json").read_text())["runs"]
        return begin + table(runs, short=short is not None) + end

    return _TABLE.sub(replaced, page)


def table(runs: Mapping[str, Mapping[str, Any]], *, short: bool = False) -> str:
    """Return the table of some runs, those of each kind of data as they are scored."""
    columns = [_Column("parameters", lambda run: f"{run['num_parameters']:,}")]
    columns += _scores(runs)
    columns.append(_Column("training", lambda run: f"{run['train_seconds']:,.0f} s"))
    if not short:
        columns.append(_Column("training FLOPs", lambda run: _power(run["training_flops"])))
    problems = {_named(name)[0] for name in runs}
    heads = ["", *(["data"] if len(problems) > 1 else []), *(each.title for each in columns)]
    words = 2 if len(problems) > 1 else 1
    lines = [heads, [*["---"] * words, *["--:"] * len(columns)]]
    for name in sorted(runs, key=_place):
        data, label = _named(name)
        cells = (each.cell(runs[name]) for each in columns)
        lines.append([label, *([data] if words == 2 else []), *cells])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _place(name: str) -> tuple[str, bool, str]:
    """Return what sorts runs: by their data, implicit ones first, by their label."""
    data, label = _named(name)
    return data, not label.startswith("implicit"), label


def _named(name: str) -> tuple[str, str]:
    """Return what a run learned and what it is, from its name."""
    for pattern, label in _LABELS:
        if found := re.fullmatch(pattern, name):
            data, *rest = found.groups()
            if "layer{1}" in label:
                rest.append("" if rest[0] == "1" else "s")
            return data, label.format(*("0" if each is None else each for each in rest))
    return "", f"`{name}`"


def _scores(runs: Mapping[str, Mapping[str, Any]]) -> list[_Column]:
    """Return the columns of the scores of one kind of data."""
    (kind,) = {run["data"] for run in runs.values()}
    if kind == "catbabi":
        return [_Column("right answers", lambda run: _percent(run["accuracy"]))]
    key = {"word_problem": "accuracy_last_10", "formal_language": "accuracy"}[kind]
    names = list(dict.fromkeys(name for run in runs.values() for name in run[key]))
    if kind == "word_problem":
        names.sort(key=int)
        titles = {name: f"{name} tokens" for name in names}
    else:
        names.sort(reverse=True)  # the validation strings first
        titles = {name: name for name in names}
    return [
        _Column(titles[name], lambda run, name=name: _percent(run[key].get(name))) for name in names
    ]


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"


def _power(flops: float) -> str:
    return f"{flops:.1e}".replace("e+", "e")


if __name__ == "__main__":
    sys.exit(main())
