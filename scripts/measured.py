"""What presets have left, as docs/measured keeps it: the scores and costs of every model."""

import datetime
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from implicit_models.files import write_whole
from implicit_models.parameters import ParameterError
from implicit_models.parameters.names import TESTED_APART, TRAINED
from scripts.recorded_parameters import why_outdated
from scripts.store_notebooks import ROOT, composed, preset_digest
from stages.entries import read_models

MEASURED = ROOT / "docs" / "measured"

_SCORES = {
    "word_problem": "accuracy_last_10",
    "formal_language": "accuracy",
    "catbabi": "accuracy",
    "text": "perplexity",
}
KEPT = ("kind", "data", "num_parameters", "train_seconds", "training_flops")
_QUANTITIES = {"training_flops": "training FLOPs", "parameters": "parameters"}
_FAMILIES = {"mamba2": "Mamba2", "llama": "Llama", "lstm": "torch's LSTM"}


class NotMeasuredError(RuntimeError):
    """A repository without the results that are asked for, or with others."""


def take(
    preset: str, folder: Path, overrides: Sequence[str] = (), *, further: bool = False
) -> None:
    """Keep what `of_folder` says of the models of a preset.

    With `further` what was kept before of models that the repository has no results of stays beside
    them.

    Raises
    ------
    NotMeasuredError
        As `of_folder`; also where what shall stay is of other models. What was kept before stays.
    """
    runs = of_folder(preset, folder, overrides)
    if further:
        names = {run["name"] for run in runs}
        known = {*groups_of(preset, folder, overrides).values()}
        kept = [run for run in of_preset(preset) if run["name"] not in names]
        other = [run["name"] for run in kept if run["group"] not in known]
        other += [run["name"] for run in kept if run.get("overrides", []) != list(overrides)]
        if other:
            raise NotMeasuredError(
                f"{MEASURED / preset}.json has {other[0]}, which is not of this preset with what "
                "is overridden here; measure all of it anew, without --further"
            )
        own = preset_digest(preset, overrides)
        if older := [run["name"] for run in kept if run.get("parameters") != own]:
            told = ", ".join(older)
            print(f"{preset}: kept, from before the preset changed: {told}", file=sys.stderr)
        runs = [*kept, *runs]
    _keep(preset, runs)


def take_own_seeds(preset: str, folder: Path) -> None:
    """Keep what `of_folder` says of a preset with its own seeds.

    Other seeds that were measured of the preset as it is now stay beside them.

    Raises
    ------
    NotMeasuredError
        As `of_folder`; also where what was kept before cannot be read. It stays.
    """
    runs = of_folder(preset, folder)
    known = of_preset(preset) if (MEASURED / f"{preset}.json").exists() else []
    measured, own = {run["name"] for run in runs}, preset_digest(preset)
    others = [run for run in known if run["name"] not in measured]
    beside = [run for run in others if run.get("parameters") == own]
    if gone := [run["name"] for run in others if run not in beside]:
        print(f"{preset}: no longer kept, of other parameters: {', '.join(gone)}", file=sys.stderr)
    _keep(preset, [*runs, *beside])


def _keep(preset: str, runs: Sequence[Mapping[str, Any]]) -> None:
    MEASURED.mkdir(exist_ok=True)
    write_whole(MEASURED / f"{preset}.json", json.dumps(runs, indent=1) + "\n")


