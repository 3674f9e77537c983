"""The plan of each phase of some entries: which model, which phase, how many steps of what."""

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from implicit_models.equilibrium.phase import Phase
from implicit_models.families.building import configuration
from implicit_models.families.sizes import count_parameters
from implicit_models.language_models.configuration import ImplicitConfig
from implicit_models.parameters import ParameterError
from implicit_models.planning.plans import (
    Layout,
    TrainingPlan,
    fitting_layouts,
    most_evaluations,
    plan_memory,
    plan_training,
)
from implicit_models.training.curriculum import (
    Segment,
    bounded_segment,
    explicit_segment,
    free_segment,
)
from stages.entries import BaselineParameters, MatchedParameters, RunParameters
from stages.plan_parameters import PlanParameters, Training, Vocabulary
from stages.training.matched import matched_to

# Of what a search may make, where nobody says how many self-iterations are expected.
EXPECTED_PART = 0.5


@dataclass(frozen=True, kw_only=True)
class PlannedPhase:
    """A phase of an entry's training, and what it takes.

    Attributes
    ----------
    batch_size, length
        Sequences of a step, and tokens of the longest.
    search, expected
        Self-iterations that a search may make, and that are expected of it; None where there is
        none.
    """

    training: Training
    vocabulary: Vocabulary
    name: str
    config: ImplicitConfig
    phase: Phase | None
    batch_size: int
    length: int
    search: int | None
    expected: float | None
    layout: Layout
    plan: TrainingPlan

    @property
    def entry(self) -> str:
        """The entry's name."""
        return self.training.name

    def first_layout_that_fits(self, memory_bytes: float) -> Layout | None:
        """Return the fastest layout that fits into a GPU; None where none does."""
        is_implicit = self.phase is not None
        for layout in fitting_layouts(self.layout, self.batch_size, is_implicit=is_implicit):
            memory = plan_memory(
                self.config,
                self.phase,
                length=self.length,
                batch_size=self.batch_size,
                precision=self.precision,
                layout=layout,
            )
            if memory.fits(memory_bytes):
                return layout
        return None

    @property
    def num_parameters(self) -> int:
        """Parameters of the model."""
        return count_parameters(self.config).total

    @property
    def precision(self) -> str:
        """Of what is computed."""
        return self.training.entry.optimisation.precision


def plan_entries(trainings: Iterable[Training], options: PlanParameters) -> list[PlannedPhase]:
    """Plan every phase of some entries, each run before what is matched to it.

    Raises
    ------
    ParameterError
        Where the vocabulary is not known, or there are more GPUs than sequences.
    """
    planned: list[PlannedPhase] = []
    for training in trainings:
        vocabulary = training.vocabulary(options.vocabulary)
        entry = training.entry
        if isinstance(entry, MatchedParameters):
            entry = _like_its_run(entry, training.row_length, planned, vocabulary.size)
            training = dataclasses.replace(training, entry=entry)
        planned += [_planned(training, segment, vocabulary, options) for segment in segments(entry)]
    return planned


def segments(entry: RunParameters | BaselineParameters) -> Iterator[Segment]:
    """Yield the phases of an entry's training."""
    if isinstance(entry, RunParameters):
        yield bounded_segment(entry.bounded)
        yield free_segment(entry.free, entry.bounded.steps, entry.free_steps)
    else:
        yield explicit_segment(entry.training)


def _planned(
    training: Training,
    segment: Segment,
    vocabulary: Vocabulary,
    options: PlanParameters,
) -> PlannedPhase:
    entry = training.entry
    length = segment.lengths.end
    config = configuration(entry.model, vocabulary.size, "next_token")
    assert isinstance(config, ImplicitConfig)
    layout = Layout(
        num_gpus=options.gpus,
        parallelism=options.parallelism,
        micro_batch=options.micro_batch,
        checkpointing=options.checkpointing,
    )
    precision = entry.optimisation.precision
    batch_size = entry.optimisation.sequences_a_step(training.row_length)
    if batch_size % options.gpus:
        raise ParameterError(
            f"{training.name}: gpus = {options.gpus} is not allowed; allowed is a number that "
            f"divides the sequences of a step, {batch_size}"
        )
    most = None if segment.phase is None else most_evaluations(segment.phase, length)
    expected = _expected(segment.phase, most, precision, options.expected_iterations)
    try:
        plan = plan_training(
            config,
            segment.phase,
            lengths=_lengths(segment, entry.seed),
            num_passing=segment.num_passing,
            batch_size=batch_size,
            precision=precision,
            layout=layout,
            expected_evaluations=expected,
        )
    except ValueError as error:
        raise ParameterError(f"{training.name}: {error}") from None
    return PlannedPhase(
        training=training,
        vocabulary=vocabulary,
        name=segment.name,
        config=config,
        phase=segment.phase,
        batch_size=batch_size,
        length=length,
        search=most,
        expected=expected,
        layout=layout,
        plan=plan,
    )


def _lengths(segment: Segment, seed: int) -> list[int]:
    lengths = segment.lengths
    if lengths.minimum == lengths.end:
        return [lengths.end] * segment.num_steps
    return [segment.length_at(step, seed) for step in range(segment.first_step, segment.last_step)]


def _expected(
    phase: Phase | None, most: int | None, precision: str, given: float | None
) -> float | None:
    """Return the evaluations expected of a token's search; all where it cannot end earlier."""
    if phase is None or most is None:
        return None
    stopping = phase.stopping
    # Rounding leaves a residual of about this size, however long the search.
    rounding = torch.tensor(torch.finfo(getattr(torch, precision)).eps)
    if not stopping.converged(rounding):
        return most
    if given is None:
        patience = 0 if phase.window is None else phase.window.patience
        given = max(patience, EXPECTED_PART * stopping.max_steps)
    return min(most, given)


def _like_its_run(
    baseline: MatchedParameters,
    longest: int,
    planned: Iterable[PlannedPhase],
    vocabulary_size: int,
) -> MatchedParameters:
    """Fill in what the expected FLOPs of a run, or its parameters, mean."""
    run = baseline.match.run
    phases = [phase for phase in planned if phase.entry == run]
    if not phases:
        raise ParameterError(
            f"match.run = {run!r} cannot be planned, nor what is like it; its "
            "model's shapes are those of its source, which is not read here: `run=ENTRY` plans "
            "another alone"
        )
    segment = explicit_segment(baseline.training)
    return matched_to(
        baseline,
        flops=sum(phase.plan.flops for phase in phases),
        num_parameters=phases[0].num_parameters,
        vocabulary_size=vocabulary_size,
        longest=longest,
        lengths=_lengths(segment, baseline.seed),
    )
