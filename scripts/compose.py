"""Write params.yaml from a preset of conf/, as `dvc exp run -S preset=NAME` does before it runs.

The whole preset is checked first, as by `python -m stages.check`: where there is a mistake in it,
every one is told and the params.yaml that was there stays. What is only missing on this machine,
such as a text, is told as well; it may come later. A params.yaml that git has not got is kept, and
a line says where; while a flow works with it, it stays.
"""

import argparse
import contextlib
import sys
from pathlib import Path

from implicit_models.files import write_whole
from implicit_models.parameters import ParameterError
from implicit_models.parameters.composition import compose, preset_and_settings
from pipelines.handing_over import MISTAKE, Parser, mistake
from pipelines.presets import kept_words, replace_parameters
from stages.check import check_text

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Compose one preset, with settings on top of it; what was there stays where that fails."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("preset", help="of conf/preset, without .yaml")
    parser.add_argument("override", nargs="*", help="such as report.success_threshold=0.9")
    parser.add_argument("--output", type=Path, default=ROOT / "params.yaml")
    chosen = parser.parse_args()
    try:
        preset, overrides = preset_and_settings([chosen.preset, *chosen.override])
        if preset is None:
            parser.error("no preset is named; `implicit-models presets` lists them")
        content = compose(ROOT, [f"preset={preset}", *overrides])
        with contextlib.chdir(ROOT):  # from where the files that it names are seen
            findings = check_text(content, f"conf/preset/{preset}.yaml")
        for finding in findings:
            print(f"{finding.level}: {finding.line}", file=sys.stderr)
        if any(finding.level == "error" for finding in findings):
            print(f"{chosen.output} is as it was", file=sys.stderr)
            sys.exit(MISTAKE)
        if chosen.output.resolve() != ROOT / "params.yaml":
            write_whole(chosen.output, content)
        elif kept := replace_parameters(ROOT, content):
            print(kept_words(ROOT, kept))
    except (ParameterError, ValueError, OSError) as error:
        sys.exit(mistake(error))


if __name__ == "__main__":
    main()
