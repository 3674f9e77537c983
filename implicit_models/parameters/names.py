"""The tables of params.yaml, and what their entries may be called."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from implicit_models.parameters.errors import ParameterError

#: The tables whose entries are trained, and the stage that makes the final model of each.
TRAINED = {
    "runs": "train_free",
    "upcycled": "train_upcycled_free",
    "baselines": "train_baseline",
    "matched": "train_matched",
}

#: Those of implicit models.
IMPLICIT = ("runs", "upcycled")

#: The tables of models on data that they were not trained on, in the order of their sections.
TESTED_APART = ("readings", "benchmarks")

#: The tables of params.yaml: their entries name folders, files and stages of DVC.
TABLES = (
    *("datasets", "corpora", "hub_corpora", "tasks", "hub_tasks"),
    *TRAINED,
    *reversed(TESTED_APART),
)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


def check_names(content: Any, path: Path = Path("params.yaml")) -> None:
    """Check the names of the entries of all tables of a file, before anything is done with one.

    They become names of folders, which stages and DVC empty, and of stages.

    Parameters
    ----------
    content
        Of the file; what is no mapping has no entries.

    Raises
    ------
    ParameterError
        Naming the table, the name and what is allowed; also where a table is no mapping, which
        DVC may see otherwise.
    """
    for table in TABLES:
        entries = content.get(table) if isinstance(content, Mapping) else None
        if not isinstance(entries, Mapping | None):
            raise ParameterError(
                f"{path}: {table} = {entries!r} is not allowed; allowed is a table of named entries"
            )
        for name in entries or ():
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                in_quotes = type(name) is int and name >= 0
                raise ParameterError(
                    f"{path}: {table} has an entry named {name!r}, which is not allowed; allowed "
                    "are letters, digits, _ and -, with a letter or digit first"
                    + (f"; '{name}' is allowed in quotes" if in_quotes else "")
                )
