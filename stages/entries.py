"""The entries of the tables ``runs``, ``upcycled`` and ``baselines`` of params.yaml."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field

from implicit_models.families.parameters import ModelParameters
from implicit_models.parameters import (
    ParameterError,
    Parameters,
    check_all,
    digest,
    read_content,
    read_section,
)
from implicit_models.reporting.entries import trained_entry
from implicit_models.training.parameters import (
    BoundedParameters,
    ExplicitParameters,
    FreeParameters,
    OptimisationParameters,
)
from implicit_models.training.sequence_parameters import LengthParameters


class _ModelEntry(Parameters):
    """What entries of all tables of models have.

    Attributes
    ----------
    dataset
        The name of an entry of a table of data.
    seed
        Decides the weights at the start, the order of the sequences, and all that is drawn.
    model
        Its family, and that family's keys.
    optimisation
        AdamW and its learning rate.
    evaluation
        Keys that take the place, for this entry, of those of the section ``evaluation``.
    """

    dataset: str
    seed: int = Field(ge=0, lt=2**64)
    model: ModelParameters
    optimisation: OptimisationParameters
    evaluation: dict[str, Any] | None = None

    def check_warmup(self, num_training_steps: int) -> None:
        """Check that the learning rate's warm-up fits into so many steps.

        Raises
        ------
        ParameterError
            Where it does not.
        """
        if self.optimisation.warmup_steps > num_training_steps:
            raise ParameterError(
                f"optimisation.warmup_steps = {self.optimisation.warmup_steps} is not allowed; "
                f"allowed is at most the training steps of the entry, {num_training_steps}: "
                "warm up in fewer, or train for more"
            )

    def seed_group(self, models: "Mapping[str, _ModelEntry]") -> str:
        """Return a digest that entries have alike which differ by their seed alone.

        Parameters
        ----------
        models
            The entries that this one may be made from or matched to, by their names.
        """
        return digest(self.of_any_seed(models))

    def of_any_seed(self, models: "Mapping[str, _ModelEntry]") -> Self:
        """Return the entry with seed 0 and, for what it is made from, that entry's group."""
        source = trained_entry(self.model.source or "")
        if source is None or source not in models:
            return self.replace(seed=0)
        model = self.model.replace(source=models[source].seed_group(models))
        return self.replace(seed=0, model=model)

    @property
    def refers_to(self) -> tuple[str, ...]:
        """The entries that it is made from or matched to."""
        names = (trained_entry(self.model.source or ""), *(self.matched_to or ())[:1])
        return tuple(name for name in names if name is not None)

    @property
    def matched_to(self) -> tuple[str, str] | None:
        """The run whose size or FLOPs the entry was given, and which of them; None for most."""
        return None


class RunParameters(_ModelEntry):
    """An implicit model, trained in the bounded and then in the free phase.

    Attributes
    ----------
    bounded, free
        The two phases of its training.
    sweep
        Keys that take the place, for this entry, of those of the section ``sweep``.
    """

    bounded: BoundedParameters
    free: FreeParameters
    sweep: dict[str, Any] | None = None

    def check(self) -> None:
        """Check that the model is implicit, and the free phase's number of steps."""
        if (self.free.num_training_steps is None) == (self.bounded.share is None):
            raise ParameterError(
                f"free.num_training_steps = {self.free.num_training_steps} is not allowed; allowed "
                + (
                    "is null beside bounded.share, which leaves the rest of the steps"
                    if self.bounded.share is not None
                    else "is a number of steps, or null beside bounded.share"
                )
            )
        check_all(
            self._check_free_steps,
            lambda: self.check_warmup(self.bounded.steps + self.free_steps),
        )
        if not self.model.implicit:
            raise ParameterError(
                "model.implicit = False is not allowed; entries of runs are implicit: an "
                "explicit model is an entry of baselines"
            )

    def _check_free_steps(self) -> None:
        try:
            self.free.check_steps(self.free_steps)
        except ParameterError as error:
            raise error.inside("free") from None

    @property
    def phases(self) -> dict[str, BoundedParameters | FreeParameters]:
        """What is trained, by section."""
        return {"bounded": self.bounded, "free": self.free}

    @property
    def curricula(self) -> dict[str, LengthParameters]:
        """The lengths that are trained on, by section."""
        return {name: phase.lengths for name, phase in self.phases.items()}

    @property
    def training_length(self) -> int:
        """The most tokens of a sequence in both phases."""
        return max(self.bounded.lengths.end, self.free.lengths.end)

    @property
    def phase_change(self) -> int:
        """Training steps before the free phase."""
        return self.bounded.steps

    @property
    def length_growth(self) -> tuple[int, int, int] | None:
        """From and to which length sequences grow, and in how many steps; None where they don't."""
        bounded, free = self.bounded.lengths, self.free.lengths
        steps = (self.bounded.steps + free.growth_steps) if free.growth_steps else 0
        return _growth(bounded.start, free.end, steps or bounded.growth_steps)

    @property
    def iteration_cap(self) -> int:
        """The most self-iterations of a sequence in the free phase, with those of the gradient."""
        return self.free.max_steps + (self.free.gradient_steps or 1)

    @property
    def num_passing_steps(self) -> int:
        """Training steps whose sequences go on from those before."""
        bounded = self.bounded.num_passing_steps(self.bounded.steps)
        return bounded + self.free.num_passing_steps(self.free_steps)

    @property
    def free_steps(self) -> int:
        """Training steps of the free phase."""
        if self.free.num_training_steps is not None:
            return self.free.num_training_steps
        assert self.bounded.total_training_steps
        return self.bounded.total_training_steps - self.bounded.steps


