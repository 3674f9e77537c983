"""The last words after a reproduction: the scores, where the report is, and what comes next."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from implicit_models.parameters import ParameterError
from pipelines.results import REPORT, EntryResult, ResultsError, read_results

_NAMES = {"length_extrapolation": "perplexity"}  # at each length
ERRORS = "±: two standard errors of the test data"
_MOST_SCORES = 8  # of an entry, in a line


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the last words of what results/ holds."""
    parser = argparse.ArgumentParser(prog="python -m pipelines.closing", description=__doc__)
    parser.parse_args(arguments)
    print(closing_words(Path.cwd()))


def closing_words(root: Path) -> str:
    """Return the scores of all entries, the report's path and the next step.

    Where the results are of other entries than params.yaml has, it says so in their place; whether
    these had other values, only `dvc status` says.
    """
    try:
        found = read_results(root)
    except (ResultsError, ParameterError, OSError) as error:
        return f"no scores to show: {error}"
    entries = list(found.entries.values())
    lines = ["", *score_lines(entries), "", f"report   {REPORT}"]
    lines.append("tracked  make dashboards shows every run in MLflow")
    names = [entry.name for entry in entries if entry.model is not None]
    if len(names) > 1:
        lines.append(f"next     implicit-models compare {names[0]} {names[1]}")
        lines.append("         implicit-models run PRESET KEY=VALUE tries another setting")
    return "\n".join(lines)


def score_lines(entries: Sequence[EntryResult]) -> list[str]:
    """Return a line of scores for each entry: those that all entries of its sort have.

    Implicit models have further numbers, of their search, which have no column beside models that
    make none.
    """
    groups: dict[frozenset[str], list[EntryResult]] = {}
    for entry in entries:
        sort = frozenset(name.partition(".")[0] for name in _shared(entry, entries))
        groups.setdefault(sort, []).append(entry)
    lines: list[str] = []
    for group in groups.values():
        columns = [name for name in group[0].metrics if name in _shared(group[0], entries)]
        columns = columns[:_MOST_SCORES]
        firsts = dict.fromkeys(name.partition(".")[0] for name in columns)
        what = dict.fromkeys(map(words, firsts))
        heads = {name: _head(name, is_alone=len(firsts) == 1) for name in columns}
        width = max(len(entry.name) for entry in group)
        has_errors = any(name in entry.errors for entry in group for name in columns)
        lines.append(f"{', '.join(what)}{f' ({ERRORS})' if has_errors else ''}:")
        for entry in group:
            cells = [
                f"{heads[name]} {entry.shown(name)}" for name in columns if name in entry.metrics
            ]
            lines.append(f"  {entry.name:{width}}  {entry.kind:11}{'   '.join(cells)}")
    return lines


def _shared(entry: EntryResult, entries: Sequence[EntryResult]) -> Mapping[str, float]:
    """Return the metrics that an entry has in common with all that share one with it."""
    others = [other for other in entries if other.metrics.keys() & entry.metrics.keys()]
    return {
        name: value
        for name, value in entry.metrics.items()
        if all(name in other.metrics for other in others)
    }


def words(name: str) -> str:
    """Return a metric's name in words, ``perplexity at 128``."""
    first, dot, rest = name.partition(".")
    return _NAMES.get(first, first.replace("_", " ")) + (f" at {rest}" if dot else "")


def _head(name: str, *, is_alone: bool) -> str:
    """Return what stands before a score, in short where all scores of the line are of one sort."""
    rest = name.partition(".")[2]
    return f"at {rest}:" if rest and is_alone else f"{words(name)}:"


if __name__ == "__main__":
    main()
