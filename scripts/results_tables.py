"""Write the tables of README.md and docs/results.md from what was measured: docs/measured.

    python scripts/results_tables.py                             # write the tables anew
    python scripts/results_tables.py --measured laptop=../clone  # with a repository's results

A table stands between ``<!-- table: PRESET -->`` and ``<!-- end of table -->``, and how many seeds
hold between ``<!-- rates: PRESET -->`` and ``<!-- end of rates -->``: nothing there is written by
hand. `make figures` takes what its presets leave, and `tests/test_results_tables.py`
fails where a page is not what this writes.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from implicit_models.reporting.intervals import share_interval  # noqa: E402
from scripts.store_notebooks import NotStoredError, check_preset  # noqa: E402

MEASURED = ROOT / "docs" / "measured"
PAGES = (ROOT / "README.md", ROOT / "docs" / "results.md")

_SCORES = {
    "word_problem": "accuracy_last_10",
    "formal_language": "accuracy",
    "catbabi": "accuracy",
}
_KEPT = ("kind", "data", "num_parameters", "train_seconds", "training_flops")
_HOLDS = 0.99  # as much as a seed must have right to count as one that holds
_TABLE = re.compile(
    r"(<!-- (table|rates): (\w+)( short)? -->\n)(.*?)(<!-- end of \2 -->)", re.DOTALL
)
_FAMILIES = {"mamba2": "Mamba2", "llama": "Llama", "lstm": "torch's LSTM"}
_KINDS = ("implicit", "explicit", "recurrent")


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
        preset, equals, folder = each.partition("=")
        if not equals:
            parser.error(f"--measured {each}: write PRESET=FOLDER")
        try:
            take(preset, Path(folder))
        except FileNotFoundError as error:
            print(f"error: {error.filename} does not exist; dvc repro writes it", file=sys.stderr)
            return 2
        except NotStoredError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
    for page in PAGES:
        page.write_text(written(page.read_text()))
    return 0


def take(preset: str, folder: Path) -> None:
    """Keep what a repository's summary says of the runs of a preset, which all of them are of.

    Raises
    ------
    NotStoredError
        Where the repository's params.yaml is not that of the preset, or its kind of data has no
        table.
    """
    check_preset(preset, folder)
    summary = json.loads((folder / "results" / "summary.json").read_text())
    parameters = yaml.safe_load((folder / "params.yaml").read_text())
    entries = {
        name: entry
        for table in ("runs", "upcycled", "baselines", "matched")
        for name, entry in parameters[table].items()
    }
    if without := {run["data"] for run in summary["runs"].values()} - _SCORES.keys():
        raise NotStoredError(
            f"the preset {preset} has models of the kind {', '.join(sorted(without))}, which have "
            f"no table; those of {', '.join(_SCORES)} have one"
        )
    runs = []
    for name, run in summary["runs"].items():
        kept = {key: run[key] for key in _KEPT} | {"scores": run[_SCORES[run["data"]]]}
        runs.append({"name": name, **_described(entries[name], run["kind"]), **kept})
    MEASURED.mkdir(exist_ok=True)
    (MEASURED / f"{preset}.json").write_text(json.dumps(runs, indent=1) + "\n")


def _described(entry: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return what a table says a model is, from its entry of params.yaml."""
    model = entry["model"]
    family, layers = model["family"], model.get("num_layers")
    words = [f"{'' if kind == 'recurrent' else f'{kind} '}{_FAMILIES.get(family, family)}"]
    if layers is not None:
        words.append(f"{layers} layer{'' if layers == 1 else 's'}")
    if model.get("allow_neg_eigval"):
        words.append("eigenvalues in [-1, 1]")
    share = (entry.get("bounded") or {}).get("share")
    if share is not None:
        words.append(f"{share:.0%} bounded".replace("%", " %"))
    described = {"dataset": entry["dataset"], "label": ", ".join(words), "layers": layers or 0}
    return described | {"seed": entry["seed"]}


def written(page: str) -> str:
    """Return a page with its tables as they were measured.

    Raises
    ------
    FileNotFoundError
        Where a table is asked for that nothing was measured of.
    """

    def replaced(found: re.Match[str]) -> str:
        begin, which, preset, short, _, end = found.groups()
        runs = json.loads((MEASURED / f"{preset}.json").read_text())
        return begin + (rates(runs) if which == "rates" else table(runs, short=bool(short))) + end

    return _TABLE.sub(replaced, page)


