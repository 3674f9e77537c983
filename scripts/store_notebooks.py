"""Run notebooks on the results of a repository, and store what they show.

    python scripts/store_notebooks.py --results FOLDER length cost
    python scripts/store_notebooks.py --results FOLDER --output MINE length   # of any results

In place they are stored where the results are those of their preset alone; `make figures` makes
these. `tests/reporting/test_notebooks.py` fails where cells or preset have changed since.
"""

import argparse
import base64
import hashlib
import io
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from implicit_models.files import write_whole  # noqa: E402
from scripts.recorded_parameters import why_outdated  # noqa: E402

NOTEBOOKS = ROOT / "notebooks"
SECONDS = 600  # of a cell, at most


def main(arguments: Sequence[str] | None = None) -> int:
    """Run them and write them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="+", choices=sorted(notebooks()), metavar="NAME")
    parser.add_argument("--results", type=Path, default=ROOT, help="the repository to read from")
    parser.add_argument("--output", type=Path, help="a folder for them, in place of their own")
    options = parser.parse_args(arguments)
    failed = 0
    for name in options.names:
        try:
            store(notebooks()[name], options.results, options.output)
        except NotStoredError as error:
            print(f"error: {name}.ipynb: {error}", file=sys.stderr)
            failed = 1
    return failed


class NotStoredError(RuntimeError):
    """A notebook that fails, shows nothing, or would show something else than it says."""


def notebooks() -> dict[str, Path]:
    """Return the notebooks of presets by their names; those of one's own are left out."""
    return {path.stem: path for path in sorted(NOTEBOOKS.glob("*.ipynb")) if _has_preset(path)}


def _has_preset(path: Path) -> bool:
    try:
        return "preset" in json.loads(path.read_bytes()).get("metadata", {})
    except ValueError:
        return False


def read(path: Path) -> Any:
    """Read a notebook."""
    return _parsed(path.read_bytes())


def _parsed(content: bytes) -> Any:
    import nbformat

    return nbformat.reads(content.decode("utf-8"), as_version=nbformat.NO_CONVERT)


def preset_of(path: Path) -> str:
    """Return the preset whose results a notebook shows."""
    return read(path).metadata["preset"]


def store(path: Path, results: Path, output: Path | None = None) -> None:
    """Run a notebook on a repository's results, and write it with what it shows.

    Parameters
    ----------
    output
        The folder that it is written to, whatever the results are of. None writes it in place.

    Raises
    ------
    NotStoredError
        Where the results are not those of its preset, a cell fails, nothing is shown, or what
        would be written over has changed meanwhile.
    """
    import nbformat
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    before = path.read_bytes()
    notebook = _parsed(before)
    if output is None:
        check_preset(notebook.metadata["preset"], results)
    try:
        execute(notebook, results)
    except CellExecutionError as error:
        raise NotStoredError(str(error.evalue)) from error
    except (CellTimeoutError, DeadKernelError) as error:
        raise NotStoredError(str(error).strip()) from error
    shown = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    if not any(each["output_type"] == "display_data" for each in shown):
        printed = "".join(each.get("text", "") for each in shown).strip()
        raise NotStoredError(
            f"it shows nothing of {results}: {printed or 'no results'}; `dvc repro` there makes "
            "them"
        )
    for each in shown:
        if "image/png" in each.get("data", {}):
            each.data["image/png"] = in_few_colours(each.data["image/png"])
    notebook.metadata["stored_for"] = cells_digest(notebook)
    notebook.metadata["parameters"] = preset_digest(notebook.metadata["preset"])
    target = path if output is None else output / path.name
    target.parent.mkdir(parents=True, exist_ok=True)
    if target == path and path.read_bytes() != before:
        raise NotStoredError("it has changed while it ran; run this again")
    write_whole(target, nbformat.writes(notebook).removesuffix("\n") + "\n")
    print(f"{target}: {target.stat().st_size / 1000:.0f} kB")


def check_preset(preset: str, folder: Path) -> None:
    """See that the results in a repository are those of a preset as it is.

    Raises
    ------
    NotStoredError
        Where its params.yaml is another one, or is not there, or results were made with another.
    """
    parameters = folder / "params.yaml"
    if not parameters.is_file() or parameters.read_text() != composed(preset):
        raise NotStoredError(
            f"{parameters} is not that of the preset {preset}: `python scripts/compose.py {preset} "
            "&& dvc repro` there, or `make figures`, leaves its results"
        )
    if reason := why_outdated(folder):
        raise NotStoredError(reason)


def composed(preset: str, overrides: Sequence[str] = ()) -> str:
    """Return the params.yaml of a preset, with some values of one's own."""
    from implicit_models.parameters.composition import compose

    return compose(ROOT, [f"preset={preset}", *overrides])


def preset_digest(preset: str, overrides: Sequence[str] = ()) -> str:
    """Return a digest of all that a preset says, with what is overridden."""
    return hashlib.sha256(composed(preset, overrides).encode()).hexdigest()[:16]


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
