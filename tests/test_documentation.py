"""What docs/models.md says is what the code has, and presets that docs name exist."""

import re
from pathlib import Path

from implicit_models.families.sizes import size_table
from implicit_models.language_models.configuration import ImplicitConfig

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "models.md").read_text()


def test_size_table():
    assert size_table() in TEXT


def test_defaults():
    table = TEXT.split("| field | default | means |")[1].split("\n\n")[0]
    rows = [row.split(" | ")[:2] for row in table.splitlines() if "`" in row]
    assert len(rows) == 15
    for fields, defaults in rows:
        names, values = (
            re.findall(r"`(\w+)`", fields),
            defaults.replace("`", "").strip().split(", "),
        )
        for name, value in zip(names, values, strict=True):
            assert value == str(getattr(ImplicitConfig, name)).lower(), name


def test_presets_that_are_named_exist():
    named = set()
    for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        text = path.read_text()
        named |= set(re.findall(r"(?:preset=|--preset |compose\.py )([\w.]*\w)", text))
        named |= set(re.findall(r"[Pp]resets? `([\w.]+)`", text))
    assert "quick" in named
    assert named - {"NAME"} <= {path.stem for path in (ROOT / "conf" / "preset").glob("*.yaml")}
