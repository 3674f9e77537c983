"""Entries of the tables of models, held against the other entries and their data sets."""

from collections.abc import Iterator
from pathlib import Path

from implicit_models.language_models.source_names import is_folder, is_hub_id
from implicit_models.parameters import ParameterError, read_section
from implicit_models.problems.problem import parameters_of
from implicit_models.training.parameters import MonitoringParameters
from stages.common import Data, owner, read_dataset, read_entries
from stages.entries import BaselineParameters, MatchedParameters, RunParameters, read_model


def read_run(table: str, name: str) -> RunParameters:
    """Read an entry of ``runs`` or ``upcycled`` and check it against its data set."""
    run = read_section(f"{table}.{name}", RunParameters)
    for mistake in model_mistakes(table, name, run):
        raise mistake
    return run


def read_baseline(table: str, name: str) -> BaselineParameters:
    """Read an entry of ``baselines`` or ``matched`` and check it against its data set."""
    baseline = read_model(table, name)
    assert isinstance(baseline, BaselineParameters)
    for mistake in model_mistakes(table, name, baseline):
        raise mistake
    return baseline


def model_mistakes(
    table: str,
    name: str,
    entry: RunParameters | BaselineParameters,
    path: Path = Path("params.yaml"),
    *,
    before_all: bool = False,
) -> Iterator[ParameterError]:
    """Yield what is wrong with an entry beside the others and its data set.

    Parameters
    ----------
    before_all
        Whether nothing has run yet: a source may then be the model of another entry.
    """
    if isinstance(entry, MatchedParameters):
        yield from _match_mistakes(f"matched.{name}.match.run", entry, path)
    if table == "upcycled" and not entry.model.is_upcycled:
        yield ParameterError(
            f"upcycled.{name}.model.family = {entry.model.family!r} is not allowed; allowed is "
            "'upcycled': other implicit models are entries of runs"
        )
    key, source = f"{table}.{name}.model.source", entry.model.source
    if table == "runs" and source is not None and not is_hub_id(source):
        yield ParameterError(
            f"{key} = {source!r} is not allowed; allowed is a model's hub id: with a folder this "
            "is an entry of upcycled, where DVC waits for what makes it"
        )
    elif not (
        source is None
        or is_hub_id(source)
        or is_folder(source)
        or (before_all and owner(source, path) is not None)
    ):
        yield ParameterError(
            f"{key} = {source!r} is not allowed; allowed is a folder, and there is none of this "
            "name, or a model's hub id, NAME or OWNER/NAME"
        )
    try:
        data = read_dataset(table, name, path)
        longest, where = parameters_of(data.kind).check_training(data.key, data.parameters)
    except ParameterError as error:
        yield error
        return
    known = parameters_of(data.kind).num_sequences(data.parameters, "train")
    try:
        a_step = entry.optimisation.sequences_a_step(longest)
    except ParameterError as error:
        yield error.inside(f"{table}.{name}")
    else:
        if known is not None and a_step > known[0]:
            yield ParameterError(
                f"{table}.{name}.{entry.optimisation.batch(longest)} is not allowed; allowed is "
                f"at most {data.key}.{known[1]}, {known[0]}"
            )
    yield from _carry_mistakes(f"{table}.{name}", entry, data)
    for part, lengths in entry.curricula.items():
        if lengths.end > longest:
            yield ParameterError(
                f"{table}.{name}.{part}.lengths.end = {lengths.end} is not allowed; allowed is at "
                f"most {where}, {longest}"
            )


def read_monitoring(
    table: str, name: str, path: Path = Path("params.yaml")
) -> MonitoringParameters:
    """Read the section ``monitoring`` and check it against an entry's data set."""
    monitoring = read_section("monitoring", MonitoringParameters, path)
    data = read_dataset(table, name, path)
    known = parameters_of(data.kind).num_sequences(data.parameters, "validation")
    if known is not None and monitoring.validation_sequences > known[0]:
        raise ParameterError(
            f"monitoring.validation_sequences = {monitoring.validation_sequences} is not allowed; "
            f"allowed is at most {data.key}.{known[1]}, {known[0]}"
        )
    return monitoring


def _carry_mistakes(
    key: str, entry: RunParameters | BaselineParameters, data: Data
) -> Iterator[ParameterError]:
    """Yield why a phase cannot pass its carry on."""
    for part, phase in entry.phases.items():
        if phase.carry == "reset":
            continue
        where = f"{key}.{part}"
        if entry.model.has_state is False:
            yield ParameterError(
                f"{where}.carry = 'passed' is not allowed with family {entry.model.family}, which "
                "remembers more with every token; allowed is 'reset', or a model whose memory has "
                "a fixed size (mamba2, lstm, llama with model.sliding_window)"
            )
        try:
            check = parameters_of(data.kind).check_carry
            check(data.key, data.parameters, phase.lengths.minimum)
        except ParameterError as error:
            yield error.inside(where)


def _match_mistakes(key: str, baseline: MatchedParameters, path: Path) -> Iterator[ParameterError]:
    run, runs = baseline.match.run, read_entries("runs", path)
    if run not in runs:
        yield ParameterError(
            f"{key} = {run!r} is not allowed; allowed is an entry of runs: {', '.join(runs)}"
        )
    elif runs[run].get("dataset") != baseline.dataset:
        yield ParameterError(
            f"{key} = {run!r} is not allowed; that run learns from {runs[run].get('dataset')!r}, "
            f"and this baseline from {baseline.dataset!r}: what they cost does not compare"
        )
