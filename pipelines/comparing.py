"""Tables for a terminal: runs side by side, presets, groups."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

from rich.table import Column, Table

from implicit_models.parameters.errors import closest_words
from pipelines.closing import ERRORS, words
from pipelines.results import ExperimentResults, ResultsError, entries_of_results, shown

_COSTS = {
    "num_parameters": ("parameters", "{:,.0f}"),
    "training_flops": ("training FLOPs", "{:.2e}"),
    "train_seconds": ("training seconds", "{:,.1f}"),
}


def check_entries(root: Path, names: Sequence[str]) -> None:
    """Check that names to compare are entries of params.yaml, two or more, whatever has been run.

    Raises
    ------
    ResultsError
        Where one is not, with the closest one; or there is nothing to compare it with.
    """
    known = list(entries_of_results(root))
    for name in names:
        if name not in known:
            raise ResultsError(
                f"params.yaml has no entry {name}; {closest_words(name, known)}. Another preset's "
                "results come back with `implicit-models run PRESET`, from DVC's cache"
            )
    if len({*names}) < 2:
        raise ResultsError(f"{names[0]} is compared with nothing; name another entry beside it")


def comparison(results: ExperimentResults, names: Sequence[str]) -> Table:
    """Return a table of runs side by side: their costs, and all headline metrics."""
    entries = [results.entries[name] for name in names]
    table = Table("", *names)
    for column in table.columns[1:]:
        column.justify = "right"
    table.add_row("kind", *(entry.kind for entry in entries))
    for key, (named, form) in _COSTS.items():
        cells = [form.format(entry.costs[key]) if key in entry.costs else "" for entry in entries]
        if any(cells):
            table.add_row(named, *cells)
    table.add_section()
    for name in dict.fromkeys(name for entry in entries for name in entry.metrics):
        table.add_row(words(name), *(entry.shown(name) for entry in entries))
    if any(entry.errors for entry in entries):
        table.caption = ERRORS
    return table


def headline(root: Path, name: str) -> Table:
    """Return the headline metrics of an entry, as its evaluation has written them."""
    folder = root / "results" / "runs" / name
    files = [folder / "metrics.json", folder / "benchmarks.json"]
    found = json.loads(next(file for file in files if file.exists()).read_text())
    table = Table("metric", name)
    for metric, value in found.items():
        for key, each in value.items() if isinstance(value, dict) else [("", value)]:
            if isinstance(each, int | float):
                table.add_row(words(f"{metric}.{key}" if key else metric), shown(metric, each))
    return table


def preset_table(root: Path) -> Table:
    """Return the presets, each with the comment at its beginning."""
    table = Table("preset", Column("what it is", overflow="fold"), show_lines=True)
    for path in sorted((root / "conf" / "preset").glob("*.yaml")):
        table.add_row(path.stem, _description(path))
    return table


def group_table() -> Table:
    """Return the groups and monoids that word problems are of."""
    from implicit_models.problems.word_problem.data import groups

    table = Table("name", "sort", "elements")
    for kind in groups.KINDS:
        found = {name: groups.parse(name)[0] for name in kind.examples}
        sort = "group" if all(factor.is_group for factor in found.values()) else "monoid"
        sizes = ", ".join(f"{name}: {factor.size}" for name, factor in found.items())
        table.add_row(kind.written, sort, sizes)
    return table


def property_table(names: Sequence[str]) -> Table:
    """Return what some groups and monoids are.

    Raises
    ------
    ValueError
        Where a name is not understood, or has too many elements.
    """
    from implicit_models.problems.word_problem.data import groups, properties

    table = Table("name", "sort", "elements", "commutative", "solvable")
    for name in names:
        factors = groups.parse(name)
        tables = [factor.table() for factor in factors]  # a product is what all its factors are
        table.add_row(
            name,
            "group" if all(factor.is_group for factor in factors) else "monoid",
            f"{math.prod(factor.size for factor in factors):,}",
            _yes(all(map(properties.is_commutative, tables))),
            _yes(all(map(properties.is_solvable, tables))),
        )
    return table


def _yes(holds: bool) -> str:
    return "yes" if holds else "no"


def group_words() -> str:
    """Return what the groups are, and how their elements are numbered."""
    from implicit_models.problems.word_problem.data import groups

    told = (groups.__doc__ or "").split("\n\n", 1)[1].replace("``", "").strip()
    return (
        f"{told}\n\nIn a preset: group: A5, a direct product, group: A5 x M, or generators, "
        "group: '<(1 2 3 4 5), (1 2)>' (in quotes, as 'PSL(2, 7)'). On a command line: "
        "'datasets.NAME.group=\"<(1 2 3 4 5), (1 2)>\"'."
    )


def _description(path: Path) -> str:
    lines = []
    for line in path.read_text().splitlines():
        if not line.startswith("#"):
            break
        if not line.startswith(("# @package", "# Written by")):
            lines.append(line.removeprefix("#").strip())
    return " ".join(lines)
