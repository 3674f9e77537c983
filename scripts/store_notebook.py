"""Run the notebook on the results that are here, and store what it shows.

    python scripts/compose.py quick && dvc repro && python scripts/store_notebook.py

`tests/reporting/test_notebook.py` fails where cells have changed since.
"""

import argparse
import base64
import hashlib
import io
import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "notebooks" / "state_tracking.ipynb"
SECONDS = 600  # of a cell, at most


def main() -> int:
    """Run it and write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=ROOT, help="the repository to read from")
    options = parser.parse_args()
    import nbformat
    from nbclient.exceptions import CellExecutionError

    notebook = nbformat.read(NOTEBOOK, as_version=nbformat.NO_CONVERT)
    try:
        execute(notebook, options.results)
    except CellExecutionError as error:
        print(f"error: {NOTEBOOK.name}: {error.evalue}", file=sys.stderr)
        return 1
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                output.data["image/png"] = in_few_colours(output.data["image/png"])
    notebook.metadata["stored_for"] = cells_digest(notebook)
    nbformat.write(notebook, NOTEBOOK)
    print(f"{NOTEBOOK.relative_to(ROOT)}: {NOTEBOOK.stat().st_size / 1000:.0f} kB")
    return 0


def execute(notebook: Any, results: Path) -> None:
    """Run a notebook on a repository's results; its outputs are in it then."""
    from nbclient import NotebookClient

    folder = {"metadata": {"path": str(ROOT)}}
    client = NotebookClient(notebook, timeout=SECONDS, record_timing=False, resources=folder)
    client.execute(env=os.environ | {"STATE_TRACKING_ROOT": str(results.resolve())})
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
