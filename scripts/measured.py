"""What presets have left, as docs/measured keeps it: the scores and costs of every model."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from scripts.store_notebooks import NotStoredError, check_preset  # noqa: E402

MEASURED = ROOT / "docs" / "measured"

_SCORES = {
    "word_problem": "accuracy_last_10",
    "formal_language": "accuracy",
    "catbabi": "accuracy",
    "text": "perplexity",
}
_KEPT = ("kind", "data", "num_parameters", "train_seconds", "training_flops")
_FAMILIES = {"mamba2": "Mamba2", "llama": "Llama", "lstm": "torch's LSTM"}


def take(preset: str, folder: Path) -> None:
    """Keep what a repository's summary says of the runs of a preset, which all of them are of.

    Raises
    ------
    NotStoredError
        Where the repository's params.yaml is not that of the preset, or its kind of data has no
        table.
    """
    check_preset(preset, folder)
    summary = json.loads((folder / "results" / "summary.json").read_text())
    parameters = yaml.safe_load((folder / "params.yaml").read_text())
    entries = {
        name: entry
        for table in ("runs", "upcycled", "baselines", "matched")
        for name, entry in parameters[table].items()
    }
    if without := {run["data"] for run in summary["runs"].values()} - _SCORES.keys():
        raise NotStoredError(
            f"the preset {preset} has models of the kind {', '.join(sorted(without))}, which have "
            f"no table; those of {', '.join(_SCORES)} have one"
        )
    runs = []
    for name, run in summary["runs"].items():
        kept = {key: run[key] for key in _KEPT} | {"scores": run[_SCORES[run["data"]]]}
        if run["data"] == "catbabi":
            kept["tasks"] = run["accuracy_by_task"]
        runs.append({"name": name, **_described(entries[name], run["kind"]), **kept})
    MEASURED.mkdir(exist_ok=True)
    (MEASURED / f"{preset}.json").write_text(json.dumps(runs, indent=1) + "\n")


def _described(entry: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return what a table says a model is, from its entry of params.yaml."""
    model = entry["model"]
    family, layers = model["family"], model.get("num_layers")
    words = [f"{'' if kind == 'recurrent' else f'{kind} '}{_FAMILIES.get(family, family)}"]
    if layers is not None:
        words.append(f"{layers} layer{'' if layers == 1 else 's'}")
    if model.get("allow_neg_eigval"):
        words.append("eigenvalues in [-1, 1]")
    share = (entry.get("bounded") or {}).get("share")
    if share is not None:
        words.append(f"{share:.0%} bounded".replace("%", " %"))
        words.append(f"({entry['free']['max_steps']}+{entry['free']['phantom_steps']})")
    if "match" in entry:
        words.append("training FLOPs of the implicit one")
    described = {"dataset": entry["dataset"], "label": ", ".join(words), "layers": layers or 0}
    return described | {"seed": entry["seed"]}
