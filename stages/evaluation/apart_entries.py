"""Reading an entry of ``benchmarks`` or ``readings``."""

from pathlib import Path
from typing import Any

from implicit_models.parameters import ParameterError, read_section
from implicit_models.problems.problem import parameters_of
from implicit_models.problems.table import TABLES, TESTED_APART
from stages.common import read_entries


def read_apart(table: str, name: str, path: Path = Path("params.yaml")) -> Any:
    """Read an entry, and check that its data is there.

    Raises
    ------
    ParameterError
        Where it is not what it should be, or names no data of its kind.
    """
    problem = parameters_of(TESTED_APART[table])
    entry = read_section(f"{table}.{name}", problem.ENTRIES[table], path)
    tables = [each for each in TABLES if each in problem.SCHEMAS]
    known = [each for data_table in tables for each in read_entries(data_table, path)]
    if entry.data not in known:
        raise ParameterError(
            f"{table}.{name}.{entry.data_key} = {entry.data!r} is not allowed; allowed is an entry "
            f"of {' or '.join(tables)}: {', '.join(known) or 'none'}"
        )
    return entry
