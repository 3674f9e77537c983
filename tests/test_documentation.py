"""What docs/models.md says is what the code has, and presets that docs name exist."""

import re
from pathlib import Path

from implicit_models.families.sizes import size_table
from implicit_models.language_models.configuration import ImplicitConfig
from scripts.draw_pictures import pictures
from scripts.store_notebooks import notebooks, read

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
    known = {path.stem for path in (ROOT / "conf" / "preset").glob("*.yaml")}
    assert named - {"NAME", "PRESET"} <= known


def test_pictures_are_what_their_script_draws():
    concepts = (ROOT / "docs" / "concepts.md").read_text()
    for file, picture in pictures().items():
        assert file.read_text(encoding="utf-8") == picture
        assert f"](images/{file.name})" in concepts
    assert "docs/images/sliding_window.svg" in (ROOT / "README.md").read_text()


def test_links_lead_somewhere():
    """To files that are there, and to headings that their pages have."""
    written = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    texts = {page: page.read_text() for page in (*written, *(ROOT / ".github").rglob("*.yml"))}
    for path in notebooks().values():
        cells = (cell.source for cell in read(path).cells if cell.cell_type == "markdown")
        texts[path] = "\n".join(cells)
    for page, text in texts.items():
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if "://" in target:
                continue
            place, _, heading = target.partition("#")
            file = (page.parent / place).resolve() if place else page
            assert file.exists(), f"{page.name}: {target}"
            assert not heading or heading in anchors(file), f"{page.name}: {target}"


def test_links_say_what_a_page_is_about():
    """The site shows titles and no files; one that is meant is named with its folder."""
    for page in (ROOT / "docs").glob("*.md"):
        named = re.findall(r"\[`?[\w-]+\.md`?\]\([^)\s]+\)", page.read_text())
        assert not named, f"{page.name}: {named}"


def anchors(page: Path) -> set[str]:
    """Return what GitHub calls the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {each.replace(" ", "-") for each in plain}