def of_folder(preset: str, folder: Path, overrides: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return what a repository's summary says of the models of a preset, whatever their seeds.

    What was overridden is there with them, and the day and this repository's commit; tables tell
    both. So is a digest of all that the preset says.

    Raises
    ------
    NotMeasuredError
        Where there is no such preset, the repository's params.yaml is not that of the preset with
        these overrides under any seeds, its results were made with another or cannot be read, or
        their kind of data has no table.
    """
    groups = groups_of(preset, folder, overrides)
    if reason := why_outdated(folder):
        raise NotMeasuredError(reason)
    parameters = _read(folder / "params.yaml", yaml.safe_load)
    path = folder / "results" / "summary.json"
    summary = _read(path, json.loads)
    about = {"parameters": preset_digest(preset, overrides), "by": _now()}
    try:
        runs = [
            {"name": name, "group": groups[name], **_kept(preset, run)}
            | described(_entries(parameters)[name], run["kind"])
            | ({"overrides": list(overrides)} if overrides else {})
            | about
            for name, run in summary["runs"].items()
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise NotMeasuredError(
            f"{path} is not of the entries of params.yaml: {error}; dvc repro writes it anew"
        ) from error
    if not runs:
        raise NotMeasuredError(f"{path} has no runs; dvc repro writes it anew")
    return runs


def of_preset(preset: str) -> list[dict[str, Any]]:
    """Return what was kept of a preset.

    Raises
    ------
    NotMeasuredError
        Where nothing was, or it cannot be read.
    """
    return _read(MEASURED / f"{preset}.json", json.loads, "scripts/results_tables.py --measured")


def said_of(runs: Sequence[Mapping[str, Any]], *, dated: bool) -> str:
    """Return what stands below a table of runs: what was overridden, and when they were taken."""
    overrides = dict.fromkeys(each for run in runs for each in run.get("overrides", ()))
    lines = [f"With {', '.join(f'`{each}`' for each in overrides)}."] if overrides else []
    if dated:
        days: dict[str, dict[str, None]] = {}
        for day, commit in sorted((run["by"]["day"], run["by"]["commit"]) for run in runs):
            days.setdefault(day, {})[f"`{commit}`"] = None
        told = (f"{_day(day)}, {', '.join(commits)}" for day, commits in days.items())
        lines.append(f"By {'; '.join(told)}.")
    return "".join(f"\n{line}\n" for line in lines)


def _day(day: str) -> str:
    found = datetime.date.fromisoformat(day)
    return f"{found.day} {found:%B} {found.year}"


def _now() -> dict[str, str]:
    """Return the day, and the commit of this repository, at which something is taken.

    Raises
    ------
    NotMeasuredError
        Where this is no repository of git.
    """
    command = ["git", "rev-parse", "--short=7", "HEAD"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotMeasuredError(
            f"{ROOT} has no commit: {done.stderr.strip()}; `git init && git add --all && git "
            "commit` makes one"
        )
    return {"day": datetime.date.today().isoformat(), "commit": done.stdout.strip()[:7]}


def _read(path: Path, parse: Callable[[str], Any], writer: str = "dvc repro") -> Any:
    try:
        return parse(path.read_text())
    except FileNotFoundError as error:
        raise NotMeasuredError(f"{path} does not exist; {writer} writes it") from error
    except (OSError, ValueError, yaml.YAMLError) as error:
        said = str(error).replace("\n", " ")
        raise NotMeasuredError(f"{path} cannot be read: {said}; {writer} writes it anew") from error


def groups_of(preset: str, folder: Path, overrides: Sequence[str]) -> dict[str, str]:
    """Return for each model of a params.yaml the first that differs from it by its seed alone.

    All that the preset has must be there as it is, and every other model be one of it under
    another seed.
    """
    try:
        wanted = yaml.safe_load(composed(preset, overrides))
    except ParameterError as error:
        raise NotMeasuredError(str(error)) from error
    path = folder / "params.yaml"
    parameters = _read(path, yaml.safe_load)
    other = NotMeasuredError(
        f"{path} is not that of the preset {preset}, under any seeds: `implicit-models run "
        f"{preset}` there, or `make figures`, leaves its results (what was overridden there "
        "must be given here as well)"
    )
    if not isinstance(parameters, dict) or parameters.keys() != wanted.keys():
        raise other
    for table, content in wanted.items():
        found, is_widened = parameters[table], table in (*TRAINED, *TESTED_APART)
        if found != (found | content if is_widened and isinstance(found, dict) else content):
            raise other
    try:
        tables = read_models(path)
    except ParameterError as error:
        raise NotMeasuredError(str(error)) from error
    models = {name: model for table in tables.values() for name, model in table.items()}
    digests = {name: model.seed_group(models) for name, model in models.items()}
    first = {digests[name]: name for name in reversed(_entries(wanted))}
    if not first.keys() >= set(digests.values()):
        raise other
    return {name: first[digest] for name, digest in digests.items()}


def _entries(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {name: each for table in TRAINED for name, each in (parameters.get(table) or {}).items()}


def _kept(preset: str, run: Mapping[str, Any]) -> dict[str, Any]:
    if run["data"] not in _SCORES:
        raise NotMeasuredError(
            f"the preset {preset} has models of the kind {run['data']}, which have no table; those "
            f"of {', '.join(_SCORES)} have one"
        )
    kept = {key: run[key] for key in KEPT} | {"scores": run[_SCORES[run["data"]]]}
    if run["data"] == "catbabi":
        kept["tasks"] = run["accuracy_by_task"]
    if run.get("further_tests"):
        kept["further_tests"] = run["further_tests"]
    return kept


def described(entry: Mapping[str, Any], kind: str) -> dict[str, Any]:
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
        words.append(f"{100 * share:.0f} % bounded, free ({_free_steps(entry['free'])})")
    if "match" in entry:
        quantity = entry["match"].get("quantity", "training_flops")
        words.append(f"{_QUANTITIES[quantity]} of the implicit one")
    found = {"dataset": entry["dataset"], "label": ", ".join(words), "layers": layers or 0}
    return found | {"seed": entry["seed"]}


def _free_steps(free: Mapping[str, Any]) -> str:
    """Return the self-iterations of a search and of its gradient, which is named if no phantom."""
    gradient = free.get("gradient", "phantom")
    with_gradient = free.get(f"{gradient}_steps")
    steps = (
        f"{free['max_steps']}" if with_gradient is None else f"{free['max_steps']}+{with_gradient}"
    )
    return steps if gradient == "phantom" else f"{steps}, {gradient.replace('_', ' ')} gradient"
