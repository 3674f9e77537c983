"""What a kind of problem is; `implicit_models.problems.table` has them all.

A kind of problem is a folder with a module for each thing that stages ask of it:

==================  ==============================================================================
``parameters``      `ProblemParameters`: its sections of params.yaml, and what must fit together
``data.interface``  `ProblemData`: how its data is written, and what a training reads of it
``evaluation.interface``  `ProblemEvaluation`: how a trained model is evaluated and swept
``report.interface``  `ProblemReport`: the classes of its results, which write its sections
``checks``          `ProblemChecks`: what else is known before anything runs; no result needs it
==================  ==============================================================================

They are apart because results depend on them apart: an edit of a section of the report trains
nothing again. A module is imported when it is asked for: reading parameters imports no torch.
"""

import functools
import importlib
import inspect
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from implicit_models.code_imports import submodules
from implicit_models.parameters import ParameterError, check_all
from implicit_models.problems.answers import Evaluated, Swept, TrainingData
from implicit_models.problems.table import KINDS

if TYPE_CHECKING:
    from implicit_models.parameters import Parameters
    from implicit_models.problems.tested_apart import TestedApart
    from implicit_models.reporting.entry_results import EntryResults
    from implicit_models.reporting.results import RunResults


class ProblemParameters(Protocol):
    """The module ``parameters`` of a kind of problem; it imports no torch.

    Attributes
    ----------
    SCHEMAS
        The class of its entries in each table of data.
    IS_TEXT
        Whether its tokens are those of a text, of which as much is needed as is trained on.
    EVALUATION, SWEEP
        The classes of its sections ``evaluation.KIND`` and ``sweep.KIND``; None where it has none.
    ENTRIES
        The class of its entries in the tables of models tested apart.
    """

    SCHEMAS: "Mapping[str, type[Parameters]]"
    IS_TEXT: bool
    EVALUATION: "type[Parameters] | None"
    SWEEP: "type[Parameters] | None"
    ENTRIES: "Mapping[str, type[TestedApart]]"

    def check_entry(self, key: str, data: Any) -> None:
        """See that an entry of data, ``key`` being its place, can be prepared."""
        ...

    def check_training(self, key: str, data: Any) -> tuple[int, str]:
        """Return the most tokens of a sequence that is trained on, and the key that says so.

        Raises
        ------
        ParameterError
            Where the data, ``key`` being its place, are not fit to train on.
        """
        ...

    def check_carry(self, key: str, data: Any, shortest: int) -> None:
        """See that sequences of ``shortest`` tokens or more can go on from one another.

        Raises
        ------
        ParameterError
            Where the data, ``key`` being its place, have none that do.
        """
        ...

    def num_sequences(self, data: Any, split: str) -> tuple[int, str] | None:
        """Return how many sequences ``train`` or ``validation`` will have, and the key of it.

        None where nobody knows yet.
        """
        ...

    def check_evaluation(self, key: str, data: Any, parameters: Any, where: str = ...) -> None:
        """See that the data hold what an evaluation asks for, whose settings stand at ``where``."""
        ...

    def check_sweep(self, key: str, data: Any, parameters: Any, where: str = ...) -> None:
        """See that the data hold what a sweep asks for, whose settings stand at ``where``."""
        ...

    def vocabulary_size(self, data: Any) -> int:
        """Return the number of ids, of tokens and of answers, as far as it is known by now.

        Raises
        ------
        ParameterError
            Where it is not.
        """
        ...


class ProblemChecks(Protocol):
    """The module ``checks`` of a kind of problem; it imports no torch."""

    def missing(self, key: str, data: Any) -> Iterable[str]:
        """Yield what is not on this machine that an entry of data needs to be prepared."""
        ...

    def downloads(self, key: str, data: Any) -> Iterable[tuple[str, bool]]:
        """Yield what has to be downloaded to prepare an entry, and whether that is allowed here."""
        ...

    def check_trained(self, key: str, length: int, evaluation: Any) -> None:
        """See that an evaluation tells what the report needs of a model.

        Parameters
        ----------
        key
            Where the evaluation's keys stand.
        length
            The longest sequences that the model is trained on.

        Raises
        ------
        ParameterError
            Where it does not.
        """
        ...

    def longest_read(self, data: Any, evaluation: Any) -> Iterable[tuple[str, int]]:
        """Yield the keys by which a model reads texts, and how many tokens they have at most.

        Parameters
        ----------
        data, evaluation
            What it is validated with, and the part of the section ``evaluation``; each may be None.
        """
        ...

    def tokens_at_most(self, data: Any) -> Mapping[str, int]:
        """Return how many tokens a split can have at most, of the splits of which that is known."""
        ...

    def tokens_tested(self, parameters: Any) -> tuple[str, int] | None:
        """Return the key of an evaluation or a sweep that asks for tokens, and how many."""
        ...

    def same_tokens(self, data: Any, other: Any) -> bool:
        """Return whether a model of the one data can read the other, as far as it is known."""
        ...

    def known_vocabulary(self, data: Any) -> int | None:
        """Return the number of ids, as ``vocabulary_size``; None where only a download shows it."""
        ...

    def data_bytes(self, data: Any) -> int:
        """Return what an entry of data takes on the disk, as far as it is known; 0 where not."""
        ...


