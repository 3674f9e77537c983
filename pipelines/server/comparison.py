"""The page of MLflow that compares the runs of the last reproduction."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

SUMMARY = Path("results") / "summary.json"

#: The last part of the view's address; another reproduction replaces what is shown there.
VIEW = "last-reproduction"

_MODELS_IN_TRAINING = "custom_model_development"
# What the columns begin with, in their order. Each length has a column for its score; for what
# the search took of it, of which the first that was measured counts, the longest alone.
_SCORES = ("test.accuracy", "test.perplexity", "test.bits_per_byte")
_SEARCHES = ("test.self_iterations", "test.evaluations_per_token")
_WIDTH = 170  # of a column, in pixels: the name of a score
_COSTS = ("train.flops", "train.seconds", "num_parameters")


def reproduced(root: Path) -> list[str]:
    """Return the MLflow runs of the last report; none where there is no report."""
    try:
        summary = json.loads((root / SUMMARY).read_text())
        found = [run.get("mlflow_run_id") for run in summary["runs"].values()]
    except (OSError, ValueError, KeyError, AttributeError):
        return []
    return [run_id for run_id in found if isinstance(run_id, str)]


def comparison_page(server: str, run_ids: Sequence[str]) -> str | None:
    """Return the address of a page with these runs, their scores and costs, the best at the top.

    MLflow keeps a view's columns, filter and order with the experiment, under a name that the
    page's address ends with. Runs of several experiments have MLflow's own comparison, which
    shows everything.

    Parameters
    ----------
    server
        MLflow's address, which answers.
    run_ids
        Of entries. Those that the server does not have are left out; None where it has none.
    """
    runs = [run for run in map(_reader(server), run_ids) if run is not None]
    if not runs:
        return None
    experiments = sorted({run["info"]["experiment_id"] for run in runs})
    if len(experiments) > 1:
        chosen = [run["info"]["run_id"] for run in runs]
        query = {"runs": json.dumps(chosen), "experiments": json.dumps(experiments)}
        return f"{server}/#/compare-runs?{urlencode(query)}"
    (experiment,) = experiments
    tags = {
        f"mlflow.sharedViewState.{VIEW}": json.dumps(view_of(runs)),
        "mlflow.experimentKind": _MODELS_IN_TRAINING,
    }
    for key, value in tags.items():
        content = {"experiment_id": experiment, "key": key, "value": value}
        ask(f"{server}/api/2.0/mlflow/experiments/set-experiment-tag", content)
    query = urlencode({"viewStateShareKey": VIEW, "workflowType": "machine_learning"})
    return f"{server}/#/experiments/{experiment}/runs?{query}"


def view_of(runs: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what MLflow's page of an experiment is to show of runs, as their API returns them."""
    runs = list(runs)
    measured = {each["key"] for run in runs for each in run["data"].get("metrics", ())}
    scores, costs = (_ordered(measured, beginnings) for beginnings in (_SCORES, _COSTS))
    searches = (_ordered(measured, [beginning]) for beginning in _SEARCHES)
    costs = [*next(filter(None, searches), [])[-1:], *costs]
    columns = [f"tags.`{name}`" for name in ("kind", "family")]
    columns += [f"metrics.`{name}`" for name in (*scores, *costs)]
    chosen = ", ".join(f"'{run['info']['run_id']}'" for run in runs)
    view: dict[str, Any] = {
        "searchFilter": f"attributes.run_id IN ({chosen})",
        "selectedColumns": columns,
        "columnOrder": columns,
        "columnWidths": dict.fromkeys(columns[2:], _WIDTH),
    }
    if scores:
        # Of several lengths the longest comes last, and tells most.
        quantity = _quantity(scores[0])
        *_, longest = (name for name in scores if _quantity(name) == quantity)
        is_better_higher = quantity.startswith("test.accuracy")
        view |= {"orderByKey": f"metrics.`{longest}`", "orderByAsc": not is_better_higher}
    return view


def _ordered(names: Iterable[str], beginnings: Sequence[str]) -> list[str]:
    """Return the names with these beginnings, and numbers at their ends in order."""

    def order(name: str) -> tuple[str, int]:
        quantity = _quantity(name)
        return quantity, int(name[len(quantity) + 1 :] or 0)

    known = sorted(names, key=order)
    return [name for start in beginnings for name in known if name.startswith(start)]


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
