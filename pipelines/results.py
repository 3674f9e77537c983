"""What a reproduction has left under results/: the headline metrics of its entries."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from implicit_models.parameters import read_content
from implicit_models.parameters.names import TESTED_APART, TRAINED

SUMMARY = Path("results", "summary.json")
REPORT = Path("results", "report.html")

_COSTS = ("num_parameters", "training_flops", "train_seconds")
_NO_SCORE = ("num_", "standard_error", "mlflow", "evaluations_per_token", "chance")


class ResultsError(ValueError):
    """Results that are not there, or that belong to other entries."""


@dataclass(frozen=True, kw_only=True)
class EntryResult:
    """What came of one entry of params.yaml.

    Attributes
    ----------
    table, name
        Where it stands.
    kind
        Of the model, as the report has it: ``"implicit"``, ``"explicit"``, ``"recurrent"``.
    metrics
        The headline metrics by dotted name, such as ``accuracy_last_10.40``.
    costs
        Parameters, training FLOPs and seconds, where the entry was trained.
    errors
        Standard errors on the test data, of the metrics of which they are known.
    chance
        What a model that knows nothing has, of the metrics of which it is known.
    model
        The folder of the final model; None of an entry that trains none.
    """

    table: str
    name: str
    kind: str
    metrics: Mapping[str, float]
    costs: Mapping[str, float]
    model: Path | None
    errors: Mapping[str, float] = field(default_factory=dict)
    chance: Mapping[str, float] = field(default_factory=dict)

    def shown(self, name: str) -> str:
        """Return a metric for people; nothing where the entry has none of this name."""
        if name not in self.metrics:
            return ""
        return shown(name, self.metrics[name], self.errors.get(name), self.chance.get(name))


@dataclass(frozen=True, kw_only=True)
class ExperimentResults:
    """What a reproduction has left.

    Attributes
    ----------
    entries
        Those of params.yaml that are models or tests of models, by name.
    report, summary
        The files with all of it.
    """

    entries: Mapping[str, EntryResult]
    report: Path
    summary: Path


def read_results(root: Path) -> ExperimentResults:
    """Read the results in a repository.

    Raises
    ------
    ResultsError
        Where there are none, or they are of other entries than those of params.yaml.
    """
    path = root / SUMMARY
    try:
        summary = json.loads(path.read_text())
        parts = [dict(summary.get(part) or {}) for part in ("runs", *TESTED_APART)]
    except FileNotFoundError:
        raise ResultsError(f"{SUMMARY}: no such file yet; `dvc repro` makes it") from None
    except (ValueError, AttributeError, TypeError) as error:
        raise ResultsError(f"{SUMMARY} is damaged ({error}); `dvc repro` mends it") from None
    wanted = entries_of_results(root)
    found = {name: scores for part in parts for name, scores in part.items()}
    if wanted.keys() != found.keys():
        missing = sorted(wanted.keys() - found.keys())
        other = sorted(found.keys() - wanted.keys())
        said = [f"lack {', '.join(missing)}"] if missing else []
        said += [f"have {', '.join(other)}"] if other else []
        raise ResultsError(
            f"{SUMMARY} is of other entries than params.yaml (the results "
            f"{' and '.join(said)}); `dvc repro` brings it up to date"
        )
    try:
        entries = {name: _entry(root, table, name, found[name]) for name, table in wanted.items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise ResultsError(
            f"{SUMMARY}, or a metrics.json in results/runs, is damaged ({error}); `dvc repro` "
            "mends it"
        ) from None
    return ExperimentResults(
        entries=entries,
        report=root / REPORT,
        summary=path,
    )


def entries_of_results(root: Path) -> dict[str, str]:
    """Return the tables of the entries of params.yaml of which there are to be results, by name."""
    content = read_content(root / "params.yaml")
    return {name: table for table in (*TRAINED, *TESTED_APART) for name in content.get(table) or ()}


def _entry(root: Path, table: str, name: str, scores: Mapping[str, Any]) -> EntryResult:
    headline = root / "results" / "runs" / name / "metrics.json"
    reported = _scores(scores)
    metrics = dict(_numbers(json.loads(headline.read_text()))) if headline.exists() else reported
    errors = dict(_numbers(scores.get("standard_errors") or {}))
    # Evaluated after the report: what the error is then, nobody has told.
    outdated = {key for key in reported if reported[key] != metrics.get(key)}
    model = root / "models" / name / "final"
    return EntryResult(
        table=table,
        name=name,
        kind=scores.get("kind", ""),
        metrics=metrics,
        costs={key: scores[key] for key in _COSTS if scores.get(key) is not None},
        model=model if table in TRAINED else None,
        errors={key: error for key, error in errors.items() if key not in outdated},
        chance=dict(_numbers(scores.get("chance") or {})),
    )


def shown(name: str, value: float, error: float | None = None, chance: float | None = None) -> str:
    """Return a metric's value for people: accuracies in percent, two standard errors after ±."""
    if not is_accuracy(name):
        return f"{value:,.4g}" + ("" if error is None else f" ± {2 * error:,.2g}")
    if error is None:
        return f"{value:.1%}"
    is_chance = chance is not None and value - chance <= 2 * error
    return f"{value:.1%} ± {200 * error:.1f}{' (chance)' if is_chance else ''}"


def is_accuracy(name: str) -> bool:
    """Return whether a metric is a share of answers."""
    return name.startswith("accuracy")


def _scores(content: Mapping[str, Any]) -> dict[str, float]:
    """Return the scores of an entry that has no headline of its own."""
    return {name: value for name, value in _numbers(content) if not name.startswith(_NO_SCORE)}


def _numbers(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for name in sorted(content, key=int) if all(map(str.isdigit, content)) else content:
        value = content[name]
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{prefix}{name}", float(value)
