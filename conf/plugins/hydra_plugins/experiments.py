"""What `dvc exp run -S ...` says of mistaken settings: a line for each, before it changes anything.

DVC composes params.yaml by Hydra, before anything of this repository runs, and shows the paragraphs
of Hydra's errors. Its one opening is `hydra.plugins_path` in .dvc/config: Hydra asks a search path
plugin before it composes. So this one composes and checks the same settings first, as the command
``implicit-models`` does, and raises an error with those lines, which DVC shows as one of its own.
DVC's warnings of outputs that no run has written yet, a line for each, are left out.
"""

import contextlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dvc.exceptions import DvcException
from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin

ROOT = Path(__file__).resolve().parents[3]
CHECKOUT = "dvc_data.index.checkout"  # who warns


class Experiments(SearchPathPlugin):
    """Refuse mistaken settings of `dvc exp run`; change no search path."""

    _asked = False

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Compose and check the settings of the command line, once a process.

        Raises
        ------
        DvcException
            If there is a mistake: what was found, and what is valid.
        """
        if Experiments._asked:  # composing asks again
            return
        Experiments._asked = True
        logging.getLogger(CHECKOUT).addFilter(_is_no_absence)
        for overrides in _points():
            if mistakes := _mistakes(overrides):
                lines = "\n".join(mistakes)
                raise DvcException(f"{lines}; nothing was changed")


def _is_no_absence(record: logging.LogRecord) -> bool:
    return "It won't be created" not in str(record.msg)


def _mistakes(overrides: list[str]) -> list[str]:
    """Return what is wrong with params.yaml as it would be."""
    with _repository():
        try:
            from implicit_models.parameters import ParameterError
            from implicit_models.parameters.composition import compose
            from stages.check import check_text
        except ImportError:  # DVC of another environment, which has Hydra alone
            return []
        try:
            content = compose(ROOT, overrides)
        except ParameterError as error:
            return [str(error)]
        found = check_text(content, " ".join(overrides) or "params.yaml")
    return [each.line for each in found if each.level == "error"]


@contextlib.contextmanager
def _repository() -> Iterator[None]:
    """Work in the repository, with its own modules."""
    sys.path.insert(0, str(ROOT))
    try:
        with contextlib.chdir(ROOT):
            yield
    finally:
        sys.path.remove(str(ROOT))


def _points() -> list[list[str]]:
    """Return the settings that `dvc exp run` was given for params.yaml, for each point."""
    from dvc.cli import parse_args
    from dvc.utils.cli_parse import to_path_overrides
    from dvc.utils.hydra import get_hydra_sweeps
    from hydra.errors import HydraException

    if Path(sys.argv[0]).name not in ("dvc", "__main__.py"):
        return []
    given: Any = parse_args(sys.argv[1:])
    overrides = to_path_overrides(getattr(given, "set_param", []))
    try:
        points = get_hydra_sweeps(overrides)
    except HydraException:  # no override at all, which composing says
        points = [overrides]
    return [point.get("params.yaml", []) for point in points]
