"""What the stages that test trained models share: the entry's table, and its test sequences."""

import difflib
from collections.abc import Iterable

from implicit_models.data.parameters import DatasetParameters
from implicit_models.parameters import ParameterError
from stages.common import TABLES, read_entries


def find_table(name: str) -> str:
    """Say in which table an entry is: ``runs``, ``upcycled`` or ``baselines``."""
    names = {table: list(read_entries(table)) for table in TABLES}
    tables = [table for table in names if name in names[table]]
    if len(tables) > 1:
        raise ParameterError(
            f"{name} is an entry of both {' and '.join(tables)}; rename one of them"
        )
    if not tables:
        valid = [other for table in names.values() for other in table]
        closest = difflib.get_close_matches(name, valid, n=1, cutoff=0.0)
        raise ParameterError(
            f"params.yaml: {name} is no entry of {', '.join(TABLES)}; the closest is "
            f"{', '.join(closest)} (valid: {', '.join(valid)})"
        )
    return tables[0]


def check_test_splits(
    section: str, lengths: Iterable[int], num_sequences: int, name: str, dataset: DatasetParameters
) -> None:
    """Check that a data set has the test sequences that a section asks for."""
    test = dataset.test
    for length in lengths:
        if length not in test.lengths:
            raise ParameterError(
                f"{section} asks for test sequences of length {length}; allowed is one of "
                f"datasets.{name}.test.lengths, {list(test.lengths)}"
            )
    if num_sequences > test.num_sequences:
        raise ParameterError(
            f"{section}.num_sequences = {num_sequences} is not allowed; allowed is at most "
            f"datasets.{name}.test.num_sequences, {test.num_sequences}"
        )
