"""Benchmark files on disk: the items of lm-eval's tasks, from local files or from the hub.

A folder holds ``TASK.jsonl`` for every task, one item a line under the names and types of the
fields that the harness's task definitions read in the hub's copies, and ``manifest.json``.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from implicit_models.bars import bar
from implicit_models.data.folders import written_whole
from implicit_models.data.manifests import read_manifest, write_manifest
from implicit_models.files import checksum
from implicit_models.problems.downstream.data.task_items import ItemError, hellaswag_item, to_item
from implicit_models.problems.downstream.parameters import TaskFilesParameters
from implicit_models.problems.downstream.tasks import TASKS

FORMAT_VERSION = 2
HUB = "hub"

_MANIFEST = "manifest.json"
_FILES = frozenset(f"{task}.jsonl" for task in TASKS)
_LINES_OF_ITEM = 6  # of HellaSwag's text: context, label, four endings


class TaskFileError(ValueError):
    """A benchmark's file is missing, damaged or not in a form that is known."""


def write_tasks(parameters: TaskFilesParameters, directory: Path) -> dict[str, Any]:
    """Write the items of every task asked for, each checked.

    Files appear under their names only when all are complete, the manifest last.

    Returns
    -------
    dict
        The manifest, as written.

    Raises
    ------
    TaskFileError
        Naming the file that is missing, or file and line of an item that is none: what was found
        and what is allowed.
    """
    with written_whole(Path(directory), _MANIFEST, _FILES.__contains__) as partial:
        tasks = {}
        wanted = tuple(parameters.tasks or TASKS)
        with bar(len(wanted), "tasks", "task") as counted:
            for task in wanted:
                is_on_hub = parameters.source == HUB
                items = _hub_items(task) if is_on_hub else _local_items(task, parameters)
                tasks[task] = _write_items(islice(items, parameters.limit), partial / _name(task))
                if not tasks[task]["num_items"]:
                    raise TaskFileError(
                        f"{task}: {parameters.source} holds no item of it; tasks may leave it out"
                    )
                counted.update()
        manifest = {"format_version": FORMAT_VERSION, "tasks": tasks}
        write_manifest(partial / _MANIFEST, manifest)
    return manifest


def open_tasks(directory: Path) -> Mapping[str, Path]:
    """Return the file of each task that `write_tasks` has written, after comparing its content.

    Raises
    ------
    TaskFileError
        Naming a file that is missing or whose content has changed.
    """
    directory = Path(directory)
    paths = {}
    for task, entry in _read_manifest(directory)["tasks"].items():
        path = directory / _name(task)
        try:
            digest = checksum(path)
        except FileNotFoundError:
            raise TaskFileError(f"{path}: no such file; {_again(directory)}") from None
        if digest != entry["sha256"]:
            raise TaskFileError(f"{path}: the content has changed; {_again(directory)}")
        paths[task] = path.resolve()
    return paths


def is_downloaded(task: str) -> bool:
    """Return whether a task's data set can be read from the cache of ``datasets``.

    Call it where the hub may not be asked: elsewhere this asks it.
    """
    import datasets  # takes a second

    source, verbosity = TASKS[task], datasets.logging.get_verbosity()
    datasets.logging.set_verbosity_error()
    try:
        datasets.load_dataset_builder(source.dataset, source.configuration)
    except Exception:  # of the hub, and of what another version of the library left there
        return False
    finally:
        datasets.logging.set_verbosity(verbosity)
    return True


def _name(task: str) -> str:
    return f"{task}.jsonl"


def _again(directory: Path) -> str:
    return f"`dvc repro prepare_tasks@{directory.name}` writes it"


def _write_items(items: Iterator[dict[str, Any]], path: Path) -> dict[str, Any]:
    digest, num_items = hashlib.sha256(), 0
    with path.open("wb") as file:
        for item in items:
            line = json.dumps(item, ensure_ascii=False).encode() + b"\n"
            file.write(line)
            digest.update(line)
            num_items += 1
    return {"num_items": num_items, "sha256": digest.hexdigest()}


def _read_manifest(directory: Path) -> dict[str, Any]:
    if not directory.is_dir():
        raise TaskFileError(f"{directory}: no such folder; {_again(directory)}")
    return read_manifest(
        directory / _MANIFEST,
        version=FORMAT_VERSION,
        what="set of tasks",
        again=_again(directory),
        error=TaskFileError,
    )