class BaselineParameters(_ModelEntry):
    """An explicit model, trained in one go.

    Attributes
    ----------
    training
        Its only phase.
    """

    training: ExplicitParameters

    def check(self) -> None:
        """Check that the model is explicit."""
        self.check_warmup(self.training.num_training_steps)
        if self.model.implicit:
            raise ParameterError(
                "model.implicit = True is not allowed; entries of baselines are explicit: an "
                "implicit model is an entry of runs"
            )

    @property
    def phases(self) -> dict[str, ExplicitParameters]:
        """What is trained, by section."""
        return {"training": self.training}

    @property
    def curricula(self) -> dict[str, LengthParameters]:
        """The lengths that are trained on, by section."""
        return {name: phase.lengths for name, phase in self.phases.items()}

    @property
    def training_length(self) -> int:
        """The most tokens of a sequence in training."""
        return self.training.lengths.end

    @property
    def phase_change(self) -> None:
        """There is no free phase."""
        return None

    @property
    def length_growth(self) -> tuple[int, int, int] | None:
        """From and to which length sequences grow, and in how many steps; None where they don't."""
        lengths = self.training.lengths
        return _growth(lengths.start, lengths.end, lengths.growth_steps)

    @property
    def num_passing_steps(self) -> int:
        """Training steps whose sequences go on from those before."""
        return self.training.num_passing_steps(self.training.num_training_steps)

    @property
    def iteration_cap(self) -> None:
        """There is no search."""
        return None


class MatchParameters(Parameters):
    """What makes a baseline as expensive, or as large, as a run.

    Attributes
    ----------
    run
        The name of the run, an entry of ``runs``.
    quantity
        What both are to have alike: ``training_flops``, or the number of ``parameters``.
    vary
        What of the baseline follows from it: ``steps``, the training steps; ``depth``, the
        layers; ``width``, d_model and what goes with it. All else stays as the entry has it.
    """

    run: str
    quantity: Literal["training_flops", "parameters"] = "training_flops"
    vary: Literal["steps", "depth", "width"]

    def check(self) -> None:
        """Check that the one has to do with the other."""
        if (self.quantity, self.vary) == ("parameters", "steps"):
            raise ParameterError(
                "vary = 'steps' is not allowed with quantity = 'parameters'; allowed is 'depth' or "
                "'width'"
            )


class MatchedParameters(BaselineParameters):
    """A baseline whose size or number of steps follows from a run's.

    Attributes
    ----------
    match
        Which of them follows, and from which run.
    """

    match: MatchParameters

    def of_any_seed(self, models: Mapping[str, _ModelEntry]) -> Self:
        """Return the same for baselines matched to runs that differ by their seed alone."""
        entry = super().of_any_seed(models)
        if self.match.run not in models:
            return entry
        match = self.match.replace(run=models[self.match.run].seed_group(models))
        return entry.replace(match=match)

    @property
    def matched_to(self) -> tuple[str, str]:
        """The run, and what both are to have alike."""
        return self.match.run, self.match.quantity


_SCHEMAS: dict[str, type[RunParameters | BaselineParameters]] = {
    "runs": RunParameters,
    "upcycled": RunParameters,
    "baselines": BaselineParameters,
    "matched": MatchedParameters,
}


def read_models(
    path: Path = Path("params.yaml"),
) -> dict[str, dict[str, RunParameters | BaselineParameters]]:
    """Read all entries of the tables of models; a table that is not there is empty."""
    content = read_content(path)
    return {
        table: {name: read_model(table, name, path) for name in content.get(table) or ()}
        for table in _SCHEMAS
    }


def read_model(
    table: str, name: str, path: Path = Path("params.yaml")
) -> RunParameters | BaselineParameters:
    """Read an entry of a table of models, without a look at its data set."""
    return read_section(f"{table}.{name}", _SCHEMAS[table], path)


def seed_group(table: str, name: str) -> str:
    """Return a digest that entries have alike which differ by their seed alone."""
    content = read_content(Path("params.yaml"))
    tables = {each: of for of in _SCHEMAS for each in content.get(of) or ()}
    models = {name: read_model(table, name)}
    wanted = [*models[name].refers_to]
    while wanted:
        other = wanted.pop()
        if other in tables and other not in models:
            models[other] = read_model(tables[other], other)
            wanted += models[other].refers_to
    return models[name].seed_group(models)


def _growth(start: int, end: int, steps: int) -> tuple[int, int, int] | None:
    return None if start == end else (start, end, steps)
