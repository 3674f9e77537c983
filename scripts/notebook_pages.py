"""Write the notebooks, as they are stored, as pages of the documentation: docs/notebooks.

`make docs` does so before it builds the site. The pages are no sources, and git has none of them.
"""

import argparse
import base64
import re
import shutil
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from scripts.store_notebooks import notebooks, read  # noqa: E402

DOCS = ROOT / "docs"


def main() -> int:
    """Write them."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    write_pages(DOCS)
    return 0


def write_pages(docs: Path) -> None:
    """Write the pages, and their pictures beside them, into the folder ``notebooks`` of a site."""
    folder = docs / "notebooks"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, path in notebooks().items():
        page = _Page(name)
        for cell in read(path).cells:
            page.add(cell)
        page.write(folder)


class _Page:
    def __init__(self, name: str) -> None:
        self.name = name
        self.parts: list[str] = []
        self.pictures: dict[str, bytes] = {}
        self.heading, self.num_below = "", 0

    def add(self, cell: Any) -> None:
        """Add a cell with what it shows."""
        if cell.cell_type == "markdown":
            if headings := re.findall(r"^#+ (.*)$", cell.source, re.MULTILINE):
                self.heading, self.num_below = headings[-1], 0
            self.parts.append(cell.source.replace("](../docs/", "](../"))
        else:
            shown = map(self._output, cell.outputs)
            self.parts += [f"```python\n{cell.source}\n```", *shown]

    def write(self, folder: Path) -> None:
        """Write it and its pictures."""
        source = f"The notebook: `notebooks/{self.name}.ipynb`."
        (folder / f"{self.name}.md").write_text("\n\n".join([*self.parts, source]) + "\n")
        for name, picture in self.pictures.items():
            (folder / name).write_bytes(picture)

    def _output(self, output: Any) -> str:
        if output.output_type == "stream":
            return f"```text\n{output.text.rstrip()}\n```"
        data = output.data
        if "image/png" in data:
            return self._picture(base64.b64decode(data["image/png"]))
        return data.get("text/markdown") or f"```text\n{data['text/plain']}\n```"

    def _picture(self, content: bytes) -> str:
        """Return a picture as Markdown; the heading above it says what it shows."""
        name = f"{self.name}_{len(self.pictures)}.png"
        self.pictures[name] = content
        self.num_below += 1
        which = f", figure {self.num_below}" if self.num_below > 1 else ""
        return f"![{self.heading}{which}]({name})"


if __name__ == "__main__":
    sys.exit(main())
