"""Entries of params.yaml under further seeds: ``NAME_seed_N`` beside ``NAME``.

Every entry that has a seed, and is a model, gets a copy for each seed that it has not got. A copy
refers to the copies of its own seed: a matched baseline to its run's, an upcycled run to its
source's. Evaluations of a model that was copied (`readings`, `benchmarks`) are copied with it.
"""

import copy
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from implicit_models.parameters.names import TESTED_APART, TRAINED

_COPY = re.compile(r"_seed_(\d+)$")
_MODEL_FOLDER = re.compile(r"^(?P<before>(?:\./)?models/)(?P<entry>[^/]+)/")

Parameters = dict[str, Any]


class SeedError(ValueError):
    """Seeds that cannot be had."""


def parse_seeds(text: str) -> tuple[int, ...]:
    """Read ``0,1,2``.

    Raises
    ------
    SeedError
        If it is anything else.
    """
    parts = [part.strip() for part in text.split(",")]
    wrong = [part for part in parts if not re.fullmatch(r"\d+", part)]
    if wrong:
        raise SeedError(
            f"--seeds {text}: {wrong[0]!r} is no seed; seeds are whole numbers from 0 on, "
            "separated by commas, such as 0,1,2"
        )
    return tuple(dict.fromkeys(int(part) for part in parts))


def with_seeds(parameters: Mapping[str, Any], seeds: Sequence[int]) -> Parameters:
    """Add to the content of params.yaml what makes every model be there under all seeds.

    An entry keeps its name and its own seed, whether or not that is among `seeds`.

    Raises
    ------
    SeedError
        If an entry is in the way: named ``NAME_seed_N`` with another seed than N, or referring to
        something else than what is of seed N.
    """
    originals = {
        name: entry["seed"]
        for table in TRAINED
        for name, entry in (parameters.get(table) or {}).items()
        if "seed" in entry and not _is_copy(name, entry)
    }
    result = copy.deepcopy(dict(parameters))
    for table in (*TRAINED, *TESTED_APART):
        if parameters.get(table):
            result[table] = dict(_widened(table, parameters[table], seeds, originals))
    return result


def _is_copy(name: str, entry: Mapping[str, Any]) -> bool:
    found = _COPY.search(name)
    return bool(found) and int(found[1]) == entry.get("seed")


def _widened(
    table: str,
    entries: Mapping[str, Mapping[str, Any]],
    seeds: Iterable[int],
    originals: Mapping[str, int],
) -> Iterable[tuple[str, Any]]:
    """Yield a table's entries, each followed by the copies that are not there yet."""
    for name, entry in entries.items():
        yield name, copy.deepcopy(entry)
        own = _own_seed(table, name, entry, originals)
        if own is None:
            continue
        for seed in seeds:
            new = f"{name}_seed_{seed}"
            if seed == own:
                continue
            if new not in entries:
                yield new, _copy(table, entry, seed, originals)
                continue
            found = _compared(table, entries[new])
            copied = _compared(table, _copy(table, entry, seed, originals))
            for key in copied | found:
                if found.get(key) != copied.get(key):
                    other = f"give it {key} {copied[key]}" if key in copied else "take that out"
                    raise SeedError(
                        f"{table}.{new}.{key} = {found.get(key)!r} is in the way of {table}.{name} "
                        f"with seed {seed}; rename that entry, or {other}"
                    )


def _compared(table: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a copy must have: its seed and what it refers to; of an evaluation all of it."""
    if table in TESTED_APART:
        return dict(entry)
    compared = {"seed": entry.get("seed")}
    for section, key in (("match", "run"), ("model", "source")):
        if isinstance(entry.get(section), Mapping) and key in entry[section]:
            compared[f"{section}.{key}"] = entry[section][key]
    return compared


def _own_seed(
    table: str, name: str, entry: Mapping[str, Any], originals: Mapping[str, int]
) -> int | None:
    if table in TRAINED:
        return originals.get(name)
    found = _MODEL_FOLDER.match(str(entry.get("model", "")))
    return originals.get(found["entry"]) if found and not _COPY.search(name) else None


def _copy(
    table: str, entry: Mapping[str, Any], seed: int, originals: Mapping[str, int]
) -> Parameters:
    """Copy an entry; what it refers to is that of the new seed, where there is such a thing."""
    new = copy.deepcopy(dict(entry))

    def of_seed(name: str) -> str:
        return name if originals.get(name, seed) == seed else f"{name}_seed_{seed}"

    def folder_of_seed(folder: str) -> str:
        return _MODEL_FOLDER.sub(
            lambda found: f"{found['before']}{of_seed(found['entry'])}/", folder
        )

    if table in TESTED_APART:
        new["model"] = folder_of_seed(new["model"])
        return new
    new["seed"] = seed
    if table == "matched":
        new["match"]["run"] = of_seed(new["match"]["run"])
    if isinstance(new["model"].get("source"), str):
        new["model"]["source"] = folder_of_seed(new["model"]["source"])
    return new
