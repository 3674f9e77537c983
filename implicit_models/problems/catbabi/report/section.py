"""The section of the report about the models of one stream of bAbI's tasks."""

from collections.abc import Mapping, Sequence

from implicit_models.problems.catbabi.report import tables
from implicit_models.problems.catbabi.report.comparing import layers_known
from implicit_models.problems.catbabi.report.figures import (
    accuracy_by_distance,
    accuracy_by_layers,
    accuracy_by_task,
)
from implicit_models.problems.catbabi.report.lead import (
    catbabi_lead,
    stream_name,
    what_is_read,
)
from implicit_models.problems.catbabi.report.results import CatbabiResults, distances_of
from implicit_models.problems.catbabi.report.search_figures import (
    FEWEST_TOKENS,
    NUM_WORDS,
    accuracy_by_compute,
    model_of_words,
    self_iterations_by_task,
    self_iterations_by_word,
)
from implicit_models.reporting.figures.compute import COMPUTE_CAPTION
from implicit_models.reporting.figures.style import RunStyle
from implicit_models.reporting.figures.training import training_curves
from implicit_models.reporting.illustration import Draw, illustrate
from implicit_models.reporting.sections import Section
from implicit_models.reporting.tables.compute import compute_tables
from implicit_models.reporting.tables.cost import cost_tables
from implicit_models.reporting.training_notes import training_notes

_BY_TASK = (
    "Accuracy by task of every model: the mean of its seeds, which are the faint dots. Of a model "
    "with one seed a line is the 95 % interval by the test questions."
)
_Drawn = list[tuple[Draw, Sequence[CatbabiResults], str]]


def catbabi_section(runs: Sequence[CatbabiResults], styles: Mapping[str, RunStyle]) -> Section:
    """Write the section."""
    implicit = [run for run in runs if run.kind == "implicit"]
    drawn: _Drawn = [(accuracy_by_task, runs, _BY_TASK)]
    shown = [tables.accuracy_table(runs), *cost_tables(runs), tables.task_table(runs)]
    if len(layers_known(runs)) > 1:
        caption = "Accuracy over all questions against the number of layers; of several models "
        caption += "with as many layers the line runs through the best."
        drawn.append((accuracy_by_layers, runs, caption))
    if distances_of(runs):
        caption = "Accuracy against the lines from the question back to the furthest of the facts "
        caption += "that the answer follows from."
        drawn.append((accuracy_by_distance, runs, caption))
        shown.append(tables.distance_table(runs))
    curves = "Training; loss and accuracy are over the tokens that are trained on."
    drawn.append((training_curves, runs, " ".join([curves, *training_notes(runs)])))
    if implicit:
        drawn += _search_figures(implicit)
        shown.append(tables.search_table(implicit))
    swept = [run for run in implicit if run.test_time_compute is not None]
    if swept:
        drawn.append((accuracy_by_compute, swept, COMPUTE_CAPTION))
        shown += compute_tables(swept, {"accuracy": "accuracy"})
    if any(run.iterations_by_task for run in implicit):
        shown.append(tables.iteration_table(implicit))
    shown += tables.published_tables(runs)
    return Section(
        title=f"{stream_name(runs)} {runs[0].dataset}",
        lead=catbabi_lead(runs),
        description=f"{what_is_read(runs)}.",
        illustrations=[illustrate(draw, of, styles, caption) for draw, of, caption in drawn],
        tables=shown,
    )


def _search_figures(implicit: Sequence[CatbabiResults]) -> _Drawn:
    drawn: _Drawn = []
    if any(run.iterations_by_task for run in implicit):
        caption = f"Self-iterations by task. {tables.TOKEN_ITERATIONS}."
        drawn.append((self_iterations_by_task, implicit, caption))
    model = model_of_words(implicit)
    if model is not None:
        caption = (
            f"{model.name}: the words with the most and with the fewest self-iterations, "
            f"{NUM_WORDS} each at most, of those that the test stream has {FEWEST_TOKENS} times "
            "or more."
        )
        drawn.append((self_iterations_by_word, implicit, caption))
    return drawn
