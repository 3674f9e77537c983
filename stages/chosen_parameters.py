"""The parameters that a command is about: a preset, or params.yaml, with settings on top of it."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from implicit_models.parameters import ParameterError, read_section
from implicit_models.parameters.composition import CONFIGURATION, compose


def write_parameters(preset: str | None, overrides: Sequence[str], path: Path) -> str:
    """Write chosen parameters into a file of one's own, and return what they come from.

    Raises
    ------
    ParameterError
        Where there is no such preset, or no such setting in it.
    """
    if preset is not None:
        path.write_text(compose(Path(), [f"preset={preset}", *overrides]), encoding="utf-8")
        return f"{CONFIGURATION}/preset/{preset}.yaml"
    source = Path("params.yaml")
    if not source.exists():
        raise ParameterError(f"{source}: no such file; go to the repository's folder")
    shutil.copy(source, path)
    if overrides:
        _change(source, path, overrides)
    return str(source)


def _change(source: Path, path: Path, overrides: Sequence[str]) -> None:
    from dvc.exceptions import DvcException
    from dvc.utils.hydra import apply_overrides

    anything: Any = Any
    for override in overrides:
        key = override.partition("=")[0]
        if not key.startswith("+"):  # by which a key is added
            read_section(key.removeprefix("~"), anything, source)  # says what is not there
    try:
        apply_overrides(path, list(overrides))
    except DvcException as error:
        said = str(error.__cause__ or error).strip().splitlines()[0]
        raise ParameterError(f"{' '.join(overrides)}: cannot be composed: {said}") from None
