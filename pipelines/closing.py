"""The last words after a reproduction: the scores, where the report is, and what comes next."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from implicit_models.parameters import ParameterError
from pipelines.results import REPORT, EntryResult, ResultsError, read_results

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
        heads = {name: _head(name) for name in columns}
        width = max(len(entry.name) for entry in group)
        what = dict.fromkeys(name.partition(".")[0].replace("_", " ") for name in columns)
        lines.append(f"{', '.join(what)}:")
        for entry in group:
            cells = [
                f"{heads[name]} {shown(name, entry.metrics[name])}"
                for name in columns
                if name in entry.metrics
            ]
            lines.append(f"  {entry.name:{width}}  {entry.kind:11}{'   '.join(cells)}")
    return lines


def shown(name: str, value: float) -> str:
    """Return a metric's value for people: accuracies in percent."""
    return f"{value:.1%}" if name.startswith("accuracy") else f"{value:,.4g}"


def _shared(entry: EntryResult, entries: Sequence[EntryResult]) -> Mapping[str, float]:
    """Return the metrics that an entry has in common with all that share one with it."""
    others = [other for other in entries if other.metrics.keys() & entry.metrics.keys()]
    return {
        name: value
        for name, value in entry.metrics.items()
        if all(name in other.metrics for other in others)
    }


def _head(name: str) -> str:
    first, dot, rest = name.partition(".")
    return f"at {rest}:" if dot else f"{first.replace('_', ' ')}:"


if __name__ == "__main__":
    main()
