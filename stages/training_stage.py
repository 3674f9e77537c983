"""What the three training stages share: one segment of an entry's training, start to end."""

import csv
import dataclasses
import functools
import hashlib
import json
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

import implicit_models
from implicit_models.cost.devices import peak_flops
from implicit_models.cost.flops import model_flops
from implicit_models.cost.meter import Meter
from implicit_models.cost.passes import step_flops
from implicit_models.data.batching import batch_indices
from implicit_models.data.tokenisation import load_tokenizer
from implicit_models.equilibrium.phase import Phase
from implicit_models.language_models.building import LanguageModel, build, num_parameters
from implicit_models.language_models.modelling import ModelFileError
from implicit_models.language_models.serialisation import load_model, save_model
from implicit_models.language_models.sources import digest_source
from implicit_models.parameters import ParameterError, Parameters, digest, source_digest
from implicit_models.tracking.tracker import Level, NullTracker, Tracker
from implicit_models.training.checkpoints import CheckpointFolder
from implicit_models.training.curriculum import Segment
from implicit_models.training.definition import CountFlops, Training
from implicit_models.training.distributed import (
    Execution,
    Processes,
    distribute,
    open_execution,
    whole_model,
)
from implicit_models.training.optimisation import build_optimiser
from implicit_models.training.parameters import MonitoringParameters
from implicit_models.training.progress import Progress
from implicit_models.training.state_file import load_state, save_state
from implicit_models.training.trainer import train
from implicit_models.training.validation import validator
from stages.changed_batch import begun_with_another_batch, check_start, note_batch
from stages.checked_data import check_data
from stages.common import RESULTS, read_dataset, write_json
from stages.ended_trainings import (
    CHECKPOINTS,
    discard_recorded,
    is_ended,
    mark_ended,
    name_others,
)
from stages.entries import BaselineParameters, RunParameters
from stages.tracked import (
    entry_digest,
    numbers,
    open_run,
    track_data,
    track_model,
    write_results,
)
from stages.training_data import TrainingData, open_training_data

COMPUTING = ("backbones", "cost", "data", "equilibrium", "kernels", "language_models", "training")
COST = "training_cost.json"  # in a model's folder
SUMMARISED = ("loss", "accuracy", "self_iterations", "validation_loss", "validation_accuracy")

log = logging.getLogger(__name__)


def train_segment(
    *,
    stage: str,
    table: str,
    name: str,
    entry: RunParameters | BaselineParameters,
    sections: Mapping[str, Any],
    monitoring: MonitoringParameters,
    segment: Segment,
    output: Path,
    earlier: str | None = None,
    start: Path | None = None,
    state: Path | None = None,
) -> None:
    """Train an entry through a segment and write the model, the metrics and the history.

    Parameters
    ----------
    stage, table, name
        ``"train_free"``, ``"runs"``, ``"a5_implicit_mamba2"``.
    sections
        The entry's sections of this segment; everything else that the weights depend on is
        common to all.
    output
        The model's folder.
    earlier
        The stage whose segment comes before this one.
    start, state
        The state of training from which the segment starts, and where it leaves its own; a state
        is left where another segment follows, and the model counts as final otherwise.
    """
    with open_execution() as execution:
        _train_segment(
            _Segment(stage, table, name, entry, sections, monitoring, segment, output),
            execution,
            earlier,
            start,
            state,
        )


@dataclasses.dataclass(frozen=True)
class _Segment:
    """What is trained; as the parameters of `train_segment`."""

    stage: str
    table: str
    name: str
    entry: RunParameters | BaselineParameters
    sections: Mapping[str, Any]
    monitoring: MonitoringParameters
    segment: Segment
    output: Path

    @property
    def parameters(self) -> dict[str, Any]:
        """Of the entry, as far as the weights depend on them."""
        return {
            "dataset": self.entry.dataset,
            "seed": self.entry.seed,
            "model": self.entry.model,
            "optimisation": self.entry.optimisation,
            **self.sections,
        }


