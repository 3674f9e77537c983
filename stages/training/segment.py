"""What the three training stages share: one segment of an entry's training, start to end."""

import contextlib
import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from implicit_models.cost.devices import peak_flops
from implicit_models.cost.flops import model_flops
from implicit_models.cost.meter import Meter
from implicit_models.cost.passes import step_flops
from implicit_models.data.batching import batch_indices, stream_indices
from implicit_models.equilibrium.phase import Phase
from implicit_models.families.building import build
from implicit_models.families.family import initial_memory
from implicit_models.files import checksum
from implicit_models.language_models.language_model import LanguageModel
from implicit_models.language_models.serialisation import load_model
from implicit_models.language_models.source_names import SourceError
from implicit_models.language_models.sources import digest_source
from implicit_models.parameters import ParameterError, digest
from implicit_models.problems.answers import TrainingData
from implicit_models.problems.problem import data_of
from implicit_models.tracking.tracker import NullTracker, Tracker
from implicit_models.training.checkpoints import CheckpointFolder
from implicit_models.training.curriculum import Segment
from implicit_models.training.definition import CountFlops, Training
from implicit_models.training.distributed import (
    Processes,
    distribute,
    open_execution,
    whole_model,
)
from implicit_models.training.optimisation import build_optimiser
from implicit_models.training.parameters import MonitoringParameters
from implicit_models.training.progress import Progress
from implicit_models.training.state_file import save_state
from implicit_models.training.trainer import train
from implicit_models.training.validation import validator
from stages.common import RESULTS, Data, read_dataset
from stages.entries import BaselineParameters, RunParameters, seed_group
from stages.finished_checkpoints import (
    CHECKPOINTS,
    discard_recorded,
    is_finished,
    mark_finished,
    name_others,
)
from stages.tracked import entry_digest, open_run, track_data, track_model, track_phase
from stages.training.change_policy import check_start
from stages.training.data_verification import verify_data
from stages.training.exclusive import trained_by_one
from stages.training.identity import Identity
from stages.training.outputs import (
    Curves,
    EarlierStage,
    segment_metrics,
    track_earlier,
    track_history,
    write_metrics,
    write_model,
)
from stages.training.resuming import load_start, resume
from stages.training.token_range import check_tokens


@dataclass(frozen=True, kw_only=True)
class SegmentStage:
    """A stage that trains an entry through a segment.

    Attributes
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

    stage: str
    table: str
    name: str
    entry: RunParameters | BaselineParameters
    sections: Mapping[str, Any]
    monitoring: MonitoringParameters
    segment: Segment
    output: Path
    earlier: str | None = None
    start: Path | None = None
    state: Path | None = None

    @property
    def parameters(self) -> dict[str, Any]:
        """Of the entry, as far as the weights depend on them."""
        common = ("dataset", "seed", "model", "optimisation")
        return {key: getattr(self.entry, key) for key in common} | dict(self.sections)


def train_segment(this: SegmentStage) -> None:
    """Train an entry through a segment and write the model, the metrics and the history."""
    root = CHECKPOINTS / this.name / this.stage
    with open_execution() as execution, contextlib.ExitStack() as stack:
        processes = execution.processes
        if processes.is_main:
            stack.enter_context(trained_by_one(root))
            discard_recorded(this.name)
        processes.wait()

        read = read_dataset(this.table, this.name)
        data = _open_data(this, read, processes)
        model = _build_model(this, data).to(processes.device)  # type: ignore[arg-type]
        if this.segment.passing is not None:
            initial_memory(model, 1)  # or say that it has none
        training = _define_training(this, data, model, processes.device)
        module = distribute(model, this.entry.optimisation.precision, execution)
        optimiser = build_optimiser(model, this.entry.optimisation)
        begin = load_start(this.start, module, optimiser, this.segment.first_step, processes)

        origin = processes.from_main(_origin(this) if processes.is_main else None)
        identity = Identity.of(
            read.kind, this.parameters, data.identity, origin, training.batch_size
        )
        checkpoints = CheckpointFolder(root, identity.digest, processes)
        if this.start is not None:
            check_start(checkpoints.path, this.start, begin, training.batch_size)
        resumed = resume(checkpoints, identity, module, optimiser)
        had_finished = is_finished(checkpoints.path)
        processes.wait()  # until all have looked
        if processes.is_main:
            verify_data(data, checkpoints.path)
            check_tokens(f"{this.table}.{this.name}", read, data)
            name_others(checkpoints.path)
            identity.write(checkpoints.path)
        processes.wait()

        before = None
        if processes.is_main and this.earlier is not None:
            before = EarlierStage.read(this.name, this.earlier)
        with _open_tracker(
            this, read, data, identity, resumed or begin, before, processes, had_finished
        ) as tracker:
            with Meter(processes.device) as meter:
                curves, progress = Curves(tracker), resumed or begin
                end = train(training, progress, module, optimiser, checkpoints, curves, execution)
            measured = meter.measurement
            joules = None if resumed else _energy(measured.energy_joules, processes)
            checkpoints.save(module, optimiser, end)
            checkpoints.wait()
            if this.state is not None:  # no times: see `write_model`
                done = dataclasses.replace(
                    end, seconds=0.0, skipped_steps=0, skipped_in_a_row=0, history=[]
                )
                save_state(this.state, module, optimiser, done, processes)
            whole = whole_model(module, model)
            if processes.is_main:
                _write(this, whole, data, end)
                measured = dataclasses.replace(measured, energy_joules=joules)
                metrics = segment_metrics(whole, begin, end, measured)
                is_last = this.state is None
                write_metrics(
                    *(this.name, this.stage, metrics, end.history, before, tracker),
                    is_last=is_last,
                )
                if is_last:
                    track_model(tracker, this.table, this.name, this.output, end.step)
                else:
                    track_phase(tracker, this.output, end.step)
                written = RESULTS / "runs" / this.name / f"{this.stage}.json"
                mark_finished(checkpoints.path, written)
        processes.wait()


def _energy(joules: float | None, processes: Processes) -> float | None:
    """Return the joules that all processes have used, of one; None where one does not know.

    Each knows of its own GPU. Without GPUs each knows of its machine, and a single process tells.
    """
    knows = joules is not None and (processes.device.type == "cuda" or processes.size == 1)
    known, total = processes.total(float(knows), joules or 0.0)
    return total if known == processes.size else None


def _open_data(this: SegmentStage, read: Data, processes: Processes) -> TrainingData:
    """Open what is trained on, and check that there is enough of it for a batch of all."""
    data = data_of(read.kind).open_training(read.folder, read.parameters)
    found, held_out = len(data.train.inputs), len(data.validation.inputs)
    length = data.train.inputs.shape[1]
    batch_size = this.entry.optimisation.sequences_a_step(length)
    a_step = f"{this.table}.{this.name}.{this.entry.optimisation.batch(length)} is not allowed"
    if this.monitoring.validation_sequences > held_out:
        raise ParameterError(
            f"monitoring.validation_sequences = {this.monitoring.validation_sequences} is not "
            f"allowed; allowed is at most {held_out}, the validation sequences of {read.folder}"
        )
    if batch_size > found:
        raise ParameterError(
            f"{a_step}; allowed is at most {found}, the training sequences of {read.folder}: add "
            "data, or lower the batch"
        )
    if batch_size % processes.size:
        raise ParameterError(
            f"{a_step} with {processes.size} processes, which cannot share {batch_size} sequences "
            "equally; start a number of processes that divides them"
        )
    trained_on = this.start.parent if this.start is not None else this.entry.model.weights_source
    if trained_on is not None:
        data.check_model(Path(trained_on))
    return data


def _build_model(this: SegmentStage, data: TrainingData) -> LanguageModel:
    """Build the model to train; a source is read but once, for an entry's first segment."""
    if this.start is not None and this.entry.model.source is not None:
        return load_model(this.start.parent)
    entry = this.entry
    try:
        return build(entry.model, data.vocabulary_size, entry.seed, data.label_alignment)
    except SourceError as error:
        key = f"{this.table}.{this.name}.model.source = {entry.model.source!r}"
        raise SourceError(f"{key} is not allowed: {error}") from None


