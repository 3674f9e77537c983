"""What is wrong with the tables and sections of a file of parameters, all of it at once."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from implicit_models.families.parameters import ModelParameters
from implicit_models.families.table import OTHERS
from implicit_models.parameters import TABLES as ALL_TABLES
from implicit_models.parameters import ParameterError, read_content, read_section
from implicit_models.parameters.errors import UnknownKeyError, closest_key
from implicit_models.parameters.names import IMPLICIT
from implicit_models.problems import problem
from implicit_models.problems.table import TABLES as KINDS_OF_DATA
from implicit_models.problems.table import TESTED_APART
from implicit_models.reporting.parameters import ReportParameters
from implicit_models.training.parameters import MonitoringParameters
from stages.check_findings import Findings
from stages.check_names import check_names, entry_meant
from stages.checked_entries import model_mistakes, read_monitoring
from stages.common import (
    TABLES,
    Data,
    owner,
    read_data,
    read_dataset,
    read_part,
    read_tests,
    tests_key,
)
from stages.entries import (
    BaselineParameters,
    RunParameters,
    read_model,
)
from stages.evaluation.apart_entries import read_apart

# By the place of the data and the tokens of a batch: the data, and the keys that ask for as many.
_Batches = dict[tuple[str, int], tuple[Data, list[str]]]

SECTIONS = (*ALL_TABLES, "monitoring", "evaluation", "sweep", "report")


def check_content(found: Findings) -> None:
    """Find what is wrong with a file, as far as its own content and the files it names say."""
    content: Any = None
    with found.gathering():
        content = read_content(found.path)
        if not isinstance(content, Mapping):
            raise ParameterError(f"{content!r} is not allowed; allowed are {', '.join(SECTIONS)}")
    if not isinstance(content, Mapping):
        return
    _check_sections(found, content)
    tables = {table: content.get(table) or {} for table in ALL_TABLES}
    check_names(found, tables, KINDS_OF_DATA)
    check_names(found, tables, (*TABLES, *TESTED_APART))
    for table in KINDS_OF_DATA:
        for name in tables[table]:
            _check_data(found, table, name)
    batches: _Batches = {}
    for table in TABLES:
        for name in tables[table]:
            if meant := entry_meant(name, tables[table]):
                found.add(
                    f"{table}.{name} has no dataset; where {table}.{meant} is meant its name is "
                    "mistyped, and a new entry needs all that this one has"
                )
            else:
                _check_model(found, table, name, batches)
    for (_, needed), (data, keys) in batches.items():
        others = f" (as {', '.join(keys[1:])})" if keys[1:] else ""
        _check_amount(found, f"{keys[0]}{others}", needed, data, "train")
    for table in TESTED_APART:
        for name in tables[table]:
            _check_apart(found, table, name)
    _warn_of_unread(found, tables)


def _warn_of_unread(found: Findings, content: Mapping[str, Mapping[str, Any]]) -> None:
    """Warn of data that are prepared for nobody."""
    keys: dict[str, str] = dict.fromkeys(TABLES, "dataset")
    for table, kind in TESTED_APART.items():
        keys[table] = problem.parameters_of(kind).ENTRIES[table].data_key
    found_there = (
        entry.get(key)
        for table, key in keys.items()
        for entry in content[table].values()
        if isinstance(entry, Mapping)
    )
    read = {name for name in found_there if isinstance(name, str)}
    for table in KINDS_OF_DATA:
        for name in content[table]:
            if name not in read:
                found.add(f"{table}.{name} is read by no entry", "warning")


def _check_sections(found: Findings, content: Mapping[str, Any]) -> None:
    for name in content:
        if name not in SECTIONS:
            found.add(UnknownKeyError(str(name), content[name], SECTIONS))
    for table in ALL_TABLES:
        if content.get(table, {}) is None:
            found.add(
                f"{table} = null is not allowed; allowed is a table of named entries, {{}} for none"
            )
    for table in ("runs", "baselines"):
        if table not in content:
            found.add(f"{table} does not exist; {closest_key(table, content, '')}")
    schemas: dict[str, Any] = {"monitoring": MonitoringParameters, "report": ReportParameters}
    schemas |= {each: problem.section_schema(each) for each in ("evaluation", "sweep")}
    for section, schema in schemas.items():
        if section not in content:
            found.add(
                f"{section} is missing; needed is the section, as in conf/preset/laptop.yaml, from "
                "which a preset takes it by `defaults: [laptop, _self_]`"
            )
            continue
        with found.gathering():
            read_section(section, schema, found.path)


def _check_data(found: Findings, table: str, name: str) -> None:
    with found.gathering():
        data = read_data(table, name, found.path)
        problem.parameters_of(data.kind).check_entry(data.key, data.parameters)
        checks = problem.checks_of(data.kind)
        for line in checks.missing(data.key, data.parameters):
            found.add(line, "missing")
        if not Path("data", name).exists():
            for line, is_allowed in checks.downloads(data.key, data.parameters):
                found.add(line, "warning" if is_allowed else "missing")


def _check_model(found: Findings, table: str, name: str, batches: _Batches) -> None:
    entry: RunParameters | BaselineParameters | None = None
    with found.gathering():
        entry = read_model(table, name, found.path)
    data, tests = None, None
    with found.gathering():
        data = read_dataset(table, name, found.path)
    if data is not None:
        tests = _check_tests(found, table, name, data, entry)
        with found.gathering():
            read_monitoring(table, name, found.path)
    if entry is None:
        return
    with found.gathering():
        for error in model_mistakes(table, name, entry, found.path, before_all=True):
            found.add(error)
        if owner(entry.model.source or "", found.path) is None:
            for line in entry.model.missing():
                found.add(f"{table}.{name}.model.{line}", "missing")
            for line, is_allowed in entry.model.downloads():
                found.add(f"{table}.{name}.model.{line}", "warning" if is_allowed else "missing")
    if data is not None:
        with suppress(ParameterError):  # which is told already
            _check_trained_amounts(found, f"{table}.{name}", entry, data, batches)
        if entry.model.is_upcycled:
            _check_source(found, table, name, entry, data)
        reads = {f"{table}.{name}.{k}.lengths.end": v.end for k, v in entry.curricula.items()}
        checks = problem.checks_of(data.kind)
        where = tests_key("evaluation", table, name, data, found.path)
        reads |= {f"{data.key}.{k}": v for k, v in checks.longest_read(data.parameters, None)}
        reads |= {f"{where}.{k}": v for k, v in checks.longest_read(None, tests)}
        _check_positions(found, f"{table}.{name}.model.source", entry.model, reads)


def _check_tests(
    found: Findings,
    table: str,
    name: str,
    data: Data,
    entry: RunParameters | BaselineParameters | None,
) -> Any:
    """Find what the data cannot answer of an evaluation and a sweep; return the evaluation."""
    evaluation = None
    for section in ("evaluation", "sweep") if table in IMPLICIT else ("evaluation",):
        where = tests_key(section, table, name, data, found.path)
        with found.gathering():
            parameters = read_tests(section, table, name, data, found.path)
            if section == "evaluation":
                evaluation = parameters
            check = getattr(problem.parameters_of(data.kind), f"check_{section}")
            check(data.key, data.parameters, parameters, where)
            if asked := problem.checks_of(data.kind).tokens_tested(parameters):
                _check_amount(found, f"{where}.{asked[0]}", asked[1], data, "test")
    if evaluation is not None and entry is not None:
        where = tests_key("evaluation", table, name, data, found.path)
        with found.gathering():
            checks = problem.checks_of(data.kind)
            checks.check_trained(where, entry.training_length, evaluation)
    return evaluation


def _check_trained_amounts(
    found: Findings,
    key: str,
    entry: RunParameters | BaselineParameters,
    data: Data,
    batches: _Batches,
) -> None:
    """Find texts that are too short for the validation, and note what a batch asks of them."""
    length, _ = problem.parameters_of(data.kind).check_training(data.key, data.parameters)
    monitoring = read_section("monitoring", MonitoringParameters, found.path)
    batch = entry.optimisation.sequences_a_step(length) * length + 1
    asking = f"{key}.{entry.optimisation.batch_key}"
    batches.setdefault((data.key, batch), (data, []))[1].append(asking)
    held_out = monitoring.validation_sequences * length + 1
    _check_amount(found, "monitoring.validation_sequences", held_out, data, "validation")


def _check_amount(found: Findings, asking: str, needed: int, data: Data, split: str) -> None:
    """Find that a split cannot have as many tokens as something needs."""
    if data.key not in found.amounts:
        counted = problem.checks_of(data.kind).tokens_at_most(data.parameters)
        found.amounts[data.key] = counted
    most = found.amounts[data.key].get(split)
    if most is not None and needed > most:
        found.add(
            f"{asking} needs {needed:,} tokens of the {split} split of {data.key}, which has at "
            f"most {most:,}; ask for fewer or shorter sequences, or add text or stories",
            "missing",
        )


def _check_positions(
    found: Findings, key: str, model: ModelParameters, reads: Mapping[str, int]
) -> None:
    """Find lengths that a model, whose source stands at a key, has not positions for."""
    known = model.num_positions
    if known is None:
        return
    most, where = known
    longer = {place: length for place, length in reads.items() if length > most}
    if longer:
        asked = ", ".join(f"{place} = {length}" for place, length in longer.items())
        found.add(
            f"{key} = {model.source!r} has {most} positions ({where}), and is "
            f"to read more: {asked}; give the configuration {max(longer.values())} positions, or "
            "lower these (an entry may have an evaluation of its own)"
        )


def _check_source(
    found: Findings,
    table: str,
    name: str,
    entry: RunParameters | BaselineParameters,
    data: Data,
) -> None:
    """Find whether the model of another entry can become this one."""
    source = owner(entry.model.source or "", found.path)
    if source is None:
        return
    key = f"{table}.{name}.model.source = {entry.model.source!r} is not allowed"
    if source[0] in ("runs", "upcycled"):
        found.add(f"{key}; {'.'.join(source)} is implicit already: name a baseline's model")
        return
    try:
        explicit = read_model(*source, found.path)
        learned = read_dataset(*source, found.path)
    except ParameterError:  # which is told where it stands
        return
    if explicit.model.can_be_upcycled is False:
        found.add(
            f"{key}; a model of family {explicit.model.family!r} cannot become an implicit one; "
            "one of mamba2 or llama can"
        )
    if not _same_tokens(data, learned):
        found.add(
            f"{key}; that model learns from {learned.name!r}, whose tokens are not those of "
            f"{data.name!r}: an upcycled model keeps its source's vocabulary; name another source"
        )


def _same_tokens(data: Data, other: Data) -> bool:
    if data.kind != other.kind:
        return False
    return problem.checks_of(data.kind).same_tokens(data.parameters, other.parameters)


def _check_apart(found: Findings, table: str, name: str) -> None:
    key, kind, entry = f"{table}.{name}", TESTED_APART[table], None
    with found.gathering():
        entry = read_apart(table, name, found.path)
    if entry is None:
        return
    parameters = None
    with found.gathering():
        has_section = problem.parameters_of(kind).EVALUATION is not None
        section = read_part("evaluation", kind, found.path) if has_section else None
        parameters = entry.evaluation(section)
    reads = {f"{key}.max_length": getattr(entry, "max_length", None) or 0}
    longest = problem.checks_of(kind).longest_read(None, parameters)
    reads |= {f"evaluation.{kind}.{place}": length for place, length in longest}
    trained_by = owner(entry.model, found.path)
    if trained_by is None:
        if not Path(entry.model).is_dir():
            models = [f"models/{each}/final" for each in _models(found.path)]
            closest = f"; {closest_key(entry.model, models, '')}" if models else ""
            found.add(f"{key}.model = {entry.model!r} is neither an entry's nor here{closest}")
        other = ModelParameters(family=OTHERS, source=entry.model)
        _check_positions(found, f"{key}.model", other, reads)
        return
    try:
        model = read_model(*trained_by, found.path)
        learned = read_dataset(*trained_by, found.path)
    except ParameterError:
        return
    if not problem.parameters_of(learned.kind).IS_TEXT:
        found.add(
            f"{key}.model = {entry.model!r} is not allowed; it learns from {learned.key}, which is "
            "no text, and has no tokenizer: allowed is a model of a corpus"
        )
        return
    tables = problem.parameters_of(kind).SCHEMAS
    data = next((each for each in _data(tables, found.path) if each.name == entry.data), None)
    if data is not None and data.kind == learned.kind and not _same_tokens(data, learned):
        found.add(
            f"{key}.{entry.data_key} = {entry.data!r} is not allowed; it has another tokenizer "
            f"than {learned.key}, which the model has learned from: name data that have its one"
        )
    _check_positions(found, f"{'.'.join(trained_by)}.model.source", model.model, reads)


def _models(path: Path) -> list[str]:
    content = read_content(path)
    return [name for table in TABLES for name in content.get(table) or ()]


def _data(tables: Iterable[str], path: Path) -> Iterator[Data]:
    content = read_content(path)
    for table in tables:
        for name in content.get(table) or ():
            try:
                yield read_data(table, name, path)
            except ParameterError:
                continue
