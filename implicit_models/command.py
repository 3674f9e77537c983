"""The console script ``implicit-models``: the commands of the repository that this stands in.

They need what no package has: dvc.yaml, presets, stages. Installed without those, this says so.
"""

import importlib
import sys


def main() -> None:
    """Run the command line of the repository's pipelines."""
    try:
        commands = importlib.import_module("pipelines.cli")
    except ModuleNotFoundError as error:
        if error.name not in ("pipelines", "pipelines.cli"):
            raise
        sys.exit(
            "error: implicit-models is installed as a library, which has no presets and stages to "
            "run; clone the repository, and there: make install && .venv/bin/implicit-models"
        )
    commands.main()
