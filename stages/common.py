"""What all stages share: the command line, the entry's data set, and how files are written."""

import argparse
import csv
import difflib
import io
import json
import logging
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

from implicit_models.display import displayed, is_first_process
from implicit_models.files import write_whole
from implicit_models.parameters import (
    MissingKeyError,
    ParameterError,
    changed_since_read,
    forget_read,
    read_content,
    read_section,
)
from implicit_models.parameters.errors import similar_name
from implicit_models.problems import problem
from implicit_models.problems.table import TABLES as DEFAULT_KINDS
from stages.command_line import Parser
from stages.order import stage_number
from stages.recorded_code import check_noted_code

PARAMETERS = Path("params.yaml")
RESULTS = Path("results")
TABLES = ("runs", "upcycled", "baselines", "matched")  # of models; the first two are implicit
DATA_TABLES = ("datasets", "corpora", "hub_corpora")  # of what they learn


@dataclass(frozen=True, kw_only=True)
class Data:
    """An entry of a table of data.

    Attributes
    ----------
    kind
        Of the problem.
    parameters
        The entry.
    """

    table: str
    name: str
    kind: str
    parameters: Any

    @property
    def key(self) -> str:
        """Where the entry stands in params.yaml."""
        return f"{self.table}.{self.name}"

    @property
    def folder(self) -> Path:
        """Where its files are."""
        return Path("data", self.name)


class RefusedError(ParameterError):
    """Nothing runs with these parameters; each line says one reason."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.lines = list(lines)
        super().__init__(" / ".join(lines))


def run_stage(main: FunctionType, *tables: str) -> None:
    """Run a stage on the entry that the command line names.

    A user's mistake is one line on stderr and exit status 2; anything else that goes wrong is a
    fault of the program and keeps its traceback. Of the processes of torchrun the first one prints
    the line; the others leave theirs to torchrun's summary, in which it names the one that failed
    first.

    Parameters
    ----------
    main
        The stage; its one argument is the name of an entry.
    tables
        The tables of params.yaml in which entries are looked for; none for a stage of the whole
        project, whose argument is then empty.

    Notes
    -----
    A name that the command line does not give is that of the stage that DVC runs: commands in
    dvc.yaml hold none, so that no shell ever reads one.
    """
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    for package in ("implicit_models", "stages"):
        logging.getLogger(package).setLevel(logging.INFO if is_first_process() else logging.WARNING)
    module = main.__globals__["__spec__"].name
    parser = Parser(prog=f"python -m {module}", description=main.__globals__["__doc__"])
    if tables:
        _add_name(parser, tables)
    try:
        name = getattr(parser.parse_args(), "name", "")
        read_content()  # which refuses names that are no names of folders
        for root in ("data", "models", "checkpoints", RESULTS / "runs") if name else ():
            own_folder(root, name)
        forget_read()
        check_noted_code()
        if (number := stage_number()) is not None:
            logging.getLogger(__name__).info("stage %d of %d", *number)
        with displayed():
            main(name)
        if changed := changed_since_read(PARAMETERS):
            raise ParameterError(
                f"{PARAMETERS}: {changed} has changed while the stage ran; DVC would take what it "
                "has written for that of the new value. Run it again"
            )
    except KeyboardInterrupt:
        _say("interrupted; started again it goes on from what it has kept")
        sys.exit(130)
    except Exception as error:
        if not _is_users_mistake(error):
            raise
        lines = error.lines if isinstance(error, RefusedError) else [_message(error)]
        _say("\n".join(f"error: {line}" for line in lines))
        sys.exit(2)


def read_entries(table: str, path: Path = PARAMETERS) -> dict[str, dict[str, Any]]:
    """Read a table as it is; one that is not there is empty, but runs and baselines must be."""
    try:
        return read_section(table, dict[str, Any], path)
    except MissingKeyError:
        if table in ("runs", "baselines"):
            raise
        return {}


def run_table(name: str) -> str:
    """Return in which table an implicit model is, or should be: ``runs`` or ``upcycled``."""
    return "upcycled" if name in read_entries("upcycled") else "runs"


def read_own(section: str, table: str, name: str, path: Path = PARAMETERS) -> Any:
    """Return what an entry says itself of ``evaluation`` or ``sweep``; None where it says none."""
    return read_section(f"{table}.{name}", dict[str, Any], path).get(section)


def find_table(name: str, tables: Sequence[str], path: Path = PARAMETERS) -> str:
    """Return in which table an entry is.

    Raises
    ------
    ParameterError
        Where it is in none or in several, with the closest name there is.
    """
    names = {table: list(read_entries(table, path)) for table in tables}
    found = [table for table in names if name in names[table]]
    if len(found) > 1:
        raise ParameterError(
            f"{name} is an entry of both {' and '.join(found)}; rename one of them"
        )
    if not found:
        valid = [other for table in names.values() for other in table]
        closest = difflib.get_close_matches(name, valid, n=1, cutoff=0.0)
        raise ParameterError(
            f"{path}: {name or 'an empty name'} is no entry of {', '.join(tables)}; the closest is "
            f"{', '.join(closest)} (valid: {', '.join(valid)})"
        )
    return found[0]


def owner(model: str, path: Path = PARAMETERS) -> tuple[str, str] | None:
    """Return table and name of the entry whose final model a folder is; None for others."""
    parts = Path(model).parts
    if len(parts) == 3 and (parts[0], parts[2]) == ("models", "final"):
        for table in TABLES:
            if parts[1] in read_entries(table, path):
                return table, parts[1]
    return None


def read_data(table: str, name: str, path: Path = PARAMETERS) -> Data:
    """Read an entry of a table of data, as its kind of problem has it."""
    section = read_section(f"{table}.{name}", dict[str, Any], path)
    kinds = problem.kinds_of(table)
    kind = section.get("kind", DEFAULT_KINDS[table])
    if kind not in kinds:
        found = "is missing" if kind is None else f"= {kind!r} is not allowed"
        message = f"{path}: {table}.{name}.kind {found}; allowed is one of {', '.join(kinds)}"
        if similar := isinstance(kind, str) and similar_name(kind, kinds):
            message += f"; the closest is {similar!r}"
        elif kind is not None:
            message += "; a new one has a line of implicit_models/problems/table.py"
        raise ParameterError(message)
    schema = problem.parameters_of(kind).SCHEMAS[table]
    parameters = read_section(f"{table}.{name}", schema, path)
    return Data(table=table, name=name, kind=kind, parameters=parameters)


def read_dataset(table: str, name: str, path: Path = PARAMETERS) -> Data:
    """Read the data that an entry of a table of models names."""
    key = f"{table}.{name}.dataset"
    dataset = read_section(key, str, path)
    try:
        data_table = find_table(dataset, DATA_TABLES, path)
    except ParameterError as error:
        raise ParameterError(f"{key} = {dataset!r} is not allowed: {error}") from None
    return read_data(data_table, dataset, path)


def read_part(section: str, kind: str, path: Path = PARAMETERS) -> Any:
    """Read the part of ``evaluation`` or ``sweep`` that is about a kind of problem.

    Raises
    ------
    ParameterError
        Where params.yaml has no such part.
    """
    found = getattr(read_section(section, problem.section_schema(section), path), kind)
    if found is None:
        raise ParameterError(
            f"{path}: {section}.{kind} is missing; a model of this kind of data is tested as "
            "it says: add it"
        )
    return found


def read_tests(section: str, table: str, name: str, data: Data, path: Path = PARAMETERS) -> Any:
    """Read how a model is tested: the part of its kind of problem, or what its entry has instead.

    Each key of the entry's own ``evaluation`` or ``sweep`` takes the place of the common one.

    Raises
    ------
    ParameterError
        Where both together are not what is allowed, or there is neither.
    """
    own = read_own(section, table, name, path)
    if own is None:
        return read_part(section, data.kind, path)
    key = f"{path}: {tests_key(section, table, name, data, path)}"
    schema = getattr(problem.parameters_of(data.kind), section.upper())
    if not isinstance(own, Mapping):
        raise ParameterError(
            f"{key} = {own!r} is not a section; allowed is a section with "
            f"{', '.join(schema.model_fields)}"
        )
    content = read_content(path).get(section)
    has_common = isinstance(content, Mapping) and content.get(data.kind) is not None
    common = dict(read_part(section, data.kind, path)) if has_common else {}
    with naming(key):
        return schema(**{**common, **own})


def tests_key(section: str, table: str, name: str, data: Data, path: Path = PARAMETERS) -> str:
    """Return where it stands how a model is tested: in its entry, or in the common section."""
    is_own = read_own(section, table, name, path) is not None
    return f"{table}.{name}.{section}" if is_own else f"{section}.{data.kind}"


@contextmanager
def naming(section: str) -> Iterator[None]:
    """Put a section's dotted path before the key that a ParameterError names."""
    try:
        yield
    except ParameterError as error:
        raise error.inside(section) from None


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write metrics."""
    write_text(path, json.dumps(content, indent=2, sort_keys=True, allow_nan=False) + "\n")


def write_csv(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows under the union of their columns, blank where a row has no value."""
    rows = list(rows)
    columns = dict.fromkeys(column for row in rows for column in row)
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())