def _hub_items(task: str) -> Iterator[dict[str, Any]]:
    """Download a task's split; the same checks as for a file."""
    from datasets import load_dataset  # takes a second; local files do without

    source = TASKS[task]
    try:
        rows = load_dataset(source.dataset, source.configuration, split=source.split)
    except (OSError, ValueError, RuntimeError) as error:
        raise TaskFileError(
            f"{task}: {source.dataset} cannot be had from the hub ({error}); source may name a "
            "folder with the files"
        ) from None
    for number, row in enumerate(rows):
        place = f"{source.dataset}, row {number}"
        yield _checked(to_item, task, source.forms, row, number, place)


def _local_items(task: str, parameters: TaskFilesParameters) -> Iterator[dict[str, Any]]:
    paths = _find(task, parameters)
    if paths[0].suffix == ".txt" and task == "hellaswag":
        return _text_items(paths[0])
    labels = _labels(paths[1]) if len(paths) > 1 else None
    return _json_items(task, paths[0], labels)


def _find(task: str, parameters: TaskFilesParameters) -> list[Path]:
    """Find the files of a task, named or at their usual places."""
    root = Path(parameters.source)
    if not root.is_dir():
        raise TaskFileError(
            f"source = {parameters.source!r} is no folder; allowed is a folder with the tasks' "
            f"files, or {HUB!r}"
        )
    named = getattr(parameters.files, task)
    layouts = (named,) if named else ((_name(task),), *TASKS[task].layouts)
    for layout in layouts:
        paths = [root / name for name in layout]
        if paths[0].is_file():
            for path in paths[1:]:
                if not path.is_file():
                    raise TaskFileError(f"{path}: no such file; {task} needs it beside {paths[0]}")
            return paths
    looked_for = " or ".join(str(root / layout[0]) for layout in layouts)
    raise TaskFileError(
        f"{task}: there is no {looked_for}; files.{task} may name another, and tasks leave it out"
    )


def _json_items(task: str, path: Path, labels: list[int] | None) -> Iterator[dict[str, Any]]:
    number = 0
    for line, text in _lines(path):
        if not text.strip():
            continue
        try:
            row = json.loads(text)
        except ValueError as error:
            raise TaskFileError(
                f"{path}:{line}: is not valid JSON ({error}); allowed is an object with fields"
            ) from None
        if not isinstance(row, dict):
            raise TaskFileError(f"{path}:{line}: is {row!r}; allowed is an object with fields")
        if labels is not None:
            if number >= len(labels):
                raise TaskFileError(
                    f"{path}:{line}: has no label; there are {len(labels)} labels beside it; "
                    "allowed is one for each item"
                )
            row = row | {"label": labels[number]}
        yield _checked(to_item, task, TASKS[task].forms, row, number, f"{path}:{line}")
        number += 1
    if labels is not None and number < len(labels):
        raise TaskFileError(
            f"{path}: has {number} items, but {len(labels)} labels beside it; allowed is one for "
            "each"
        )


def _labels(path: Path) -> list[int]:
    labels = []
    for line, text in _lines(path):
        if text.strip() not in ("0", "1"):
            raise TaskFileError(f"{path}:{line}: is {text.strip()!r}; allowed is 0 or 1")
        labels.append(int(text))
    return labels


def _text_items(path: Path) -> Iterator[dict[str, Any]]:
    """Read HellaSwag's text: six lines for an item."""
    lines = list(_lines(path))
    if len(lines) % _LINES_OF_ITEM:
        raise TaskFileError(
            f"{path}: has {len(lines)} lines; an item has {_LINES_OF_ITEM}: context, label and "
            "four endings"
        )
    for start in range(0, len(lines), _LINES_OF_ITEM):
        context, label, *endings = (text for _, text in lines[start : start + _LINES_OF_ITEM])
        place = f"{path}:{start + 1}"
        yield _checked(hellaswag_item, context, label, endings, place)


def _checked(convert: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """Convert an item; its place, the last argument, goes in front of what is wrong with it."""
    *values, place = arguments
    try:
        return convert(*values)
    except ItemError as error:
        raise TaskFileError(f"{place}: {error}") from None


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a UTF-8 file, without line ends, after their numbers from 1."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                yield number, line.decode().rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise TaskFileError(
                    f"{path}:{number}: is not UTF-8 (byte {error.start + 1} of the line); convert "
                    "the file, for example with iconv -t utf-8"
                ) from None