def _train_segment(
    this: _Segment,
    execution: Execution,
    earlier: str | None,
    start: Path | None,
    state: Path | None,
) -> None:
    processes, entry, segment = execution.processes, this.entry, this.segment
    if processes.is_main:
        discard_recorded(this.name)
    processes.wait()
    data = open_training_data(*read_dataset(this.table, this.name))
    batch_size = entry.optimisation.sequences_a_step(data.train.inputs.shape[1])
    _check_validation(data, this.monitoring, entry.dataset)
    _check_batch(data, batch_size, entry.dataset, processes)
    trained_on = start.parent if start is not None else entry.model.source
    if trained_on is not None:
        data.check_model(Path(trained_on))
    model = _build(entry, data, start)
    model.to(processes.device)  # type: ignore[arg-type]
    count_flops = _flops_counter(model, segment.phase)  # it may have to run the model, in one piece
    module = distribute(model, entry.optimisation.precision, execution)
    optimiser = build_optimiser(model, entry.optimisation)
    begin = Progress(segment.first_step)
    if start is not None:
        begin = _read_state(start, module, optimiser, segment.first_step, processes)
    training = Training(
        segment=segment,
        optimisation=entry.optimisation,
        monitoring=this.monitoring,
        sequences=data.train,
        batch_size=batch_size,
        batch_indices=functools.partial(
            batch_indices,
            batch_size=batch_size,
            num_sequences=len(data.train.inputs),
            seed=entry.seed,
        ),
        validate=validator(
            data.validation, this.monitoring.validation_sequences, segment.phase, batch_size
        ),
        count_flops=count_flops,
        peak_flops=peak_flops(processes.device, getattr(torch, entry.optimisation.precision)),
        seed=entry.seed,
    )
    origin = processes.from_main(_origin(start, entry.model.source) if processes.is_main else None)
    identity = _identity(this.parameters, data, origin)
    rest = _identity(_without_batch(this.parameters), data, origin)
    root = CHECKPOINTS / this.name / this.stage
    checkpoints = CheckpointFolder(root, identity, processes)
    if start is not None:
        check_start(checkpoints.path, start, begin.step, begin.sequences, batch_size)
    other = begun_with_another_batch(checkpoints.path, batch_size, rest)
    progress = checkpoints.resume(module, optimiser)
    if progress is None and other is not None:
        progress = CheckpointFolder(root, other.name, processes).resume(module, optimiser)
    had_ended = is_ended(checkpoints.path)
    processes.wait()  # until all have looked
    if processes.is_main:
        check_data(data, checkpoints.path)
        name_others(checkpoints.path)
        note_batch(checkpoints.path, batch_size, rest)
    before = _Earlier.read(this.name, earlier) if earlier else None
    tracker: Tracker = NullTracker()
    if processes.is_main:
        tracker = open_run(
            this.table,
            this.name,
            this.stage,
            {"monitoring": this.monitoring},
            entry=entry.model_dump(),
            resume_key=identity,
        )
    with tracker:
        if processes.is_main:
            track_data(tracker, entry.dataset, "training")
        if before is not None:
            _track_history(before.history, tracker, "new entry")
        with Meter(processes.device) as meter:
            progress = train(
                training, progress or begin, module, optimiser, checkpoints, tracker, execution
            )
        checkpoints.save(module, optimiser, progress)
        checkpoints.wait()
        if state is not None:  # no times: see below
            done = dataclasses.replace(progress, seconds=0.0, skipped_steps=0, history=[])
            save_state(state, module, optimiser, done, processes)
        whole = whole_model(module, model)
        if processes.is_main:
            _remember_phases(whole, this.parameters)
            spent = _Spent(begin, progress, meter)
            _write(this, whole, data, spent, before, tracker, had_ended, state is None)
            mark_ended(checkpoints.path, RESULTS / "runs" / this.name / f"{this.stage}.json")
    processes.wait()


@dataclasses.dataclass(frozen=True)
class _Spent:
    """What the segment took."""

    begin: Progress
    progress: Progress
    meter: Meter


