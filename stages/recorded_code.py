"""Whether the code is still the one under which DVC will record what a stage writes."""

import os
from pathlib import Path

from implicit_models.code_digest import code_digests
from implicit_models.code_imports import ROOT
from implicit_models.parameters import ParameterError


def check_noted_code(root: Path = Path()) -> None:
    """Check that the code of the stage that DVC runs here is what `stages.code` noted for it.

    Raises
    ------
    ParameterError
        Where a file that the stage's results depend on is another one by now.
    """
    stage, _, entry = os.environ.get("DVC_STAGE", "").rpartition(":")[2].partition("@")
    noted = root / "code" / stage.partition("_")[0] / entry  # train_free@x: code/train/x
    if not stage or not noted.is_file():
        return
    lines = (line.split("  ", 1) for line in noted.read_text().splitlines())
    digests = {path: digest for digest, path in lines if (ROOT / path).parent != ROOT}
    folders = {path.partition("/")[0] for path in digests}
    found = {
        f"{folder}/{path}": digest
        for folder in folders
        for path, digest in code_digests(ROOT / folder).items()
    }
    for path in digests:
        if found.get(path) != digests[path]:
            raise ParameterError(
                f"{path} has changed since the stage `code` noted it; DVC would take what this "
                "stage writes for that of the old code. Run `dvc repro code`, and this again, or "
                "change it back"
            )
