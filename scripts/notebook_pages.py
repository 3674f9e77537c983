"""Write the notebooks, as they are stored, as pages of the documentation: docs/notebooks.

`make docs` does so before it builds the site. The pages are no sources, and git has none of them.
"""

import argparse
import base64
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
        pictures: list[bytes] = []
        parts = [_cell(cell, name, pictures) for cell in read(path).cells]
        source = f"The notebook: `notebooks/{name}.ipynb`."
        (folder / f"{name}.md").write_text("\n\n".join([*filter(None, parts), source]) + "\n")
        for index, picture in enumerate(pictures):
            (folder / _picture_name(name, index)).write_bytes(picture)


def _picture_name(name: str, index: int) -> str:
    return f"{name}_{index}.png"


def _cell(cell: Any, name: str, pictures: list[bytes]) -> str:
    """Return a cell as Markdown; the pictures that it shows are put to the others."""
    if cell.cell_type == "markdown":
        return cell.source.replace("](../docs/", "](../")
    code = f"```python\n{cell.source}\n```"
    return "\n\n".join([code, *(_output(each, name, pictures) for each in cell.outputs)])


def _output(output: Any, name: str, pictures: list[bytes]) -> str:
    if output.output_type == "stream":
        return f"```text\n{output.text.rstrip()}\n```"
    data = output.data
    if "image/png" in data:
        pictures.append(base64.b64decode(data["image/png"]))
        return f"![A figure of this notebook]({_picture_name(name, len(pictures) - 1)})"
    return data.get("text/markdown") or f"```text\n{data['text/plain']}\n```"


if __name__ == "__main__":
    sys.exit(main())