def _write(
    this: _Segment,
    model: LanguageModel,
    data: TrainingData,
    spent: _Spent,
    before: "_Earlier | None",
    tracker: Tracker,
    had_ended: bool,
    is_final: bool,
) -> None:
    """Write the model and what is told of its training."""
    begin, progress = spent.begin, spent.progress
    provenance = _provenance(this.table, this.name, this.parameters, is_final=is_final)
    save_model(model, this.output, provenance)
    if data.tokenizer is not None:
        load_tokenizer(data.tokenizer).save(this.output)
    # No times: training again must leave the same bytes, or DVC would have all that follows
    # done again as well.
    totals = {"tokens": progress.tokens, "flops": progress.flops}
    write_json(this.output / COST, {"num_parameters": num_parameters(model), **totals})
    num_tokens = progress.tokens - begin.tokens
    metrics = {
        "num_parameters": num_parameters(model),
        "num_training_steps": this.segment.num_steps,
        "num_skipped_steps": progress.skipped_steps,
        "num_tokens": num_tokens,
        "training_flops": progress.flops - begin.flops,
        "train_seconds": progress.seconds,
        "tokens_per_second": num_tokens / max(progress.seconds, 1e-9),
        "peak_memory_bytes": spent.meter.measurement.peak_memory_bytes,
        "energy_joules": spent.meter.measurement.energy_joules,
    }
    last = progress.history[-1]
    metrics |= {key: last[key] for key in SUMMARISED if key in last}
    files = {f"{this.stage}.json": metrics, f"{this.stage}_history.csv": progress.history}
    write_results(this.name, files, tracker)
    if had_ended:
        _track_history(progress.history, tracker)
    whole = metrics if before is None else before.added_to(metrics)
    tracker.log_metrics(numbers(metrics, "training."), progress.step, "stage")
    tracker.log_metrics(numbers(whole, "training."), progress.step, "entry")
    if is_final:
        track_model(tracker, this.table, this.name, this.output)


