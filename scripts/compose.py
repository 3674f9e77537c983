"""Write params.yaml from a preset of conf/, as `dvc exp run -S preset=NAME` does before it runs."""

import argparse
import sys
from pathlib import Path

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from implicit_models.files import write_whole
from implicit_models.parameters import ParameterError
from pipelines.composition import compose

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Compose one preset, with settings on top of it; what was there stays where that fails."""
    presets = sorted(path.stem for path in (ROOT / "conf" / "preset").glob("*.yaml"))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("preset", choices=presets)
    parser.add_argument("override", nargs="*", help="such as report.success_threshold=0.9")
    parser.add_argument("--output", type=Path, default=ROOT / "params.yaml")
    chosen = parser.parse_args()
    if any(override.startswith("preset=") for override in chosen.override):
        parser.error(f"one preset is composed, {chosen.preset}; name the other instead of it")
    try:
        content = compose(ROOT, [f"preset={chosen.preset}", *chosen.override])
        write_whole(chosen.output, content)
    except (HydraException, OmegaConfBaseException, ParameterError, ValueError, OSError) as error:
        sys.exit(f"error: {' '.join(str(error).split())}")


if __name__ == "__main__":
    main()
