"""Draw docs/images/sliding_window.svg: how a window slides over the tokens while it searches.

python scripts/draw_window.py
"""

from collections.abc import Iterator
from pathlib import Path

FILE = Path(__file__).parents[1] / "docs" / "images" / "sliding_window.svg"

TOKENS, WIDTH = 12, 4
SETTLED = (0, 2, 5, 8, 12)  # of the tokens, from one row to the next
RESIDUALS = (0.25, 0.5, 0.75, 0.95)  # of the tokens in the window, as parts of a square
SIDE, STEP, ROW = 38, 44, 74
LEFT, TOP = 88, 96

# Letters stand on the picture's own ground, so that it is readable whatever page it is on.
STYLE = """
  .ground { fill: #ffffff } text { fill: #1f2328; font: 21px system-ui, sans-serif }
  .settled { fill: #2f6fb3 } .iterating { fill: #fbe3c8; stroke: #d9771b; stroke-width: 2 }
  .residual { fill: #d9771b } .waiting { fill: none; stroke: #9aa3ad; stroke-width: 2 }
  .window { fill: none; stroke: #1f2328; stroke-width: 3 }
  .line { fill: none; stroke: #1f2328; stroke-width: 2.5 } .head { fill: #1f2328 }
  @media (prefers-color-scheme: dark) {
    .ground { fill: #14181d } text, .head { fill: #e6edf3 } .window, .line { stroke: #e6edf3 }
    .settled { fill: #5b9bdf } .iterating { fill: #3d2a16; stroke: #f0a35e }
    .residual { fill: #f0a35e } .waiting { stroke: #66707b }
  }"""

DESCRIPTION = (
    "Twelve tokens at five moments, one below the other. Tokens on the left are settled and hand "
    "their carry on; four tokens in a window iterate, their residuals shrinking from right to "
    "left; tokens on the right wait. From moment to moment the window moves to the right, until "
    "all tokens are settled."
)


def picture() -> str:
    """Return the picture."""
    width, height = LEFT + TOKENS * STEP + 26, TOP + len(SETTLED) * ROW + 132
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        "<title>A window slides over the tokens</title>",
        f"<desc>{DESCRIPTION}</desc>",
        f"<style>{STYLE}\n</style>",
        f'<rect class="ground" width="{width}" height="{height}" rx="12"/>',
        *_arrow(f"M{LEFT} 62 H{width - 34}", f"{width - 20},62 {width - 36},55 {width - 36},69"),
        _text(LEFT, 44, "tokens of a text"),
        *_arrow(
            f"M52 {TOP} V{height - 158}", f"52,{height - 144} 45,{height - 160} 59,{height - 160}"
        ),
        _text(30, height - 300, "evaluations of the cell", turned=True),
    ]
    for row, settled in enumerate(SETTLED):
        parts += _moment(TOP + row * ROW, settled)
    parts += _legend(height - 106)
    return "\n".join([*parts, "</svg>", ""])


def _moment(y: int, settled: int) -> Iterator[str]:
    end = min(settled + WIDTH, TOKENS)
    for token in range(TOKENS):
        x = LEFT + token * STEP
        kind = "settled" if token < settled else "iterating" if token < end else "waiting"
        yield _square(x, y, kind, RESIDUALS[token - settled] if kind == "iterating" else 0)
    if settled < end:
        x, length = LEFT + settled * STEP - 3, (end - settled) * STEP
        size = f'width="{length}" height="{SIDE + 8}"'
        yield f'<rect class="window" x="{x}" y="{y - 4}" {size} rx="8"/>'
    if 0 < settled < TOKENS:  # the carry, from the last that has settled into the window
        x = LEFT + settled * STEP
        yield from _arrow(
            f"M{x - 25} {y + SIDE + 2} q0 16 16 16 h12 q14 0 15 -10",
            f"{x + 19},{y + SIDE + 7} {x + 11},{y + SIDE + 13} {x + 25},{y + SIDE + 15}",
        )


def _legend(y: int) -> Iterator[str]:
    middle = LEFT + 6 * STEP - 14
    yield _square(30, y, "settled")
    yield _text(80, y + 27, "settled: no more work")
    yield _square(30, y + 50, "waiting")
    yield _text(80, y + 77, "waits for the window")
    yield _square(middle, y, "iterating", 0.5)
    yield _text(middle + 50, y + 27, "iterates; its residual")
    yield from _arrow(
        f"M{middle} {y + 68} h26",
        f"{middle + 38},{y + 68} {middle + 24},{y + 61} {middle + 24},{y + 75}",
    )
    yield _text(middle + 50, y + 77, "the carry, handed on")


def _square(x: int, y: int, kind: str, residual: float = 0) -> str:
    square = f'<rect class="{kind}" x="{x}" y="{y}" width="{SIDE}" height="{SIDE}" rx="5"/>'
    if not residual:
        return square
    bar = round(residual * (SIDE - 10))
    y += SIDE - 5 - bar
    return f'{square}<rect class="residual" x="{x + 8}" y="{y}" width="22" height="{bar}"/>'


def _arrow(path: str, head: str) -> list[str]:
    return [f'<path class="line" d="{path}"/>', f'<polygon class="head" points="{head}"/>']


def _text(x: int, y: int, text: str, *, turned: bool = False) -> str:
    turn = f' transform="rotate(-90 {x} {y})" text-anchor="middle"' if turned else ""
    return f'<text x="{x}" y="{y}"{turn}>{text}</text>'


if __name__ == "__main__":
    FILE.write_text(picture(), encoding="utf-8")
