"""What the results in a repository were made with, by DVC's record of it, dvc.lock."""

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

ROOT = Path(__file__).parents[1]


def why_outdated(folder: Path) -> str | None:
    """Return in words that results are of other parameters than params.yaml has now.

    None where every stage that has run did so with these, and where there is no record.
    """
    lock = folder / "dvc.lock"
    if not lock.is_file():
        return None
    try:
        recorded, parameters = _read(lock)["stages"], _read(folder / "params.yaml")
        for stage in _stages(parameters):
            ran_with = recorded.get(stage, {}).get("params", {}).get("params.yaml", {})
            for key, value in ran_with.items():
                if _at(parameters, key) != value:
                    return (
                        f"{stage} ran with another {key} than {folder / 'params.yaml'} has now; "
                        "`dvc repro` there brings the results up to date"
                    )
    except (yaml.YAMLError, OmegaConfBaseException, KeyError, TypeError, AttributeError) as error:
        return f"{lock} cannot be read: {error}; `dvc repro` there tells more"
    return None


def _stages(parameters: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of the stages that leave results of the entries of params.yaml."""
    for stage, content in _read(ROOT / "dvc.yaml")["stages"].items():
        if "foreach" in content:
            table = content["foreach"].removeprefix("${").removesuffix("}")
            yield from (f"{stage}@{name}" for name in parameters.get(table) or ())
        elif stage != "code":  # which runs before all others
            yield stage


def _at(parameters: Mapping[str, Any], key: str) -> Any:
    return functools.reduce(lambda node, name: (node or {}).get(name), key.split("."), parameters)


def _read(path: Path) -> Any:
    return OmegaConf.to_container(OmegaConf.load(path))
