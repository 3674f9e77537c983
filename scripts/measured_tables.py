"""Tables of what was measured, in Markdown: of models by seed, of how many seeds hold, of tasks."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from implicit_models.problems.catbabi.report.published import PUBLISHED
from implicit_models.problems.catbabi.tasks import numbered
from implicit_models.reporting.intervals import t_quantile, wilson
from scripts.measured import NotMeasuredError

HOLDS = 0.99  # as much as a seed must have right to count as one that holds
_KINDS = ("implicit", "explicit", "recurrent")


class _Column(NamedTuple):
    title: str
    cell: Callable[[Mapping[str, Any]], str]


def table(runs: Sequence[Mapping[str, Any]], *, short: bool = False) -> str:
    """Return the table of some runs, scored as their kind of data is: one kind for all."""
    scored = [
        _Column(title, lambda run, name=name: _shown(run, name))
        for name, title in _scores(runs).items()
    ]
    columns = [_Column("parameters", lambda run: f"{run['num_parameters']:,}"), *scored]
    columns.append(_Column("training", lambda run: f"{run['train_seconds']:,.0f} s"))
    if not short:
        columns.append(_Column("training FLOPs", lambda run: _power(run["training_flops"])))
    datasets = _datasets(runs)
    if len(datasets) > 1:
        columns.insert(0, _Column("data", lambda run: run["dataset"]))
    rows = [
        [_label(run, runs), *(each.cell(run) for each in columns)]
        for run in sorted(runs, key=lambda run: _place(run, datasets))
    ]
    return _lines(["", *(each.title for each in columns)], rows, 1 if len(datasets) == 1 else 2)


def rates(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of how many seeds hold, of the models that have several: of accuracies.

    Such a share has Wilson's 95 % interval.
    """
    titles, datasets = _scores(runs), _datasets(runs)
    _check_accuracies(runs)
    rows = []
    for group in _groups(runs):
        if len(group) == 1:
            continue
        flops = [run["training_flops"] for run in group if run["training_flops"] is not None]
        named = [_model(group[0], runs), *([group[0]["dataset"]] if len(datasets) > 1 else [])]
        shares = [rate([_score(run, name) for run in group]) for name in titles]
        ends = dict.fromkeys(_power(end(flops)) for end in (min, max)) if flops else ()
        rows.append([*named, *shares, " to ".join(ends)])
    heads = ["", "data"] if len(datasets) > 1 else [""]
    return _lines([*heads, *titles.values(), "training FLOPs"], rows, len(heads))


