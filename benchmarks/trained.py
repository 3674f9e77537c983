"""Models for benchmarks: the implicit run of params.yaml, trained on a group's word problem.

A5's is the one of ``make repro`` where that was run. Training takes minutes, so a model is kept
in ``benchmarks/models/`` (git ignores it) under a digest of everything that it depends on but the
code.
"""

import functools
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from implicit_models.data.batching import batch_indices
from implicit_models.equilibrium.phase import Phase
from implicit_models.families.building import build
from implicit_models.language_models.language_model import LanguageModel
from implicit_models.language_models.modelling import ImplicitForCausalLM
from implicit_models.language_models.serialisation import load_model, save_model
from implicit_models.parameters import digest, read_section
from implicit_models.problems.word_problem.data.groups import multiplication_table, parse
from implicit_models.problems.word_problem.data.sequences import prefix_products, sample_inputs
from implicit_models.tracking.tracker import NullTracker
from implicit_models.training.checkpoints import CheckpointFolder
from implicit_models.training.curriculum import bounded_segment, free_segment
from implicit_models.training.definition import Training, Validate
from implicit_models.training.distributed import Execution, distribute
from implicit_models.training.optimisation import build_optimiser
from implicit_models.training.parameters import MonitoringParameters
from implicit_models.training.progress import Progress
from implicit_models.training.trainer import train
from stages.entries import RunParameters

RUN = "runs.a5_implicit_mamba2"
NUM_SEQUENCES = 196_608
MODELS = Path(__file__).parent / "models"


@dataclass(frozen=True)
class WordProblems:
    """Word problems of a group, every token hard: inputs and labels, (num_sequences, length)."""

    inputs: np.ndarray
    labels: np.ndarray

    @classmethod
    def draw(cls, group: str, num_sequences: int, length: int, seed: int) -> "WordProblems":
        """Draw them; different seeds give different ones."""
        inputs = sample_inputs(
            np.random.default_rng(seed),
            parse(group),
            num_sequences=num_sequences,
            length=length,
            identity_probability=0.0,
            monoid_sampling="uniform",
        )
        return cls(inputs, prefix_products(multiplication_table(group), inputs))


def read_run() -> RunParameters:
    """Read the implicit run of params.yaml."""
    return read_section(RUN, RunParameters)


def untrained_model(group: str) -> ImplicitForCausalLM:
    """Return the implicit run's model as it is before training."""
    run = read_run()
    model = build(run.model, len(multiplication_table(group)), run.seed)
    assert isinstance(model, ImplicitForCausalLM)
    return model.eval()


def trained_model(group: str, num_steps: int | None = None) -> ImplicitForCausalLM:
    """Train the implicit run on a group's word problem, or read it if that was done before.

    ``num_steps`` ends the training early, before the learning rate decays, for a half-trained
    model; None trains to the end.
    """
    run = read_run()
    own = Path("models", RUN.rpartition(".")[2], "final")
    if group == "A5" and num_steps is None and own.exists():
        return _load(own)
    folder = MODELS / f"{group}_{num_steps or 'all'}_{digest(run, group, num_steps)[:8]}"
    if not folder.exists():
        print(f"training the implicit model on {group}, steps: {num_steps or 'all'}")
        MODELS.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=MODELS) as partial:
            save_model(train_run(group, run, Path(partial), num_steps), Path(partial) / "model")
            (Path(partial) / "model").rename(folder)
    return _load(folder)


def _load(folder: Path) -> ImplicitForCausalLM:
    model = load_model(folder)
    assert isinstance(model, ImplicitForCausalLM)
    return model


def train_run(
    group: str,
    run: RunParameters,
    folder: Path,
    num_steps: int | None = None,
    validate: Callable[[Phase | None], Validate] | None = None,
) -> LanguageModel:
    """Train a run on a group's word problem, with its checkpoints in a folder.

    ``validate`` gives what is called every hundred steps of a phase.
    """
    sequences = WordProblems.draw(group, NUM_SEQUENCES, run.free.lengths.end, seed=0)
    model = build(run.model, len(multiplication_table(group)), run.seed)
    module = distribute(model, run.optimisation.precision, Execution())
    optimiser = build_optimiser(model, run.optimisation)
    batch_size = run.optimisation.sequences_a_step(run.free.lengths.end)
    bounded = bounded_segment(run.bounded)
    free = free_segment(run.free, bounded.last_step)
    if num_steps is not None:
        free = replace(free, num_steps=num_steps - free.first_step, decay_steps=0)
    for segment in (bounded, free):
        training = Training(
            segment=segment,
            optimisation=run.optimisation,
            monitoring=MonitoringParameters(
                log_every=100, validate_every=100, validation_sequences=1, checkpoint_every=10**9
            ),
            sequences=sequences,
            batch_size=batch_size,
            batch_indices=functools.partial(
                batch_indices,
                batch_size=batch_size,
                num_sequences=NUM_SEQUENCES,
                seed=run.seed,
            ),
            validate=validate(segment.phase) if validate else lambda module, execution: {},
            count_flops=lambda *_: 0.0,  # nobody asks
            seed=run.seed,
        )
        checkpoints = CheckpointFolder(folder, segment.name)
        start = Progress(segment.first_step, sequences=segment.first_step * batch_size)
        train(training, start, module, optimiser, checkpoints, NullTracker())
    return model