def table(runs: Sequence[Mapping[str, Any]], *, short: bool = False) -> str:
    """Return the table of some runs, scored as their kind of data is: one kind for all."""
    scores = [
        _Column(title, lambda run, name=name: _percent(_score(run, name)))
        for name, title in _scores(runs).items()
    ]
    columns = [_Column("parameters", lambda run: f"{run['num_parameters']:,}"), *scores]
    columns.append(_Column("training", lambda run: f"{run['train_seconds']:,.0f} s"))
    if not short:
        columns.append(_Column("training FLOPs", lambda run: _power(run["training_flops"])))
    datasets = _datasets(runs)
    if len(datasets) > 1:
        columns.insert(0, _Column("data", lambda run: run["dataset"]))
    rows = [
        [_label(run, runs), *(each.cell(run) for each in columns)]
        for run in sorted(runs, key=lambda run: _place(run, datasets))
    ]
    return _lines(["", *(each.title for each in columns)], rows, 1 if len(datasets) == 1 else 2)


def rates(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of how many seeds hold, of the models that have several.

    Such a share has the exact 95 % interval of Clopper and Pearson.
    """
    titles, datasets = _scores(runs), _datasets(runs)
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for run in sorted(runs, key=lambda run: _place(run, datasets)):
        groups.setdefault((run["label"], run["dataset"]), []).append(run)
    rows = []
    for (label, dataset), group in groups.items():
        if len(group) == 1:
            continue
        flops = [_power(end(run["training_flops"] for run in group)) for end in (min, max)]
        named = [label, dataset] if len(datasets) > 1 else [label]
        shares = [_rate([_score(run, name) for run in group]) for name in titles]
        rows.append([*named, *shares, " to ".join(dict.fromkeys(flops))])
    heads = ["", "data"] if len(datasets) > 1 else [""]
    return _lines([*heads, *titles.values(), "training FLOPs"], rows, len(heads))


def _rate(scores: Sequence[float | None]) -> str:
    """Return how many scores hold, with the interval of their share."""
    scored = [score for score in scores if score is not None]
    if not scored:
        return ""
    count = sum(score >= _HOLDS for score in scored)
    low, high = share_interval(count, len(scored))
    digits = 1 if high < 1 and 100 * high >= 99.5 else 0  # no "100 %" where it is not
    return f"{count} of {len(scored)} ({100 * low:.0f} to {100 * high:.{digits}f} %)"


def _lines(heads: Sequence[str], rows: Sequence[Sequence[str]], num_text_columns: int) -> str:
    """Return a table in Markdown, whose columns after the first ones are of numbers."""
    rules = ["---"] * num_text_columns + ["--:"] * (len(heads) - num_text_columns)
    return "".join(f"| {' | '.join(line)} |\n" for line in (heads, rules, *rows))


def _datasets(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(run["dataset"] for run in runs))


def _place(run: Mapping[str, Any], datasets: Sequence[str]) -> tuple[int, int, int, str, int]:
    """Return what sorts runs: by data, by kind, by layers, by what else they are, by seed."""
    kind = _KINDS.index(run["kind"])
    return datasets.index(run["dataset"]), kind, run["layers"], run["label"], run["seed"]


def _label(run: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]) -> str:
    """Return what a run is, with its seed where others differ in that alone."""
    alike = [
        each for each in runs if (each["label"], each["dataset"]) == (run["label"], run["dataset"])
    ]
    return f"{run['label']}, seed {run['seed']}" if len(alike) > 1 else run["label"]


def _scores(runs: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the titles of the scores of one kind of data, by their names."""
    (kind,) = {run["data"] for run in runs}
    if kind == "catbabi":
        return {"": "right answers"}
    names = list(dict.fromkeys(name for run in runs for name in run["scores"]))
    if kind == "word_problem":
        return {name: f"{int(name):,} tokens" for name in sorted(names, key=int)}
    return {name: name for name in sorted(names, reverse=True)}  # the validation strings first


def _score(run: Mapping[str, Any], name: str) -> float | None:
    """Return a score of a run: the only one, or that of a name."""
    return run["scores"].get(name) if isinstance(run["scores"], dict) else run["scores"]


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"


def _power(flops: float | None) -> str:
    if flops is None:
        return ""
    digits, power = f"{flops:.1e}".split("e")
    return f"{digits}e{int(power)}"


if __name__ == "__main__":
    sys.exit(main())
