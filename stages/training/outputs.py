"""What a training stage writes: the model with its card, what it cost, metrics and history."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from implicit_models.checksums import filled
from implicit_models.cost.meter import Measurement
from implicit_models.language_models.language_model import LanguageModel, num_parameters
from implicit_models.language_models.serialisation import save_model
from implicit_models.parameters import Parameters
from implicit_models.reporting.files import read_csv, read_json
from implicit_models.tracking.names import curves, entry_totals, of_entry, stage_totals
from implicit_models.tracking.tracker import Tracker
from implicit_models.training.progress import Progress
from stages.common import RESULTS, write_json
from stages.tracked import write_results

COST = "training_cost.json"  # in a model's folder

_SUMMARISED = ("loss", "accuracy", "self_iterations", "validation_loss", "validation_accuracy")
_COSTS = (
    *("num_training_steps", "num_tokens", "training_flops", "train_seconds"),
    "num_skipped_steps",
)
_MEASURED = {"energy_joules": sum, "peak_memory_bytes": max}  # not by every machine

log = logging.getLogger(__name__)


def write_model(
    model: LanguageModel,
    folder: Path,
    *,
    entry: str,
    parameters: Mapping[str, Any],
    progress: Progress,
    digest: str | None,
    save_beside: Callable[[Path], None],
    end_of_text: int | None,
    state: Path | None,
) -> None:
    """Write a trained model, its card, what it needs beside it, and what its training has cost.

    The folder has all of it, with checksums, or what it had before. No times: training again must
    leave the same bytes, or DVC would have all that follows done again as well.

    Parameters
    ----------
    entry
        As ``"runs.a5_implicit_mamba2"``.
    parameters
        Those that the weights depend on.
    digest
        Of the whole entry, by which its tracked run is found; None for the model of an earlier
        segment, or it would have the next one trained again for nothing.
    save_beside, end_of_text
        Of `TrainingData`.
    state
        Of the training, where it is in the folder already.
    """
    _remember_phases(model, parameters)
    if end_of_text is not None and model.can_generate():
        model.config.eos_token_id = model.generation_config.eos_token_id = end_of_text
    totals = {"tokens": progress.tokens, "flops": progress.flops}
    with filled(folder, keep=[state.name] if state else []) as partial:
        save_model(model, partial, _provenance(entry, parameters, progress, digest))
        save_beside(partial)
        write_json(partial / COST, {"num_parameters": num_parameters(model), **totals})


def segment_metrics(
    model: LanguageModel, begin: Progress, end: Progress, measured: Measurement
) -> dict[str, Any]:
    """Return what a segment has taken, and where it has arrived."""
    num_tokens, last = end.tokens - begin.tokens, end.history[-1]
    return {
        "num_parameters": num_parameters(model),
        "num_training_steps": end.step - begin.step,
        "num_skipped_steps": end.skipped_steps,
        "num_tokens": num_tokens,
        "training_flops": end.flops - begin.flops,
        "train_seconds": end.seconds,
        "tokens_per_second": num_tokens / max(end.seconds, 1e-9),
        "peak_memory_bytes": measured.peak_memory_bytes,
        "energy_joules": measured.energy_joules,
        **{key: last[key] for key in _SUMMARISED if key in last},
    }


def write_metrics(
    name: str,
    stage: str,
    metrics: Mapping[str, Any],
    history: list[dict[str, Any]],
    earlier: "EarlierStage | None",
    tracker: Tracker,
    *,
    is_last: bool,
) -> None:
    """Write the metrics and the history of a segment, and track them.

    Parameters
    ----------
    is_last
        Whether the entry's training has ended with it, whose totals are then tracked.
    """
    files = {f"{stage}.json": metrics, f"{stage}_history.csv": history}
    write_results(name, stage, files, tracker)
    # At no step: MLflow draws a bar for such a value, and a curve of one point for any other.
    tracker.log_metrics(stage_totals(metrics), level="stage")
    if is_last:
        whole = metrics if earlier is None else earlier.added_to(metrics)
        tracker.log_metrics(entry_totals(whole), level="entry")


class Curves:
    """Tracks what a training logs: in the stage's run, and the main curves in the entry's too."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Track what was logged at a step."""
        named = curves(metrics)
        shared = of_entry(named)
        self._tracker.log_metrics(shared, step, "both")
        rest = {name: value for name, value in named.items() if name not in shared}
        self._tracker.log_metrics(rest, step, "stage")


