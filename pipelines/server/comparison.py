"""The page of MLflow that compares the runs of the last reproduction."""

import itertools
import json
import math
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

SUMMARY = Path("results") / "summary.json"

#: The last part of the view's address; another reproduction replaces what is shown there.
VIEW = "last-reproduction"

_MODELS_IN_TRAINING = "custom_model_development"
_MODE = {"workflowType": "machine_learning"}  # of MLflow's pages, which else are of agents
# What columns begin with. Of scores, the first kind that was measured is shown, of the shortest
# and of the longest sequences; of searches the first, of the longest.
_SCORES = ("test.accuracy", "test.perplexity")
_SEARCHES = ("test.self_iterations", "test.evaluations_per_token")
_COSTS = ("train.flops", "train.seconds")
# MLflow's table loads as many at once; its filter stands in the page's address, and in a tag of
# the experiment, which takes a few hundred.
MOST_RUNS = 100
_PIXELS_A_LETTER, _PIXELS_BESIDE = 7, 30  # of a column's head
_MOST_DIGITS = 13  # of FLOPs


@dataclass(frozen=True)
class ComparisonPage:
    """A page of MLflow with runs side by side.

    Attributes
    ----------
    address
        Of the page.
    num_shown, num_found
        The runs that it has, and those of the reproduction that the server has.
    """

    address: str
    num_shown: int
    num_found: int


def reproduced(root: Path) -> list[str]:
    """Return the MLflow runs of the last report; none where there is no report."""
    try:
        summary = json.loads((root / SUMMARY).read_text())
        found = [run.get("mlflow_run_id") for run in summary["runs"].values()]
    except (OSError, ValueError, KeyError, AttributeError):
        return []
    return [run_id for run_id in found if isinstance(run_id, str)]


def comparison_page(server: str, run_ids: Sequence[str]) -> ComparisonPage | None:
    """Return the page with these runs, their scores and costs, the best at the top.

    MLflow keeps a view's columns, filter and order with the experiment, under a name that the
    page's address ends with. Runs of several experiments have MLflow's own comparison, which
    shows everything. Of more than `MOST_RUNS` the page has those that `headline_runs` returns.

    Parameters
    ----------
    server
        MLflow's address, which answers.
    run_ids
        Of entries. Those that the server does not have are left out; None where it has none.
    """
    found = [run for run in map(_reader(server), run_ids) if run is not None]
    if not found:
        return None
    runs = headline_runs(found, MOST_RUNS)
    experiments = sorted({run["info"]["experiment_id"] for run in runs})
    if len(experiments) > 1:
        chosen = [run["info"]["run_id"] for run in runs]
        query = {"runs": json.dumps(chosen), "experiments": json.dumps(experiments)}
        address = f"{server}/#/compare-runs?{urlencode(query | _MODE)}"
        return ComparisonPage(address, len(runs), len(found))
    (experiment,) = experiments
    tags = {
        f"mlflow.sharedViewState.{VIEW}": json.dumps(view_of(runs)),
        "mlflow.experimentKind": _MODELS_IN_TRAINING,
    }
    for key, value in tags.items():
        content = {"experiment_id": experiment, "key": key, "value": value}
        ask(f"{server}/api/2.0/mlflow/experiments/set-experiment-tag", content)
    query = urlencode({"viewStateShareKey": VIEW} | _MODE)
    address = f"{server}/#/experiments/{experiment}/runs?{query}"
    return ComparisonPage(address, len(runs), len(found))


def headline_runs(runs: Sequence[Mapping[str, Any]], most: int) -> list[Mapping[str, Any]]:
    """Return so many runs at most: in turns the best of each kind, by what the view is ordered by.

    Those without that score come last, and what is equal stays in its order.
    """
    if len(runs) <= most:
        return list(runs)
    view = view_of(runs)
    key = view.get("orderByKey", "").removeprefix("metrics.`").removesuffix("`")
    sign = 1 if view.get("orderByAsc") else -1

    def score(run: Mapping[str, Any]) -> float:
        values = [each["value"] for each in run["data"].get("metrics", ()) if each["key"] == key]
        known = [float(value) for value in values if math.isfinite(float(value))]
        return sign * known[0] if known else math.inf

    kinds: dict[str | None, list[Mapping[str, Any]]] = {}
    for run in sorted(runs, key=score):
        tags = {each["key"]: each["value"] for each in run["data"].get("tags", ())}
        kinds.setdefault(tags.get("kind"), []).append(run)
    turns = itertools.zip_longest(*kinds.values())
    return [run for turn in turns for run in turn if run is not None][:most]


def view_of(runs: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what MLflow's page of an experiment is to show of runs, as their API returns them."""
    runs = list(runs)
    measured = {each["key"] for run in runs for each in run["data"].get("metrics", ())}
    scores, searches = (_first_measured(measured, each) for each in (_SCORES, _SEARCHES))
    ends = dict.fromkeys((*scores[:1], *scores[-1:]))
    costs = [name for name in _COSTS if name in measured]
    sizes = [name for name in ("num_parameters",) if name in measured]
    metrics = (*ends, *costs, *searches[-1:], *sizes)
    widths = {"tags.`kind`": _width("kind")}
    widths |= {f"metrics.`{name}`": _width(name) for name in metrics}
    widths |= {"tags.`family`": _width("family")}
    columns = list(widths)
    chosen = ", ".join(f"'{run['info']['run_id']}'" for run in runs)
    view: dict[str, Any] = {
        "searchFilter": f"attributes.run_id IN ({chosen})",
        "selectedColumns": columns,
        "columnOrder": columns,
        "columnWidths": widths,
    }
    if scores:
        # Of several lengths the longest comes last, and tells most.
        is_better_higher = scores[-1].startswith("test.accuracy")
        view |= {"orderByKey": f"metrics.`{scores[-1]}`", "orderByAsc": not is_better_higher}
    return view


def _first_measured(names: Iterable[str], beginnings: Sequence[str]) -> list[str]:
    """Return the names with the first of these beginnings that any has, by their lengths."""

    def order(name: str) -> tuple[str, int]:
        quantity = _quantity(name)
        return quantity, int(name[len(quantity) + 1 :] or 0)

    known = sorted(names, key=order)
    found = ([name for name in known if name.startswith(start)] for start in beginnings)
    return next(filter(None, found), [])


def _width(text: str) -> int:
    return _PIXELS_A_LETTER * max(len(text), _MOST_DIGITS) + _PIXELS_BESIDE


def _quantity(name: str) -> str:
    """Return a metric's name without the length at its end.

    >>> _quantity("test.accuracy_last_10.160")
    'test.accuracy_last_10'
    """
    quantity, _, end = name.rpartition(".")
    return quantity if end.isdigit() else name


def _reader(server: str) -> Any:
    def read(run_id: str) -> dict[str, Any] | None:
        try:
            return ask(f"{server}/api/2.0/mlflow/runs/get?{urlencode({'run_id': run_id})}")["run"]
        except urllib.error.HTTPError:  # another store has it
            return None

    return read


def ask(address: str, content: Mapping[str, Any] | None = None) -> Any:
    """Return the answer of a server on this machine, past any proxy."""
    data = None if content is None else json.dumps(content).encode()
    request = urllib.request.Request(address, data, {"Content-Type": "application/json"})
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(request, timeout=60) as answer:
        return json.load(answer)
