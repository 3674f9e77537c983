"""In which order `dvc repro` takes the stages of dvc.yaml: the number of the one that runs.

DVC walks the graph depth first, from each stage of dvc.yaml to what it depends on. The same walk is
made here on the text of dvc.yaml, since DVC itself takes a second to import.
"""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from implicit_models.parameters.structure import load_plain

_VALUE = re.compile(r"\$\{([\w.-]+)\}")


def stage_number(root: Path = Path()) -> tuple[int, int] | None:
    """Return the number of the stage that DVC runs here, from 1, and how many there are.

    None where DVC runs none, or one of another dvc.yaml.
    """
    name = os.environ.get("DVC_STAGE")
    if not name or not (root / "dvc.yaml").exists():
        return None
    content, parameters = (
        load_plain((root / file).read_bytes()) for file in ("dvc.yaml", "params.yaml")
    )
    names = stage_order(content, parameters)
    return (names.index(name) + 1, len(names)) if name in names else None


def stage_order(content: Mapping[str, Any], parameters: Mapping[str, Any]) -> list[str]:
    """Return the names of all stages in the order in which `dvc repro` takes them.

    Parameters
    ----------
    content
        Of dvc.yaml.
    parameters
        Of params.yaml.
    """
    stages = dict(_stages(content, parameters))
    writers: dict[str, str] = {}
    inside: dict[str, list[str]] = {}  # a folder: who writes something in it
    for name, (_, outs) in stages.items():
        for out in map(PurePosixPath, outs):
            writers[str(out)] = name
            for folder in out.parents:
                inside.setdefault(str(folder), []).append(name)
    order: dict[str, None] = {}

    def walk(name: str) -> None:
        if name in order:
            return
        for dep in map(PurePosixPath, stages[name][0]):
            around = [str(each) for each in (*reversed(dep.parents), dep)]
            found = [writers[each] for each in around if each in writers]
            for writer in (*found, *inside.get(str(dep), ())):
                if writer != name:
                    walk(writer)
        order[name] = None

    for name in stages:
        walk(name)
    return list(order)


def _stages(
    content: Mapping[str, Any], parameters: Mapping[str, Any]
) -> Iterator[tuple[str, tuple[list[str], list[str]]]]:
    """Yield the name of each stage, and the paths that it reads and writes."""
    for name, stage in content["stages"].items():
        if "foreach" not in stage:
            yield name, _paths(stage, {})
            continue
        entries = _look_up(_VALUE.fullmatch(stage["foreach"]), parameters)
        for key, item in (entries or {}).items():
            template = stage["do"]
            values = {"key": key, "item": item}
            for own in template.get("vars", ()):
                values |= own
            yield f"{name}@{key}", _paths(template, values)


def _paths(stage: Mapping[str, Any], values: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    def filled(*keys: str) -> list[str]:
        listed = [each for key in keys for each in stage.get(key, ())]
        paths = [next(iter(each)) if isinstance(each, Mapping) else each for each in listed]
        return [_VALUE.sub(lambda found: str(_look_up(found, values)), path) for path in paths]

    return filled("deps"), filled("outs", "metrics", "plots")


def _look_up(found: re.Match[str] | None, values: Mapping[str, Any]) -> Any:
    assert found is not None
    value: Any = values
    for part in found[1].split("."):
        value = value[part]
    return value