def write_text(path: Path, text: str) -> None:
    """Write a file that appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text)


def own_folder(root: str | Path, name: str) -> Path:
    """Return the folder of an entry, ``root/name``, which its stage may empty.

    Raises
    ------
    ParameterError
        Where it, or a folder in it, leads elsewhere: what lies there is not the stage's to remove.
    """
    folder = Path(root, name)
    inner = (Path(place, each) for place, folders, _ in os.walk(folder) for each in folders)
    for each in (folder, *inner):
        found = each.resolve()
        if found != Path(root).resolve() / each.relative_to(root):
            raise ParameterError(
                f"{each} leads to {found}, whose content would be replaced; allowed is a folder of "
                "its own: remove the link"
            )
    return folder


def _add_name(parser: argparse.ArgumentParser, tables: Sequence[str]) -> None:
    _, is_of_entry, given = os.environ.get("DVC_STAGE", "").rpartition("@")
    what = f"an entry of {' or '.join(tables)} in params.yaml"
    if is_of_entry:
        parser.add_argument("name", nargs="?", default=given, help=f"{what} (default: {given})")
    else:
        parser.add_argument("name", help=what)


def _say(line: str) -> None:
    """Print a last line, or leave it to torchrun where another process prints it."""
    summary = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if summary and not is_first_process():
        content = {"message": line, "timestamp": int(time.time())}
        write_whole(Path(summary), json.dumps(content))
    else:
        print(line, file=sys.stderr)


def _is_users_mistake(error: Exception) -> bool:
    """Return whether it comes from files or a diverging training, or is our own type of error."""
    ours = type(error).__module__.startswith(("implicit_models.", "stages."))
    return ours or isinstance(error, OSError | FloatingPointError)


def _message(error: Exception) -> str:
    if type(error) is FileNotFoundError:
        return f"{error}; `dvc repro` makes what stages read"
    return " ".join(str(error).split())
