"""An entry of ``readings``: one model on a corpus that it was not trained on."""

from pathlib import Path

from implicit_models.evaluation.parameters import ReadingParameters
from implicit_models.parameters import ParameterError, read_section
from stages.common import DATA, owner, read_entries
from stages.evaluation_stage import headline, read_part
from stages.tracked import numbers, open_run, track_data, write_results

CORPORA = ("corpora", "hub_corpora")


def evaluate_reading(name: str) -> None:
    """Write what an evaluation on text writes; see `own_data.evaluate_corpus`.

    It is tracked as metrics of the entry whose model it is; a model from elsewhere has a run of its
    own.
    """
    parameters = read_section(f"readings.{name}", ReadingParameters)
    corpora = {entry: table for table in CORPORA for entry in read_entries(table)}
    if parameters.corpus not in corpora:
        raise ParameterError(
            f"readings.{name}.corpus = {parameters.corpus!r} is not allowed; allowed is an entry "
            f"of corpora or hub_corpora: {', '.join(corpora) or 'none'}"
        )
    found = corpora[parameters.corpus]
    text = read_part("evaluation", read_section(f"{found}.{parameters.corpus}", DATA[found]))
    entry = owner(parameters.model)
    table, tracked = entry or ("readings", name)

    from stages.own_data import evaluate_corpus

    stage = f"evaluate_reading_{name}"
    with open_run(table, tracked, stage, {"reading": parameters, "evaluation": text}) as tracker:
        track_data(tracker, parameters.corpus, "evaluation")
        folders = Path(parameters.model), Path("data", parameters.corpus)
        metrics, _, store = evaluate_corpus(*folders, text)
        metrics |= {"model": parameters.model, "corpus": parameters.corpus}
        metrics["entry"] = tracked if entry else None
        files = {"evaluation.json": metrics, "metrics.json": headline(metrics)}
        write_results(name, files, tracker)
        tracker.log_metrics(numbers(metrics, f"readings.{parameters.corpus}."))
    if store is not None:
        store.discard()
