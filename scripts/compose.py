"""Write params.yaml from a preset of conf/, as `dvc exp run -S preset=NAME` does before it runs."""

import argparse
from pathlib import Path

from dvc.utils.hydra import compose_and_dump

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Compose one preset, with settings on top of it."""
    presets = sorted(path.stem for path in (ROOT / "conf" / "preset").glob("*.yaml"))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("preset", choices=presets)
    parser.add_argument("override", nargs="*", help="such as report.success_threshold=0.9")
    parser.add_argument("--output", type=Path, default=ROOT / "params.yaml")
    chosen = parser.parse_args()
    overrides = [f"preset={chosen.preset}", *chosen.override]
    compose_and_dump(chosen.output, str(ROOT / "conf"), None, "config", str(ROOT), overrides)


if __name__ == "__main__":
    main()
