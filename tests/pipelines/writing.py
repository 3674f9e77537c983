"""Writing params.yaml as commands do that then run something."""

from collections.abc import Sequence
from pathlib import Path

from pipelines.presets import parameters_for


def write_parameters(
    root: Path,
    preset: str | None = None,
    seeds: Sequence[int] = (),
) -> Path | None:
    """Write params.yaml; return where the old content is kept."""
    with parameters_for(root, preset, seeds) as kept:
        return kept
