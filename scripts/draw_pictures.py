"""Draw the pictures of docs/concepts.md, in docs/images: cell, phases, sliding window.

python scripts/draw_pictures.py
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "docs" / "images"

TOKENS, WIDTH = 12, 4
SETTLED = (0, 2, 5, 8, 12)  # of the tokens, from one row to the next
RESIDUALS = (0.25, 0.5, 0.75, 0.95)  # of the tokens in the window, as parts of a square
SIDE, STEP, ROW = 38, 44, 74
LEFT, TOP = 88, 96

# Letters stand on the picture's own ground, so that it is readable whatever page it is on.
STYLE = """
  .ground { fill: #ffffff } text { fill: #1f2328; font: 21px system-ui, sans-serif }
  .middle { text-anchor: middle } .layer { fill: #dce8f5; stroke: #2f6fb3; stroke-width: 2 }
  .kept { fill: #fbe3c8; stroke: #d9771b; stroke-width: 2 }
  .settled { fill: #2f6fb3 } .iterating { fill: #fbe3c8; stroke: #d9771b; stroke-width: 2 }
  .residual { fill: #d9771b } .waiting { fill: none; stroke: #9aa3ad; stroke-width: 2 }
  .window { fill: none; stroke: #1f2328; stroke-width: 3 }
  .line { fill: none; stroke: #1f2328; stroke-width: 2.5 } .head { fill: #1f2328 }
  @media (prefers-color-scheme: dark) {
    .ground { fill: #14181d } text, .head { fill: #e6edf3 } .window, .line { stroke: #e6edf3 }
    .settled { fill: #5b9bdf } .iterating { fill: #3d2a16; stroke: #f0a35e }
    .residual { fill: #f0a35e } .waiting { stroke: #66707b }
    .layer { fill: #16293c; stroke: #5b9bdf } .kept { fill: #3d2a16; stroke: #f0a35e }
  }"""

DESCRIPTION = (
    "Twelve tokens at five moments, one below the other. Tokens on the left are settled and hand "
    "their carry on; four tokens in a window iterate, their residuals shrinking from right to "
    "left; tokens on the right wait. From moment to moment the window moves to the right, until "
    "all tokens are settled."
)


def pictures() -> dict[Path, str]:
    """Return each picture, by its file."""
    drawn = {"sliding_window": window(), "cell": cell(), "phases": phases()}
    return {FOLDER / f"{name}.svg": picture for name, picture in drawn.items()}


def cell() -> str:
    """Draw an explicit model beside an implicit one: layers once, or a cell again and again."""
    parts = [_text(140, 42, "explicit: once", middle=True), *_up(140, 78, 24)]
    for y in (78, 154, 230, 306):
        parts += [_box("layer", 50, y, 180, 46, "layer"), *_up(140, y + 76, 30)]
    parts += [_text(140, 424, "embeddings x", middle=True), _line("M140 382 V404")]
    parts += [_text(500, 42, "implicit: until z stays", middle=True), *_up(500, 154, 100)]
    for y in (154, 230):
        parts += [_box("layer", 410, y, 180, 46, "layer")]
    parts += _up(500, 230, 30)
    # From the output back to the input: another evaluation.
    parts += _arrow("M500 110 H668 V330 H500 V290", "500,276 493,292 507,292")
    parts += [_text(696, 220, "z = f(z, x)", turned=True)]
    # The injection, into each layer.
    parts += [_text(500, 424, "embeddings x", middle=True)]
    parts += [_line("M430 404 V376 H340 V177")]
    for y in (177, 253):
        parts += _arrow(f"M340 {y} H396", f"410,{y} 394,{y - 7} 394,{y + 7}")
    parts += [_text(326, 290, "injection", turned=True), _text(514, 358, "z, at first 0")]
    description = (
        "On the left four layers, one on top of the other, which the embeddings go through once. "
        "On the right two layers: their output z goes back to their input, again and again, and "
        "the embeddings are injected into each of them every time."
    )
    return _svg(728, 450, "An explicit and an implicit model", description, parts)


def phases() -> str:
    """Draw which evaluations of the cell a training step keeps for its backward pass."""
    rows = (
        ("bounded", "", ("kept",) * 4, "gradient through all"),
        ("free", "search", ("waiting",) * 8 + ("kept",) * 3, "phantom gradient"),
    )
    parts: list[str] = []
    for row, (name, searched, kinds, gradient) in enumerate(rows):
        y = 48 + row * 150
        first_kept = kinds.index("kept")
        parts += [_text(28, y + 30, name)]
        for index, kind in enumerate(kinds):
            x = 140 + index * 52
            parts += [_box(kind, x, y, 36, 44, "f")]
            if index:
                parts += [_line(f"M{x - 16} {y + 22} h16")]
        parts += [_text(140, y - 14, searched)] if searched else []
        start, end = 140 + first_kept * 52, 140 + len(kinds) * 52 - 16
        line = f"M{end} {y + 60} H{start + 14}"
        parts += _arrow(line, f"{start},{y + 60} {start + 16},{y + 53} {start + 16},{y + 67}")
        parts += [_text((start + end) // 2, y + 92, gradient, middle=True)]
    parts += [_square(28, 318, "waiting"), _text(80, 345, "evaluated, and forgotten")]
    parts += [_square(390, 318, "kept"), _text(442, 345, "kept for the gradient")]
    description = (
        "Two rows of evaluations of the cell. In the bounded phase there are four, and the "
        "gradient goes back through all of them. In the free phase a search of eight leaves "
        "nothing behind; three more follow, and the gradient goes back through these alone."
    )
    return _svg(728, 378, "The two phases of a training", description, parts)


def window() -> str:
    """Draw a window that slides over the tokens."""
    width, height = LEFT + TOKENS * STEP + 26, TOP + len(SETTLED) * ROW + 132
    parts = [
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
    return _svg(width, height, "A window slides over the tokens", DESCRIPTION, parts)


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


def _svg(width: int, height: int, title: str, description: str, parts: Iterable[str]) -> str:
    """Return a whole picture, on a ground of its own."""
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        f"<title>{title}</title>",
        f"<desc>{description}</desc>",
        f"<style>{STYLE}\n</style>",
        f'<rect class="ground" width="{width}" height="{height}" rx="12"/>',
        *parts,
    ]
    return "\n".join([*lines, "</svg>", ""])


def _box(kind: str, x: int, y: int, width: int, height: int, text: str) -> str:
    box = f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="6"/>'
    return box + _text(x + width // 2, y + height // 2 + 7, text, middle=True)


def _up(x: int, y: int, length: int) -> list[str]:
    """Draw an arrow that ends above where it begins."""
    end = y - length
    return _arrow(f"M{x} {y} V{end + 14}", f"{x},{end} {x - 7},{end + 16} {x + 7},{end + 16}")


def _line(path: str) -> str:
    return f'<path class="line" d="{path}"/>'


def _arrow(path: str, head: str) -> list[str]:
    return [_line(path), f'<polygon class="head" points="{head}"/>']


def _text(x: int, y: int, text: str, *, turned: bool = False, middle: bool = False) -> str:
    turn = f' transform="rotate(-90 {x} {y})" text-anchor="middle"' if turned else ""
    place = ' class="middle"' if middle else ""
    return f'<text{place} x="{x}" y="{y}"{turn}>{text}</text>'


if __name__ == "__main__":
    for file, picture in pictures().items():
        file.write_text(picture, encoding="utf-8")
