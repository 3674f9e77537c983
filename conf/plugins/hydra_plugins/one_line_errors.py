"""What `dvc exp run -S ...` says of settings that cannot be composed: one line of ours.

DVC composes params.yaml by Hydra, before anything of this repository runs, and shows the paragraphs
of Hydra's errors. Its one opening is `hydra.plugins_path` in .dvc/config: Hydra asks a search path
plugin before it composes. So this one composes the same settings first, as the command
``implicit-models`` does, and raises the error of that, which DVC shows as one of its own.
"""

import sys
from pathlib import Path
from typing import Any

from dvc.exceptions import DvcException
from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin

ROOT = Path(__file__).resolve().parents[3]


class OneLineErrors(SearchPathPlugin):
    """Refuse the settings of `dvc exp run` where they cannot be composed; change no search path."""

    _asked = False

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Compose the settings of the command line, once a process.

        Raises
        ------
        DvcException
            If they cannot be composed: what was found, and the closest that is valid.
        """
        if OneLineErrors._asked:  # composing asks again
            return
        OneLineErrors._asked = True
        try:
            from implicit_models.parameters import ParameterError
            from implicit_models.parameters.composition import compose
        except ImportError:  # DVC of another environment, which has Hydra alone
            return
        for overrides in _points():
            try:
                compose(ROOT, overrides)
            except ParameterError as error:
                raise DvcException(f"{error}; nothing was changed") from None


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
