"""The entries of the tables ``runs`` and ``baselines`` of params.yaml."""

from dataclasses import dataclass

from implicit_models.data.parameters import DatasetParameters
from implicit_models.language_models.parameters import ModelParameters
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


def read_run(name: str) -> RunParameters:
    """Read an entry of ``runs`` and check it against its data set."""
    run = read_section(f"runs.{name}", RunParameters)
    dataset = read_dataset("runs", name)[1]
    for section, lengths in (("bounded", run.bounded.lengths), ("free", run.free.lengths)):
        _check_lengths(f"runs.{name}.{section}", lengths, run.dataset, dataset)
    return run


def read_baseline(name: str) -> BaselineParameters:
    """Read an entry of ``baselines`` and check it against its data set."""
    baseline = read_section(f"baselines.{name}", BaselineParameters)
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


def _check_lengths(
    key: str, lengths: LengthParameters, dataset_name: str, dataset: DatasetParameters
) -> None:
    if lengths.end > dataset.train.length:
        raise ParameterError(
            f"{key}.lengths.end = {lengths.end} is not allowed; allowed is at most "
            f"datasets.{dataset_name}.train.length, {dataset.train.length}"
        )
