"""What a plan is of: its options, and the entries of a preset or of params.yaml to plan."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import Field

from implicit_models.families.parameters import ModelParameters
from implicit_models.parameters import ParameterError, Parameters, read_names, read_section
from implicit_models.parameters.errors import closest_words
from implicit_models.problems.problem import checks_of, parameters_of
from implicit_models.training.parameters import MonitoringParameters
from stages.checked_entries import model_mistakes
from stages.common import TABLES, Data, read_dataset
from stages.entries import BaselineParameters, RunParameters, read_model


class PlanParameters(Parameters):
    """What is asked of a plan.

    Attributes
    ----------
    preset
        Of conf/preset; None for params.yaml as it is.
    gpus, device, utilisation
        How many of which, and what share of their peak a training reaches.
    parallelism, micro_batch, checkpointing
        As a training takes them from its environment.
    run
        The one entry to plan; None for all.
    expected_iterations
        Self-iterations of a token in a search, on an average; None for an assumption.
    vocabulary
        Tokens of the tokenizer, where that is not known here.
    text_bytes
        Of the source text, for each token.
    """

    preset: str | None = None
    gpus: int = Field(default=1, ge=1)
    device: str = "h100"
    utilisation: float = Field(default=0.2, gt=0.0, le=1.0)
    parallelism: Literal["ddp", "fsdp"] = "ddp"
    micro_batch: int | None = Field(default=None, ge=1)
    checkpointing: Literal["none", "iterations", "blocks"] = "none"
    run: str | None = None
    expected_iterations: float | None = Field(default=None, gt=0.0)
    vocabulary: int | None = Field(default=None, ge=2)
    text_bytes: float = Field(default=4.0, gt=0.0)


class Vocabulary(NamedTuple):
    """A number of token ids, and whether it is a published one, for data that were not read."""

    size: int
    is_published: bool = False


@dataclass(frozen=True, kw_only=True)
class Training:
    """An entry that is trained, and what it learns from."""

    name: str
    entry: RunParameters | BaselineParameters
    data: Data

    @property
    def row_length(self) -> int:
        """Tokens of the data's sequences, which a curriculum may cut."""
        kind, parameters = self.data.kind, self.data.parameters
        return parameters_of(kind).check_training(self.data.key, parameters)[0]

    def vocabulary(self, given: int | None) -> Vocabulary:
        """Return the number of token ids, as far as it is known before anything is prepared.

        Raises
        ------
        ParameterError
            Where the tokenizer cannot be read here.
        """
        if given is not None:
            return Vocabulary(given)
        kind, data = self.data.kind, self.data.parameters
        try:
            return Vocabulary(parameters_of(kind).vocabulary_size(data))
        except ParameterError:
            published = checks_of(kind).known_vocabulary(data)
            if published is None:
                raise
            return Vocabulary(published, is_published=True)


def read_trainings(path: Path, only: str | None) -> tuple[list[Training], list[str]]:
    """Read the entries of a file that can be planned; return the others' names and families.

    Raises
    ------
    ParameterError
        Where one of them is wrong, or the only one that is asked for is not there.
    """
    read_section("monitoring", MonitoringParameters, path)
    tables = {name: table for table in TABLES for name in read_names(table, path)}
    wanted = list(tables)
    if only is not None:
        if only not in tables:
            raise ParameterError(f"run = {only!r} does not exist; {closest_words(only, tables)}")
        wanted = [only]
        if tables[only] == "matched":  # what it costs follows from its run
            run = read_section(f"matched.{only}.match.run", str, path)
            wanted = [each for each in tables if each in (run, only)]
    trainings, others = [], []
    for name in wanted:
        key = f"{tables[name]}.{name}"
        model = read_section(f"{key}.model", ModelParameters, path)
        if not model.is_planned:
            others.append(f"{name} ({model.family})")
            continue
        entry = read_model(tables[name], name, path)
        for mistake in model_mistakes(tables[name], name, entry, path, before_all=True):
            line = str(mistake).removeprefix(f"{path}: ")
            said = f"{path}: {line}"
            raise ParameterError(said)
        data = read_dataset(tables[name], name, path)
        trainings.append(Training(name=name, entry=entry, data=data))
    return trainings, others
