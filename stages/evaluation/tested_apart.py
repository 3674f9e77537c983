"""A model on data that it was not trained on: an entry of ``benchmarks`` or ``readings``."""

from pathlib import Path

from implicit_models.problems.problem import evaluation_of, parameters_of
from implicit_models.problems.table import TESTED_APART
from stages.common import naming, owner, read_part
from stages.evaluation.apart_entries import read_apart
from stages.tracked import open_test, track_data, track_test, write_results


def evaluate_apart(table: str, name: str) -> None:
    """Write the entry's results.

    They are tracked as metrics of the entry whose model it is; a model from elsewhere has a run of
    its own. Of several entries of one model the entry's run shows the last, and each has a child
    run.
    """
    kind = TESTED_APART[table]
    entry = read_apart(table, name)
    has_section = parameters_of(kind).EVALUATION is not None
    section = read_part("evaluation", kind) if has_section else None
    with naming(f"{table}.{name}"):
        parameters = entry.evaluation(section)
    sections = {entry.label: entry} | ({} if section is None else {"evaluation": parameters})
    trained_by = owner(entry.model)
    tracked_table, tracked = trained_by or (table, name)
    evaluation = evaluation_of(kind)
    model, data = Path(entry.model), Path("data", entry.data)
    with open_test(
        tracked_table,
        tracked,
        f"{entry.stage}_{name}",
        sections,
        model=model,
        data=data,
        tested_as=name,
    ) as tracker:
        track_data(tracker, entry.data, "evaluation")
        with naming(f"{table}.{name}"):
            found = evaluation.evaluate(model, data, parameters)
        named = {"model": entry.model, "entry": tracked if trained_by else None}
        metrics = {**found.metrics, **named, entry.data_key: entry.data}
        files = {entry.results_file: metrics, **found.files}
        if entry.headline_file is not None:
            files[entry.headline_file] = found.headline
        write_results(name, "evaluate_benchmarks", files, tracker)
        shown = found.headline if entry.tracks_headline else metrics
        track_test(tracker, shown, found.headline, entry.metric_prefix)
    found.discard()