def tasks(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of the tasks of stories: a column a model, the means of its seeds."""
    groups = _groups(runs)
    seeds = sorted({run["seed"] for run in runs})

    def row(title: str, cell: Callable[[Sequence[Mapping[str, Any]]], str]) -> list[str]:
        return [title, *(cell(group) for group in groups)]

    rows = [
        row("parameters", lambda group: f"{group[0]['num_parameters']:,}"),
        row("training FLOPs", lambda group: _power(_mean(group, "training_flops"))),
        row("training", lambda group: f"{_mean(group, 'train_seconds'):,.0f} s"),
    ]
    for seed in seeds if len(seeds) > 1 else ():
        rows.append(
            row(f"all questions, seed {seed}", lambda group, seed=seed: _of_seed(group, seed))
        )
    rows.append(
        row("**all questions**", lambda group: f"**{_interval([run['scores'] for run in group])}**")
    )
    for task in sorted({task for run in runs for task in run["tasks"]}, key=int):
        rows.append(row(numbered(int(task)), lambda group, task=task: _task(group, task)))
    return _lines(["", *(_model(group[0], runs) for group in groups)], rows, 1)


def scores(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of what every kind of model has on every data set: the medians of its seeds.

    Where there are several seeds, the lowest and the highest stand beside.
    """
    _check_accuracies(runs)
    models = list(dict.fromkeys(_model(group[0], runs) for group in _groups(runs)))
    rows = []
    for dataset in _datasets(runs):
        here = [run for run in runs if run["dataset"] == dataset]
        for name, title in _scores(here).items():
            alike = [[run for run in here if _model(run, runs) == model] for model in models]
            cells = [_spread([_score(run, name) for run in each]) for each in alike]
            rows.append([dataset, title.replace("_", " "), *cells])
    return _lines(["", "", *models], rows, 2)


def published() -> str:
    """Return the table of what others have published on CatbAbI, in percent."""
    rows = []
    for row in PUBLISHED:
        shares = (row.accuracy(objective) for objective in ("answers", "all"))
        cells = ["" if share is None else f"{100 * share:.2f}" for share in shares]
        layers = {None: "", 1: ", 1 layer"}.get(row.num_layers, f", {row.num_layers} layers")
        rows.append([row.model + layers, row.source, *cells])
    return _lines(["model", "source", "answers alone (QM)", "all words (LM)"], rows, 2)


def _spread(shares: Sequence[float | None]) -> str:
    found = sorted(share for share in shares if share is not None)
    if len(found) < 2:
        return _percent(found[0]) if found else ""
    median = _percent(statistics.median(found))
    return f"{median} ({100 * found[0]:.1f} to {100 * found[-1]:.1f}, {len(found)} seeds)"


def _check_accuracies(runs: Sequence[Mapping[str, Any]]) -> None:
    if any(run["data"] == "text" for run in runs):
        raise NotMeasuredError(
            "rates and scores are of accuracies, and not of perplexity; allowed is `table`"
        )


def _of_seed(group: Sequence[Mapping[str, Any]], seed: int) -> str:
    return "".join(_percent(run["scores"]) for run in group if run["seed"] == seed)


def _task(group: Sequence[Mapping[str, Any]], task: str) -> str:
    shares = [run["tasks"][task] for run in group if run["tasks"].get(task) is not None]
    return _percent(statistics.mean(shares)) if shares else ""


def _interval(shares: Sequence[float]) -> str:
    """Return a mean of seeds, with the 95 % interval that Student's t gives it."""
    mean = _percent(statistics.mean(shares))
    if len(shares) == 1:
        return mean
    error = statistics.stdev(shares) / len(shares) ** 0.5 * t_quantile(len(shares))
    return f"{mean} ± {100 * error:.1f}"


def _mean(group: Sequence[Mapping[str, Any]], key: str) -> float | None:
    found = [run[key] for run in group if run[key] is not None]
    return statistics.mean(found) if found else None


def rate(scores: Sequence[float | None]) -> str:
    """Return how many scores hold, with the interval of their share."""
    scored = [score for score in scores if score is not None]
    if not scored:
        return ""
    count = sum(score >= HOLDS for score in scored)
    low, high = wilson(count, len(scored))
    digits = 1 if high < 1 and 100 * high >= 99.5 else 0  # no "100 %" where it is not
    return f"{count} of {len(scored)} ({100 * low:.0f} to {100 * high:.{digits}f} %)"


def _lines(heads: Sequence[str], rows: Sequence[Sequence[str]], num_text_columns: int) -> str:
    """Return a table in Markdown, whose columns after the first ones are of numbers."""
    rules = ["---"] * num_text_columns + ["--:"] * (len(heads) - num_text_columns)
    return "".join(f"| {' | '.join(line)} |\n" for line in (heads, rules, *rows))


def _groups(runs: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Return the runs that differ in their seed alone, each group in the order of its seeds."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for run in sorted(runs, key=lambda run: _place(run, _datasets(runs))):
        groups.setdefault(run["group"], []).append(run)
    return list(groups.values())


def _datasets(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(run["dataset"] for run in runs))


def _place(run: Mapping[str, Any], datasets: Sequence[str]) -> tuple[int, int, int, str, int]:
    """Return what sorts runs: by data, by kind, by layers, by what else they are, by seed."""
    kind = _KINDS.index(run["kind"])
    return datasets.index(run["dataset"]), kind, run["layers"], run["label"], run["seed"]


def _label(run: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]) -> str:
    """Return what a run is, with its seed where others differ in that alone."""
    alike = [each for each in runs if each["group"] == run["group"]]
    return _model(run, runs) + (f", seed {run['seed']}" if len(alike) > 1 else "")


def _model(run: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]) -> str:
    """Return what a run is but for its seed, with its first entry where others are called so."""
    called = {
        each["group"]
        for each in runs
        if (each["label"], each["dataset"]) == (run["label"], run["dataset"])
    }
    return f"{run['label']} ({run['group']})" if len(called) > 1 else run["label"]


def _scores(runs: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the titles of the scores of one kind of data, by their names."""
    (kind,) = {run["data"] for run in runs}
    if kind in ("catbabi", "text"):
        return {"": "right answers" if kind == "catbabi" else "test perplexity"}
    names = list(dict.fromkeys(name for run in runs for name in run["scores"]))
    if kind == "word_problem":
        return {name: f"{int(name):,} tokens" for name in sorted(names, key=int)}
    return {name: name for name in sorted(names, reverse=True)}  # the validation strings first


def _score(run: Mapping[str, Any], name: str) -> float | None:
    """Return a score of a run: the only one, or that of a name."""
    return run["scores"].get(name) if isinstance(run["scores"], dict) else run["scores"]


def _shown(run: Mapping[str, Any], name: str) -> str:
    score = _score(run, name)
    if score is None or run["data"] != "text":
        return _percent(score)
    return f"{score:.{1 if score >= 10 else 2}f}"  # of bytes it is small


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"


def _power(flops: float | None) -> str:
    if flops is None:
        return ""
    digits, power = f"{flops:.1e}".split("e")
    return f"{digits}e{int(power)}"
