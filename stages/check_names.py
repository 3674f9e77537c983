"""What is wrong with the names of entries: two tables have one, or one is mistyped."""

from collections.abc import Iterable, Mapping
from typing import Any

from implicit_models.parameters.errors import similar_name
from stages.check_findings import Findings

_OF_MODELS = {"dataset", "seed", "model", "optimisation"}  # every entry of a model has them
_MISTYPED = 0.8  # how like the right name a mistyped one of an entry is at least


def check_names(
    found: Findings, content: Mapping[str, Mapping[str, Any]], tables: Iterable[str]
) -> None:
    """Find names that two tables have: both would write into the same folders."""
    seen: dict[str, str] = {}
    for table in tables:
        for name in content[table]:
            if name in seen:
                found.add(
                    f"{name} is an entry of both {seen[name]} and {table}; rename one of them"
                )
            seen.setdefault(name, table)


def entry_meant(name: str, entries: Mapping[str, Any]) -> str | None:
    """Return which entry was probably meant, where one has but a few keys of another."""
    entry = entries[name]
    if not isinstance(entry, Mapping) or "dataset" in entry or len(_OF_MODELS - entry.keys()) < 2:
        return None
    whole = {other: value for other, value in entries.items() if isinstance(value, Mapping)}
    like = [other for other, value in whole.items() if value.keys() >= {"dataset", *entry}]
    return similar_name(name, like, _MISTYPED)