@dataclasses.dataclass(frozen=True)
class _Earlier:
    """What the stage before left in ``results/``, for the tracking alone.

    It is no dependency in dvc.yaml: it holds wall times, so that training the phase before again,
    to the same weights, would have this one trained again as well.
    """

    metrics: Mapping[str, float]
    history: list[dict[str, str]]

    @classmethod
    def read(cls, name: str, stage: str) -> "_Earlier":
        folder = RESULTS / "runs" / name
        try:
            metrics = json.loads((folder / f"{stage}.json").read_text())
            history = (folder / f"{stage}_history.csv").read_text().splitlines()
        except FileNotFoundError as error:
            log.warning("%s; the tracked run will lack the times of %s", error, stage)
            return cls({}, [])
        return cls(metrics, list(csv.DictReader(history)))

    def added_to(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Add the costs of the phase before; leave them out where they are not known."""
        costs = ("num_training_steps", "num_tokens", "training_flops", "train_seconds")
        whole = {key: metrics[key] for key in metrics if key not in (*costs, "tokens_per_second")}
        if all(key in self.metrics for key in costs):
            whole |= {key: self.metrics[key] + metrics[key] for key in costs}
            whole["tokens_per_second"] = whole["num_tokens"] / max(whole["train_seconds"], 1e-9)
        return whole


def _build(
    entry: RunParameters | BaselineParameters, data: TrainingData, start: Path | None
) -> LanguageModel:
    """Give the model to train; a source is read but once, for an entry's first segment."""
    if start is not None and entry.model.source is not None:
        return load_model(start.parent)
    return build(entry.model, data.vocabulary_size, entry.seed, data.label_alignment)


def _flops_counter(model: LanguageModel, phase: Phase | None) -> CountFlops:
    shapes = model_flops(model)

    def count(num_sequences: int, length: int, search_evaluations: float) -> float:
        return step_flops(
            shapes,
            phase,
            length=length,
            num_sequences=num_sequences,
            search_evaluations=search_evaluations,
        )

    return count


def _check_validation(data: TrainingData, monitoring: MonitoringParameters, dataset: str) -> None:
    found = len(data.validation.inputs)
    if monitoring.validation_sequences > found:
        raise ParameterError(
            f"monitoring.validation_sequences = {monitoring.validation_sequences} is not allowed; "
            f"allowed is at most {found}, which are in data/{dataset}"
        )


def _check_batch(data: TrainingData, batch_size: int, dataset: str, processes: Processes) -> None:
    found = len(data.train.inputs)
    if batch_size > found:
        raise ParameterError(
            f"a step takes {batch_size} sequences (optimisation.batch_size, or batch_tokens), and "
            f"data/{dataset} has {found} of {data.train.inputs.shape[1]} tokens to train on: too "
            "little for one batch; add data, or lower the batch"
        )
    if batch_size % processes.size:
        raise ParameterError(
            f"a step takes {batch_size} sequences (optimisation.batch_size, or batch_tokens), "
            f"which {processes.size} processes cannot share equally; start a number of processes "
            "that divides it"
        )


def _track_history(
    rows: Iterable[Mapping[str, Any]], tracker: Tracker, level: Level = "both"
) -> None:
    for row in rows:
        values = {key: row[key] for key in row if key not in ("step", "phase") and row[key] != ""}
        numbers = {key: float(value) for key, value in values.items()}
        tracker.log_metrics(numbers, int(row["step"]), level)


def _read_state(
    path: Path,
    module: nn.Module,
    optimiser: torch.optim.Optimizer,
    first_step: int,
    processes: Processes,
) -> Progress:
    try:
        progress = load_state(path, module, optimiser, processes)
    except (SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise ModelFileError(
            f"{path} is not a state of training of this model ({error}); run the stage "
            "train_bounded of this entry again"
        ) from None
    if progress.step != first_step:
        raise ModelFileError(
            f"{path} is the state after {progress.step} steps, needed is {first_step}, the entry's "
            "bounded.num_training_steps; run the stage train_bounded of this entry again"
        )
    return progress


def _remember_phases(model: LanguageModel, parameters: Mapping[str, Any]) -> None:
    """Have whoever searches with an implicit model, or trains it further, do it as was done."""
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
        model.config.phantom_steps = free.phantom_steps
        model.config.damping = free.damping


def _provenance(
    table: str, name: str, parameters: Mapping[str, Any], *, is_final: bool
) -> dict[str, dict[str, Any]]:
    """Say in the model's card how it was trained, and which tracked run tells more.

    The digest is of the whole entry: in the card of an earlier segment it would have the next one
    trained again for nothing.
    """
    trained = {key: _plain(value) for key, value in parameters.items() if key != "model"}
    source = parameters["model"].source
    tracking = {"MLflow run": name}
    if is_final:
        tracking["tag parameters.digest"] = entry_digest(table, name)
    return {
        "training": {"entry": f"{table}.{name}"} | ({"source": source} if source else {}) | trained,
        "tracking": tracking,
    }


def _plain(value: Any) -> Any:
    return value.model_dump() if isinstance(value, Parameters) else value


def _without_batch(parameters: Mapping[str, Any]) -> dict[str, Any]:
    plain = parameters["optimisation"].model_dump()
    kept = {key: value for key, value in plain.items() if key not in ("batch_size", "batch_tokens")}
    return {**parameters, "optimisation": kept}


def _origin(start: Path | None, source: str | None) -> str | None:
    """Digest what the training starts from; a source is read but for an entry's first segment."""
    if start is not None:
        with start.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    return digest_source(source) if source else None


def _identity(parameters: Mapping[str, Any], data: TrainingData, origin: str | None) -> str:
    """Digest everything that the weights depend on."""
    library = Path(implicit_models.__file__).parent
    return digest(
        parameters,
        data.identity,
        origin,
        source_digest(library / package for package in COMPUTING),
        torch.__version__,
    )
