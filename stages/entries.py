"""The entries of the tables ``runs``, ``upcycled`` and ``baselines`` of params.yaml."""

from dataclasses import dataclass

from implicit_models.data.parameters import DatasetParameters
from implicit_models.language_models.parameters import (
    ModelParameters,
    is_folder,
    is_hub_id,
)
from implicit_models.parameters import ParameterError, read_section, setting, validate
from implicit_models.training.parameters import (
    BoundedParameters,
    ExplicitParameters,
    FreeParameters,
    LengthParameters,
    MonitoringParameters,
    OptimisationParameters,
)
from stages.common import read_dataset


@dataclass(frozen=True, kw_only=True)
class RunParameters:
    """An implicit model, trained in the bounded and then in the free phase."""

    dataset: str = setting()
    seed: int = setting(minimum=0)
    model: ModelParameters
    optimisation: OptimisationParameters
    bounded: BoundedParameters
    free: FreeParameters

    def __post_init__(self) -> None:
        """Check each key, and that the model is implicit."""
        validate(self)
        if not self.model.implicit:
            raise ParameterError(
                "model.implicit = False is not allowed; entries of runs are implicit: an "
                "explicit model is an entry of baselines"
            )


@dataclass(frozen=True, kw_only=True)
class BaselineParameters:
    """An explicit model, trained in one go."""

    dataset: str = setting()
    seed: int = setting(minimum=0)
    model: ModelParameters
    optimisation: OptimisationParameters
    training: ExplicitParameters

    def __post_init__(self) -> None:
        """Check each key, and that the model is explicit."""
        validate(self)
        if self.model.implicit:
            raise ParameterError(
                "model.implicit = True is not allowed; entries of baselines are explicit: an "
                "implicit model is an entry of runs"
            )


def read_run(table: str, name: str) -> RunParameters:
    """Read an entry of ``runs`` or ``upcycled`` and check it against its data set."""
    run = read_section(f"{table}.{name}", RunParameters)
    if table == "upcycled" and run.model.family != "upcycled":
        raise ParameterError(
            f"upcycled.{name}.model.family = {run.model.family!r} is not allowed; allowed is "
            "'upcycled': other implicit models are entries of runs"
        )
    source = run.model.source
    if table == "runs" and source is not None and not is_hub_id(source):
        raise ParameterError(
            f"runs.{name}.model.source = {source!r} is not allowed; allowed is a model's hub id: "
            "with a folder this is an entry of upcycled, where DVC waits for what makes it"
        )
    _check_source(f"{table}.{name}", run.model)
    dataset = read_dataset(table, name)[1]
    for section, lengths in (("bounded", run.bounded.lengths), ("free", run.free.lengths)):
        _check_lengths(f"{table}.{name}.{section}", lengths, run.dataset, dataset)
    return run


def read_baseline(name: str) -> BaselineParameters:
    """Read an entry of ``baselines`` and check it against its data set."""
    baseline = read_section(f"baselines.{name}", BaselineParameters)
    _check_source(f"baselines.{name}", baseline.model)
    dataset = read_dataset("baselines", name)[1]
    lengths = baseline.training.lengths
    _check_lengths(f"baselines.{name}.training", lengths, baseline.dataset, dataset)
    return baseline


def read_monitoring(table: str, name: str) -> MonitoringParameters:
    """Read the section ``monitoring`` and check it against an entry's data set."""
    monitoring = read_section("monitoring", MonitoringParameters)
    dataset, parameters = read_dataset(table, name)
    if monitoring.validation_sequences > parameters.validation.num_sequences:
        raise ParameterError(
            f"monitoring.validation_sequences = {monitoring.validation_sequences} is not allowed; "
            f"allowed is at most datasets.{dataset}.validation.num_sequences, "
            f"{parameters.validation.num_sequences}"
        )
    return monitoring


def _check_source(key: str, model: ModelParameters) -> None:
    source = model.source
    if source is not None and not is_hub_id(source) and not is_folder(source):
        raise ParameterError(
            f"{key}.model.source = {source!r} is not allowed; allowed is a folder, and there is "
            "none of this name, or a model's hub id, NAME or OWNER/NAME"
        )


def _check_lengths(
    key: str, lengths: LengthParameters, dataset_name: str, dataset: DatasetParameters
) -> None:
    if lengths.end > dataset.train.length:
        raise ParameterError(
            f"{key}.lengths.end = {lengths.end} is not allowed; allowed is at most "
            f"datasets.{dataset_name}.train.length, {dataset.train.length}"
        )