class ProblemData(Protocol):
    """The module ``data.interface`` of a kind of problem."""

    def prepare(self, parameters: Any, folder: Path, unfinished: Path) -> None:
        """Write data, what trainings read in ``train`` and ``validation``, and read them back.

        Parameters
        ----------
        unfinished
            A folder for what an interrupted call can continue from.
        """
        ...

    def open_training(self, folder: Path, parameters: Any) -> TrainingData:
        """Open what a training reads, memory-mapped.

        Raises
        ------
        ValueError
            Where something is missing or damaged.
        """
        ...


class ProblemEvaluation(Protocol):
    """The module ``evaluation.interface`` of a kind of problem."""

    def evaluate(self, model: Path, data: Path, parameters: Any) -> Evaluated:
        """Evaluate a model's folder on a folder of data."""
        ...

    def sweep(self, model: Path, data: Path, parameters: Any) -> Swept:
        """Measure an implicit model's folder against the computation that it is allowed."""
        ...


class ProblemReport(Protocol):
    """The module ``report.interface`` of a kind of problem.

    Attributes
    ----------
    RUN
        The class of a run's results, which writes their section and what the report begins with;
        None where nothing is trained on such data.
    ENTRIES
        The class of the results of its entries in the tables of models tested apart, likewise.
    """

    RUN: "type[RunResults] | None"
    ENTRIES: "Mapping[str, type[EntryResults]]"


def parameters_of(kind: str) -> ProblemParameters:
    """Return the parameters of a kind of problem."""
    return _module(kind, "parameters")


def checks_of(kind: str) -> ProblemChecks:
    """Return the checks of a kind of problem."""
    return _module(kind, "checks")


def data_of(kind: str) -> ProblemData:
    """Return the data of a kind of problem."""
    return _module(kind, "data.interface")


def evaluation_of(kind: str) -> ProblemEvaluation:
    """Return the evaluation of a kind of problem."""
    return _module(kind, "evaluation.interface")


def report_of(kind: str) -> ProblemReport:
    """Return the report of a kind of problem."""
    return _module(kind, "report.interface")


def results_of(kind: str) -> "type[RunResults]":
    """Return the class of the results of runs on a kind of problem."""
    found = report_of(kind).RUN
    if found is None:
        raise ValueError(f"nothing is trained on data of the kind {kind}")
    return found


def section_schema(section: str) -> "type[Parameters]":
    """Return the class of the section ``evaluation`` or ``sweep``, with a part for each kind."""
    from pydantic import create_model

    from implicit_models.parameters import Parameters

    parts = {kind: getattr(parameters_of(kind), section.upper()) for kind in KINDS}
    fields: dict[str, Any] = {
        kind: (schema | None, None) for kind, schema in parts.items() if schema is not None
    }
    return create_model(section, __base__=Parameters, **fields)


def kinds_of(table: str) -> list[str]:
    """Return the kinds of problems that may have entries in a table of data."""
    return [kind for kind in KINDS if table in parameters_of(kind).SCHEMAS]


def check_kinds() -> None:
    """See that the table has packages of this repository, and these what a check asks of them.

    Raises
    ------
    ParameterError
        With a line for each that is wrong.
    """
    check_all(*(functools.partial(_check_kind, kind) for kind in KINDS))


def _check_kind(kind: str) -> None:
    for module in ("parameters", "checks"):
        _module(kind, module)
    if not submodules(KINDS[kind]):
        raise ParameterError(
            f"{_line(kind)}, which is no folder of this repository; allowed is one that is, for an "
            "edit of its code has to train its models again"
        )


def _module(kind: str, name: str) -> Any:
    """Import a module of a kind of problem; mistakes inside it keep their file and line."""
    package = KINDS[kind]
    path = f"{name.replace('.', '/')}.py"
    try:
        module = importlib.import_module(f"{package}.{name}")
    except ModuleNotFoundError as error:
        missing = f"{error.name}."
        if f"{package}.".startswith(missing):
            raise ParameterError(
                f"{_line(kind)}, which is no package ({error}); allowed is the name of a folder "
                f"with dots, such as {KINDS['text']!r}"
            ) from None
        if not f"{package}.{name}.".startswith(missing):
            raise
        raise ParameterError(
            f"{_line(kind)}, which lacks the module {path}; {_HERE} has what a kind of problem is"
        ) from None
    protocol = _PROTOCOLS[name]
    lacking = [each for each in _members(protocol) if not hasattr(module, each)]
    if lacking:
        raise ParameterError(
            f"{_line(kind)}, whose {path} lacks {', '.join(lacking)}; needed is all of "
            f"{protocol.__name__} of {_HERE}"
        )
    return module


_HERE = "implicit_models/problems/problem.py"

_PROTOCOLS: dict[str, Any] = {
    "parameters": ProblemParameters,
    "checks": ProblemChecks,
    "data.interface": ProblemData,
    "evaluation.interface": ProblemEvaluation,
    "report.interface": ProblemReport,
}


def _members(protocol: Any) -> list[str]:
    attributes = list(protocol.__annotations__)  # which may add to what is gone through next
    functions = [name for name, value in vars(protocol).items() if inspect.isfunction(value)]
    return [*attributes, *(name for name in functions if not name.startswith("_"))]


def _line(kind: str) -> str:
    return f"implicit_models/problems/table.py: KINDS has {kind!r} as {KINDS[kind]!r}"
