"""A baseline that is as large as a run, or costs as much to train as that did."""

import functools
import json
import logging
from collections.abc import Callable, Iterable
from pathlib import Path

from implicit_models.checksums import compare_folder
from implicit_models.cost.matching import match_parameters, match_training_flops
from implicit_models.language_models.pretrained import ModelFileError
from implicit_models.problems.problem import data_of
from implicit_models.training.curriculum import explicit_segment
from implicit_models.training.loading import share_asked
from implicit_models.training.parameters import ExplicitParameters
from stages.common import read_dataset
from stages.entries import MatchedParameters
from stages.training.outputs import COST

log = logging.getLogger(__name__)


def like_its_run(name: str, baseline: MatchedParameters) -> MatchedParameters:
    """Fill in the steps, the width or the depth that the run's training or size means.

    With other steps, those over which the learning rate decays, the lengths grow and the carry is
    passed change in proportion.

    Raises
    ------
    ModelFileError
        Where the run's model does not tell what its training has cost.
    """
    cost = _read_cost(baseline.match.run)
    dataset = read_dataset("matched", name)
    data = data_of(dataset.kind).open_training(dataset.folder, dataset.parameters)
    segment = explicit_segment(baseline.training)
    steps = range(baseline.training.num_training_steps)
    return matched_to(
        baseline,
        flops=cost["flops"],
        num_parameters=int(cost["num_parameters"]),
        vocabulary_size=data.vocabulary_size,
        longest=data.train.inputs.shape[1],
        lengths=(segment.length_at(step, baseline.seed) for step in steps),
        share_asked=functools.partial(share_asked, data.train),
    )


def matched_to(
    baseline: MatchedParameters,
    *,
    flops: float,
    num_parameters: int,
    vocabulary_size: int,
    longest: int,
    lengths: Iterable[int],
    share_asked: Callable[[int], float] | None = None,
) -> MatchedParameters:
    """Fill in what the FLOPs of a run's training, or its parameters, mean; see `like_its_run`.

    Parameters
    ----------
    longest, lengths
        Tokens of the longest sequences, and of those of each planned step.
    share_asked
        Which share of the sequences a step of some length computes; None: all.
    """
    match, training = baseline.match, baseline.training
    if match.quantity == "parameters":
        target = num_parameters
        found = match_parameters(target, baseline.model, vocabulary_size, vary=match.vary)
        model, steps, reached = found.parameters, training.num_training_steps, found.num_parameters
    else:
        target = flops
        found = match_training_flops(
            target,
            baseline.model,
            vocabulary_size,
            vary=match.vary,
            num_training_steps=training.num_training_steps,
            batch_size=baseline.optimisation.sequences_a_step(longest),
            lengths=lengths,
            num_passing=explicit_segment(training).num_passing,
            share_asked=share_asked,
        )
        model, steps, reached = found.parameters, found.num_training_steps, found.flops
    log.info(
        "%s of %s: %.6g; with %d training steps and %s: %.6g",
        match.quantity,
        match.run,
        target,
        steps,
        model.in_words,
        reached,
    )
    return baseline.replace(model=model, training=_stretched(training, steps))


def _read_cost(run: str) -> dict[str, float]:
    path = Path("models", run, "final", COST)
    try:
        compare_folder(path.parent, [COST])
        cost = json.loads(path.read_text())
        return {key: float(cost[key]) for key in ("flops", "num_parameters")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelFileError(
            f"{path} does not tell what the training of {run} has cost ({error}); "
            f"`dvc repro train_free@{run}` writes it"
        ) from None


def _stretched(training: ExplicitParameters, num_training_steps: int) -> ExplicitParameters:
    factor = num_training_steps / training.num_training_steps
    lengths = training.lengths
    growth = max(round(lengths.growth_steps * factor), 1 if lengths.growth_steps else 0)
    passing = training.carry_steps
    return training.replace(
        num_training_steps=num_training_steps,
        carry_steps=None if passing is None else max(1, round(passing * factor)),
        decay_steps=round(training.decay_steps * factor),
        lengths=lengths.replace(growth_steps=growth),
    )