def track_history(rows: Iterable[Mapping[str, Any]], tracker: Tracker) -> None:
    """Track what was logged before this process."""
    for step, logged in _logged(rows):
        Curves(tracker).log_metrics(logged, step)


def track_earlier(rows: Iterable[Mapping[str, Any]], tracker: Tracker) -> None:
    """Track the main curves of the stage before, where the entry's run does not have them yet."""
    for step, logged in _logged(rows):
        tracker.log_metrics(of_entry(curves(logged)), step, "new entry")


def _logged(rows: Iterable[Mapping[str, Any]]) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield the steps of a history and what was logged at them."""
    for row in rows:
        values = {key: row[key] for key in row if key not in ("step", "phase") and row[key] != ""}
        yield int(row["step"]), {key: float(value) for key, value in values.items()}


@dataclass(frozen=True)
class EarlierStage:
    """What the stage before left in ``results/``, for the tracking alone.

    It is no dependency in dvc.yaml: it holds wall times, so that training the phase before again,
    to the same weights, would have this one trained again as well.
    """

    metrics: Mapping[str, float]
    history: list[dict[str, str]]

    @classmethod
    def read(cls, name: str, stage: str) -> "EarlierStage":
        """Read what a stage of an entry left; nothing, with a warning, where it is of no use."""
        folder = RESULTS / "runs" / name
        try:
            metrics = read_json(folder / f"{stage}.json", stage)
            history = read_csv(folder / f"{stage}_history.csv", stage)
        except (OSError, ValueError) as error:
            log.warning("%s; the tracked run will lack the times of %s", error, stage)
            return cls({}, [])
        return cls(metrics, history)

    def added_to(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Add the costs of the phase before; leave them out where they are not known."""
        added = (*_COSTS, *_MEASURED, "tokens_per_second")
        whole = {key: metrics[key] for key in metrics if key not in added}
        if all(key in self.metrics for key in _COSTS):
            whole |= {key: self.metrics[key] + metrics[key] for key in _COSTS}
            whole["tokens_per_second"] = whole["num_tokens"] / max(whole["train_seconds"], 1e-9)
        for key, combine in _MEASURED.items():
            both = [phase.get(key) for phase in (self.metrics, metrics)]
            if None not in both:
                whole[key] = combine(both)
        return whole


def _remember_phases(model: LanguageModel, parameters: Mapping[str, Any]) -> None:
    """Note how it was trained for whoever searches with an implicit model, or trains it further."""
    if bounded := parameters.get("bounded"):
        model.config.training_phase = "bounded"
        model.config.bounded_self_iterations = bounded.num_self_iterations
        model.config.bounded_phantom_steps = bounded.phantom_steps
        if bounded.damping is not None:
            model.config.damping = bounded.damping
    if free := parameters.get("free"):
        model.config.training_phase = "free"
        model.config.training_tolerance = free.tolerance
        model.config.training_max_self_iterations = free.max_steps
        for name in ("damping", "gradient", "phantom_steps", "unrolled_steps"):
            setattr(model.config, name, getattr(free, name))
        model.config.solver = free.solver or "picard"
        model.config.best_so_far = bool(free.best_so_far)


def _provenance(
    entry: str, parameters: Mapping[str, Any], progress: Progress, digest: str | None
) -> dict[str, dict[str, Any]]:
    """Return, for the model's card, how it was trained and which tracked run tells more."""
    source = parameters["model"].source
    training = {"entry": entry} | ({"source": source} if source else {})
    training |= {key: _plain(value) for key, value in parameters.items() if key != "model"}
    if progress.changes:
        training["changed under way"] = "; ".join(progress.changes)
    tracking = {"MLflow run": entry.partition(".")[2]}
    if digest is not None:
        tracking["tag parameters.digest"] = digest
    return {"training": training, "tracking": tracking}


def _plain(value: Any) -> Any:
    return value.model_dump() if isinstance(value, Parameters) else value
