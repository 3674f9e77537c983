"""Which code can change the results of an entry of params.yaml."""

import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from implicit_models.code_digest import NOT_COMPUTING, code_digests
from implicit_models.code_imports import ROOT, needed_files, submodules
from implicit_models.families.table import FAMILIES, package_of
from implicit_models.parameters import digest
from implicit_models.parameters.names import IMPLICIT, TRAINED
from implicit_models.problems.table import KINDS, TABLES, TESTED_APART

TRAINED_BY = {
    table: ("train_bounded", "train_free") if table in IMPLICIT else ("train_baseline",)
    for table in TRAINED
}
REPORT = Path("report")

# Beginnings of paths: what no result depends on, though stages import it.
_TOLD = (
    *("implicit_models/tracking", "stages/tracked.py"),
    *("implicit_models/bars.py", "implicit_models/display.py", "stages/order.py"),
    "stages/recorded_code.py",
)
_OF_NO_RESULT = (*(f"implicit_models/{path}" for path in NOT_COMPUTING), *_TOLD)

_KERNELS = submodules("implicit_models.kernels")  # which of them run, the device decides
_FAMILIES_PARAMETERS = tuple(place.partition(":")[0] for place in FAMILIES.values())

# Keys of an entry of data that say how what is on disk is learned from.
_LEARNED_BY = ("objective", "sequence_length")

_TESTED_BY = (
    "stages.evaluation.evaluate_benchmarks",
    "stages.evaluation.sweep_test_time_compute",
    "implicit_models.families.stack_reader",  # which families name
)


def roots(content: Mapping[str, Any]) -> dict[Path, list[str]]:
    """Return the modules that the results of each entry begin with.

    Parameters
    ----------
    content
        Of params.yaml. Where an entry is not what it should be, which its own stages say, it
        depends on all kinds of problems.

    Returns
    -------
    dict
        By role and entry, such as ``train/a5_implicit_mamba2``; and of the report.
    """
    kinds = {
        name: _known(entry.get("kind", default), KINDS)
        for table, default in TABLES.items()
        for name, entry in _entries(content, table)
    }
    found = {Path("prepare", name): ["stages.prepare", *_data(kinds[name])] for name in kinds}
    for table, stages in TRAINED_BY.items():
        for name, entry in _entries(content, table):
            kind = kinds.get(str(entry.get("dataset")))
            training = [*_KERNELS, *(f"stages.training.{stage}" for stage in stages)]
            families = _families(entry.get("model"))
            weights = [each for each in families if not each.endswith(".reader")]
            found[Path("train", name)] = [*training, *_data(kind), *weights]
            found[Path("evaluate", name)] = _evaluation(kind)
            if table in IMPLICIT:
                found[Path("sweep", name)] = _evaluation(kind)
    for table, kind in TESTED_APART.items():
        for name, _ in _entries(content, table):
            found[Path("evaluate", name)] = _evaluation(kind)
    found[REPORT] = ["stages.report", *_problem(None, "report"), *_FAMILIES_PARAMETERS]
    return found


def own_settings(content: Mapping[str, Any]) -> dict[Path, dict[str, str]]:
    """Return the digest of what decides an entry's results and DVC sees nowhere, by role and key.

    That is what an entry itself says of its tests: DVC cannot depend on a key that most entries
    have not got, and the whole entry decides the training as well. And it is how an entry's data
    are learned from, which is no part of the files of train and validation that training reads.
    """
    found: dict[Path, dict[str, str]] = {}
    data = {name: entry for table in TABLES for name, entry in _entries(content, table)}
    for table in TRAINED_BY:
        for name, entry in _entries(content, table):
            for role, section in (("evaluate", "evaluation"), ("sweep", "sweep")):
                if entry.get(section) is not None:
                    key = f"{table}.{name}.{section}"
                    found.setdefault(Path(role, name), {})[key] = digest(entry[section])
            learned = data.get(str(entry.get("dataset")), {})
            for key in _LEARNED_BY:
                if key in learned:
                    found.setdefault(Path("train", name), {})[key] = digest(learned[key])
    return found


def digests(modules: Iterable[str], *, of_report: bool = False) -> dict[str, str]:
    """Return the digest of each file that modules need, by its path.

    Parameters
    ----------
    of_report
        Whether it is the report's code, which no weight and no score depend on.
    """
    files = needed_files(modules, _TOLD if of_report else _OF_NO_RESULT)
    return {path: _digests_in(path.partition("/")[0])[path] for path in files}


@functools.cache
def _digests_in(folder: str) -> dict[str, str]:
    return {f"{folder}/{path}": digest for path, digest in code_digests(ROOT / folder).items()}


def _entries(content: Mapping[str, Any], table: str) -> list[tuple[str, Mapping[str, Any]]]:
    entries = (content.get(table) or {}).items()
    return [(name, entry if isinstance(entry, Mapping) else {}) for name, entry in entries]


def _data(kind: str | None) -> list[str]:
    return _problem(kind, "data")


def _evaluation(kind: str | None) -> list[str]:
    return [*_KERNELS, *_TESTED_BY, *_problem(kind, "evaluation"), *_families(None)]


def _families(model: Any) -> list[str]:
    """Return the modules of a model's family; of all where it may be made of any other."""
    section = model if isinstance(model, Mapping) else {}
    family = None if "source" in section else _known(section.get("family"), FAMILIES)
    names = FAMILIES if family is None else (family,)
    return [module for name in names for module in submodules(package_of(name))]


def _known(name: Any, table: Mapping[str, Any]) -> str | None:
    return name if isinstance(name, str) and name in table else None


def _problem(kind: str | None, role: str) -> list[str]:
    packages = KINDS.values() if kind is None else (KINDS[kind],)
    return [f"{each}.{name}" for each in packages for name in ("parameters", f"{role}.interface")]
