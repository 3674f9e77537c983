"""Run notebooks on the results of a repository, and store what they show.

    python scripts/store_notebooks.py --results FOLDER length cost

`make figures` does so with what each notebook's preset leaves. `tests/reporting/test_notebooks.py`
fails where cells have changed since.
"""

import argparse
import base64
import hashlib
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
NOTEBOOKS = ROOT / "notebooks"
SECONDS = 600  # of a cell, at most


def main(arguments: Sequence[str] | None = None) -> int:
    """Run them and write them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="+", choices=sorted(notebooks()), metavar="NAME")
    parser.add_argument("--results", type=Path, default=ROOT, help="the repository to read from")
    options = parser.parse_args(arguments)
    from nbclient.exceptions import CellExecutionError

    failed = 0
    for name in options.names:
        try:
            store(notebooks()[name], options.results)
        except CellExecutionError as error:
            print(f"error: {name}.ipynb: {error.evalue}", file=sys.stderr)
            failed = 1
    return failed


def notebooks() -> dict[str, Path]:
    """Return the notebooks by their names."""
    return {path.stem: path for path in sorted(NOTEBOOKS.glob("*.ipynb"))}


def read(path: Path) -> Any:
    """Read a notebook."""
    import nbformat

    return nbformat.read(path, as_version=nbformat.NO_CONVERT)


def preset_of(path: Path) -> str:
    """Return the preset whose results a notebook shows."""
    return read(path).metadata["preset"]


def store(path: Path, results: Path) -> None:
    """Run a notebook on a repository's results, and write it with what it shows."""
    import nbformat

    notebook = read(path)
    execute(notebook, results)
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                output.data["image/png"] = in_few_colours(output.data["image/png"])
    notebook.metadata["stored_for"] = cells_digest(notebook)
    nbformat.write(notebook, path)
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1000:.0f} kB")


def execute(notebook: Any, results: Path) -> None:
    """Run a notebook on a repository's results; its outputs are in it then."""
    from nbclient import NotebookClient

    folder = {"metadata": {"path": str(ROOT)}}
    client = NotebookClient(notebook, timeout=SECONDS, record_timing=False, resources=folder)
    quiet = "ignore:IProgress not found"  # of progress bars, which are not shown
    variables = {"RESULTS_ROOT": str(results.resolve()), "PYTHONWARNINGS": quiet}
    client.execute(env=os.environ | variables)
    notebook.metadata["language_info"] = {"name": "python"}  # not which Python it was


def in_few_colours(picture: str) -> str:
    """Return a picture, in base64, with a palette: as good for a figure, in a third the bytes."""
    from PIL import Image

    opened = Image.open(io.BytesIO(base64.b64decode(picture))).convert("RGB")
    written = io.BytesIO()
    opened.quantize(128, dither=Image.Dither.NONE).save(written, "PNG", optimize=True)
    return base64.b64encode(written.getvalue()).decode("ascii")


def cells_digest(notebook: Any) -> str:
    """Return a digest of the sources of all cells."""
    sources = "\0".join("".join(cell["source"]) for cell in notebook["cells"])
    return hashlib.sha256(sources.encode()).hexdigest()[:16]


if __name__ == "__main__":
    sys.exit(main())
