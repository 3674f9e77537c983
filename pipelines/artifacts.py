"""What a flow shows in Prefect beside states and logs: metrics, costs, and the way to MLflow."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from implicit_models.parameters.dotted import dotted
from implicit_models.tracking.links import run_page, tracked_run
from pipelines.dag import Stage
from pipelines.git import git, text_of
from pipelines.outcomes import Outcome, Outcomes
from pipelines.server.embedded import dashboards

_MOST_METRICS = 60


def stage_page(stage: Stage, outcome: Outcome, root: Path, commit: str) -> str:
    """Return a page, in Markdown, of what came of a stage.

    Parameters
    ----------
    root
        The repository, whose files of metrics are read.
    commit
        What `git_commit` returns.
    """
    facts = {
        "outcome": outcome_text(outcome),
        "seconds": f"{outcome.seconds:.1f}",
        "commit": commit,
        "MLflow run": _tracked(root, stage, outcome),
    }
    tables = [_table("stage", "", facts)]
    metrics = dict(_metrics(root, stage))
    if metrics:
        tables.append(_table("metric", "value", metrics))
    return f"# {stage.name}\n\n" + "\n\n".join(tables) + "\n"


def flow_page(outcomes: Outcomes, commit: str) -> str:
    """Return a page, in Markdown, of what came of all stages."""
    rows = "\n".join(
        "| " + " | ".join(_cell(value) for value in row.values()) + " |" for row in outcomes.rows()
    )
    head = "| stage | outcome | seconds | where |\n|---|---|--:|---|"
    return f"# Stages\n\n{outcomes.summary()}, commit {commit}\n\n{head}\n{rows}\n"


def outcome_text(outcome: Outcome) -> str:
    """Return in words how a stage came to be up to date, and where."""
    if outcome.place in ("", "here"):
        return f"{outcome.how} {outcome.place}".strip()
    return f"{outcome.how} on {outcome.place}"


def artifact_key(name: str) -> str:
    """Return a stage's name as the key of an artifact: small letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def git_commit(root: Path) -> str:
    """Return the repository's commit, and whether tracked files differ from it."""
    described = _git(root, "rev-parse", "--short=12", "HEAD")
    if not described:
        return "none"
    changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    return f"{described}, changed" if changed else described


def _git(root: Path, *arguments: str) -> str:
    try:
        done = git(root, *arguments)
    except FileNotFoundError:  # git is not installed
        return ""
    return text_of(done.stdout).strip() if done.returncode == 0 else ""


def _tracked(root: Path, stage: Stage, outcome: Outcome) -> str:
    """Return a link to the stage's run, on the server that has it or in the dashboards here."""
    if outcome.tracked:
        is_page = outcome.tracked.startswith("http")
        return f"[{outcome.tracked}]({outcome.tracked})" if is_page else outcome.tracked
    run = tracked_run(root, stage.name)
    if run is None:
        return "none sent yet"
    page = run.address or run_page(dashboards(root).get("mlflow"), run.experiment_id, run.run_id)
    return f"[{run.run_id}]({page})" if page else f"{run.run_id} (`make dashboards` shows it)"


def _metrics(root: Path, stage: Stage) -> Iterator[tuple[str, str]]:
    """Yield the numbers of a stage's metrics files, nested keys joined by dots."""
    numbers = [
        number
        for path in stage.metrics
        if path.endswith(".json") and (root / path).is_file()
        for number in _shown(json.loads((root / path).read_text()))
    ]
    yield from numbers[:_MOST_METRICS]
    if len(numbers) > _MOST_METRICS:
        yield f"{len(numbers) - _MOST_METRICS} more in {', '.join(stage.metrics)}", ""


def _shown(metrics: Any) -> Iterator[tuple[str, str]]:
    for name, value in dotted(metrics):
        if isinstance(value, int | float | str):
            yield name, f"{value:.6g}" if isinstance(value, float) else str(value)


def _table(left: str, right: str, rows: Mapping[str, str]) -> str:
    lines = [f"| {left} | {right} |", "|---|---|"]
    lines += [f"| {_cell(name)} | {_cell(value)} |" for name, value in rows.items()]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
