"""Reading what the stages left; a file that is not there is named with the stage to run."""

import csv
import json
import math
from pathlib import Path
from typing import Any


class MissingResultError(FileNotFoundError):
    """A run has left no results, or not all of them."""


def read_json(path: Path, stage: str) -> dict[str, Any]:
    """Read a file that ``stage`` writes; infinities in it become NaN."""
    return json.loads(_read_text(path, stage), parse_constant=lambda _: math.nan)


def read_csv(path: Path, stage: str) -> list[dict[str, str]]:
    """Read the rows of a file that ``stage`` writes."""
    return list(csv.DictReader(_read_text(path, stage).splitlines()))


def _read_text(path: Path, stage: str) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise MissingResultError(
            f"{path} does not exist; the stage {stage}@{path.parent.name} writes it: "
            f"`dvc repro {stage}@{path.parent.name}`"
        ) from None
