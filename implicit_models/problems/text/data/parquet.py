"""Tables in parquet files: their row groups, and their rows as mappings."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet

from implicit_models.problems.text.data.documents import UnusableError, look_up
from implicit_models.problems.text.data.shards import CorpusError

_BATCH_ROWS = 256


def row_group_sizes(path: Path, text_field: str, domain_field: str | None) -> list[int]:
    """Estimate the bytes of text in each row group, after checking that the fields exist.

    Raises
    ------
    CorpusError
        If the file is damaged, or lacks a field.
    """
    with _opened(path) as file:
        schema = file.schema_arrow
        column = _column(schema, path, text_field, "text_field")
        if domain_field is not None:
            _column(schema, path, domain_field, "domain_field")
        sizes = []
        for group in range(file.metadata.num_row_groups):
            chunks = file.metadata.row_group(group)
            parts = [chunks.column(index) for index in range(chunks.num_columns)]
            own = [p for p in parts if f"{p.path_in_schema}.".startswith(f"{column}.")]
            sizes.append(sum(part.total_uncompressed_size for part in own))
        return sizes


def read_rows(
    path: Path, start: int, stop: int, *, after: int, text_field: str, domain_field: str | None
) -> Iterator[tuple[int, dict[str, Any] | UnusableError]]:
    """Read rows of the row groups from ``start`` to ``stop``, each with its number from 1.

    In the place of a row that is not UTF-8 stands the error that says so.

    Parameters
    ----------
    after
        How many rows are passed over.
    text_field, domain_field
        The columns that are read, or the fields in them.

    Raises
    ------
    CorpusError
        If the file is damaged, or lacks a field.
    """
    with _opened(path) as file:
        schema = file.schema_arrow
        columns = [_column(schema, path, text_field, "text_field")]
        if domain_field is not None:
            columns.append(_column(schema, path, domain_field, "domain_field"))
        number = 0
        for batch in file.iter_batches(_BATCH_ROWS, range(start, stop), sorted(set(columns))):
            if number + batch.num_rows > after:
                kept = max(0, after - number)
                yield from enumerate(_rows(batch.slice(kept)), number + kept + 1)
            number += batch.num_rows


def _rows(batch: pyarrow.RecordBatch) -> list[Any]:
    """Return rows as mappings; one by one where not all of them can be decoded."""
    try:
        return batch.to_pylist()
    except UnicodeDecodeError as error:
        if batch.num_rows > 1:
            return [row for index in range(batch.num_rows) for row in _rows(batch.slice(index, 1))]
        wrong = f"byte {error.start} is 0x{error.object[error.start]:02x} ({error.reason})"
        return [UnusableError(f"a field of the row is not UTF-8: {wrong}; mend the row")]


def num_rows_before(path: Path, row_group: int) -> int:
    """Count the rows of the row groups before one."""
    with _opened(path) as file:
        return sum(file.metadata.row_group(group).num_rows for group in range(row_group))


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[parquet.ParquetFile]:
    try:
        with parquet.ParquetFile(path) as file:
            yield file
    except CorpusError:
        raise
    except (pyarrow.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())
        raise CorpusError(
            f"{path}: is damaged, or no parquet file ({reason}); fetch it again"
        ) from None


def _column(schema: pyarrow.Schema, path: Path, field: str, key: str) -> str:
    """Find the column that a field is, or is in."""
    fields: dict[str, Any] = {column.name: _nested(column.type) for column in schema}
    try:
        look_up(fields, field, key)
    except CorpusError as error:
        raise CorpusError(f"{path}: {error}") from None
    return field if field in fields else field.split(".")[0]


def _nested(kind: pyarrow.DataType) -> Any:
    if not pyarrow.types.is_struct(kind):
        return kind
    return {field.name: _nested(field.type) for field in kind.fields}