def _define_training(
    this: SegmentStage, data: TrainingData, model: LanguageModel, device: torch.device
) -> Training:
    optimisation, monitoring = this.entry.optimisation, this.monitoring
    num_sequences, length = data.train.inputs.shape
    batch_size = optimisation.sequences_a_step(length)
    drawn = {"batch_size": batch_size, "num_sequences": num_sequences, "seed": this.entry.seed}
    return Training(
        segment=this.segment,
        optimisation=optimisation,
        monitoring=monitoring,
        sequences=data.train,
        batch_size=batch_size,
        batch_indices=functools.partial(batch_indices, **drawn),
        stream_indices=functools.partial(stream_indices, **drawn),
        continuation=data.continuation,
        validate=validator(
            *(data.validation, monitoring.validation_sequences, this.segment.phase, batch_size),
            passes_carry=this.segment.passing is not None,
        ),
        count_flops=_flops_counter(model, this.segment.phase),
        peak_flops=peak_flops(device, getattr(torch, optimisation.precision)),
        seed=this.entry.seed,
    )


def _flops_counter(model: LanguageModel, phase: Phase | None) -> CountFlops:
    shapes = model_flops(model)  # which may have to run the model, in one piece

    def count(
        num_sequences: int, length: int, search_evaluations: float, passes_carry: bool = False
    ) -> float:
        return step_flops(
            shapes,
            phase,
            length=length,
            num_sequences=num_sequences,
            search_evaluations=search_evaluations,
            passes_carry=passes_carry,
        )

    return count


def _origin(this: SegmentStage) -> str | None:
    """Digest what the training starts from; a source is read but for an entry's first segment."""
    if this.start is not None:
        return checksum(this.start)
    source = this.entry.model.source
    return digest_source(source) if source else None


def _open_tracker(
    this: SegmentStage,
    read: Data,
    data: TrainingData,
    identity: Identity,
    start: Progress,
    before: EarlierStage | None,
    processes: Processes,
    had_finished: bool,
) -> Tracker:
    """Open the tracker of the main process; that of the others listens to nothing."""
    if not processes.is_main:
        return NullTracker()
    tracker = open_run(
        this.table,
        this.name,
        this.stage,
        {"monitoring": this.monitoring, "data": read.parameters},
        entry=this.entry.model_dump(),
        group=digest(seed_group(this.table, this.name), data.identity),
        resume_key=identity.digest,
        finished_counts=had_finished,  # and DVC has not recorded it
        tags={"training.changes": "; ".join(start.changes)} if start.changes else {},
    )
    track_data(tracker, this.entry.dataset, "training")
    if before is not None:
        track_earlier(before.history, tracker)
    track_history(start.history, tracker)  # of which a spool that goes on has all
    return tracker


def _write(this: SegmentStage, model: LanguageModel, data: TrainingData, end: Progress) -> None:
    write_model(
        model,
        this.output,
        entry=f"{this.table}.{this.name}",
        parameters=this.parameters,
        progress=end,
        digest=entry_digest(this.table, this.name) if this.state is None else None,
        save_beside=data.save_beside,
        end_of_text=data.end_of_text,
        state=this.state,
    )
