"""Whether the code is still the one under which DVC will record what a stage writes."""

import os
from pathlib import Path

from implicit_models.code_digest import code_digests
from implicit_models.code_imports import ROOT


def changed_since_noted(root: Path = Path()) -> str | None:
    """Return a file that is another one than `stages.code` noted for the stage that DVC runs here.

    Returns
    -------
    str or None
        The first of those that the stage's results depend on; None where DVC runs no stage, or one
        that depends on no code.
    """
    stage, _, entry = os.environ.get("DVC_STAGE", "").rpartition(":")[2].partition("@")
    noted = root / "code" / stage.partition("_")[0] / entry  # train_free@x: code/train/x
    if not stage or not noted.is_file():
        return None
    lines = (line.split("  ", 1) for line in noted.read_text().splitlines())
    digests = {path: digest for digest, path in lines if (ROOT / path).parent != ROOT}
    folders = {path.partition("/")[0] for path in digests}
    found = {
        f"{folder}/{path}": digest
        for folder in folders
        for path, digest in code_digests(ROOT / folder).items()
    }
    return next((path for path in digests if found.get(path) != digests[path]), None)
