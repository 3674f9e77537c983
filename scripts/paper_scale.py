"""Write what presets at the paper's scale are planned to take into docs/figures.md.

    python scripts/paper_scale.py

Such a preset's name begins with ``pile_`` or ends with ``_paper``. Nothing of the table is written
by hand, and `tests/test_paper_scale.py` fails where it is not what this writes.
"""

import argparse
import contextlib
import re
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from implicit_models.files import write_whole  # noqa: E402
from implicit_models.parameters.composition import presets  # noqa: E402
from stages.plan import make_plan  # noqa: E402

PAGE = ROOT / "docs" / "figures.md"
GPUS = 8

TABLE = re.compile("(<!-- paper scale -->\n).*?(<!-- end of paper scale -->)", re.DOTALL)
_HEAD = """\
| preset | trainings | training FLOPs | H100 hours | at most |
|---|--:|--:|--:|--:|
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the table."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args(arguments)
    rows = "".join(f"{row(preset)}\n" for preset in of_the_paper(presets(ROOT)))
    page = PAGE.read_text(encoding="utf-8")
    write_whole(PAGE, TABLE.sub(rf"\g<1>{_HEAD}{rows}\g<2>", page))


def of_the_paper(names: Sequence[str]) -> list[str]:
    """Return the presets at the paper's scale."""
    return [name for name in names if name.startswith("pile_") or name.endswith("_paper")]


def row(preset: str) -> str:
    """Return the line of a preset."""
    from stages.plan_text import gpu_hours

    with contextlib.chdir(ROOT):
        plan = make_plan([preset, f"gpus={GPUS}"])
    flops = sum(phase.plan.flops for phase in plan.phases)
    entries = {phase.entry for phase in plan.phases}
    expected, most = (_rounded(hours) for hours in gpu_hours(plan.phases, plan.options))
    return f"| `{preset}` | {len(entries)} | {flops:.1e} | {expected} | {most} |"


def _rounded(hours: float) -> str:
    return f"{float(f'{hours:.2g}'):,.{1 if hours < 9.95 else 0}f}"


if __name__ == "__main__":
    main()
