"""The metrics that docs/metrics.md names, and those that a project's stages have recorded."""

import re
from pathlib import Path

from implicit_models.tracking.limits import accepted_key
from implicit_models.tracking.spool import all_spools
from tests.repositories import ROOT

_VARYING = {
    "COUNT": r"\d+",
    "LENGTH": r"\d+",
    "TASK": r"\d+",
    "PLACE": r"\d+|test|validation|test_(ignoring|asking)_\d+_percent",
    "STATISTIC": "mean|p50|p95|max",
    "PROBABILITY": r"[\d.]+|\d(?:\.\d+)?e-\d+",
    "MODE": "window|simultaneous|sequential",
    "RANGE": r"\d+|\d+-\d+|_\d+",
    "WORD": ".+",
    "DOMAIN": ".+",
    "CORPUS": "[^.]+",
    "METRIC": ".+",
    "COLUMN": "LAMBADA|LAMBADA ppl|HellaSwag|PIQA|ARC-E|ARC-C|WinoGrande|OpenbookQA|average",
    "SCORE": "accuracy|accuracy_last_10|perplexity|standard_error",
    "TOLERANCE": r"[\d.e-]+",
}
_PAGE = ROOT / "docs" / "metrics.md"


def documented() -> dict[str, re.Pattern[str]]:
    """The names in the page's tables, as patterns."""
    rows = [line.split("|")[1] for line in _PAGE.read_text().splitlines() if line.startswith("| `")]
    names = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    assert len(names) == len(set(names)) > 100
    return {name: re.compile(_pattern(name)) for name in names}


def _pattern(name: str) -> str:
    parts = re.split(rf"(?<![A-Z-])({'|'.join(_VARYING)})(?![A-Z-])", name)
    return "".join(
        f"(?:{_VARYING[part]})" if part in _VARYING else re.escape(part) for part in parts
    )


def undocumented(names: set[str]) -> list[str]:
    """Those names that the page lacks; MLflow's own of the machine are not ours to name."""
    patterns = documented().values()
    ours = {name for name in names if not name.startswith("system/")}
    return sorted(name for name in ours if not any(each.fullmatch(name) for each in patterns))


def recorded(root: Path) -> set[str]:
    """The names of all metrics in a project's spools, as MLflow accepts them."""
    events = [event for spool in all_spools(root) for event, _ in spool.events()]
    return {accepted_key(name) for event in events for name in event.get("values", ())}
