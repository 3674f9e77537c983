"""A training step of ``make repro``'s implicit model, and its whole training, before and after.

Before is the reference's kernels in PyTorch, after those in C. A step is forward, backward and
optimiser, on sequences of the greatest length; its search takes as many steps as it may. The
products alone are those of the same step, made again in the same process.
"""

import functools
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks import harness
from benchmarks.matrix_products import MatrixProducts
from benchmarks.trained import WordProblems, read_run, train_run, untrained_model
from implicit_models.equilibrium.iterate import find_fixed_point
from implicit_models.equilibrium.phase import Phase, bounded_phase
from implicit_models.equilibrium.solvers import Picard
from implicit_models.equilibrium.stopping import FixedSteps
from implicit_models.kernels.dispatch import Kernels, native_kernels, reference_kernels, using
from implicit_models.language_models.modelling import ImplicitForCausalLM
from implicit_models.language_models.phases import search_settings
from implicit_models.training.definition import Validate
from implicit_models.training.distributed import Execution
from implicit_models.training.optimisation import build_optimiser
from implicit_models.training.validation import validator

GROUP = "A5"
SOLVED = 0.99
GOAL_SECONDS = 180.0


def run(quick: bool) -> harness.Report:
    """Measure steps, then train to the end with either kernels."""
    kernels = {"before": reference_kernels(), "after": native_kernels()}
    rows = _steps(kernels, 2 if quick else 15)
    bars: dict[str, harness.Bar] = {}
    if not quick:
        found = [_training(name, chosen) for name, chosen in kernels.items()]
        rows += found
        solved = found[-1]["seconds_to_solve"]
        name = "seconds to .99 on the last 10 tokens"
        bars[name] = harness.at_most(solved or 10 * GOAL_SECONDS, GOAL_SECONDS)
    return harness.Report(rows, bars)


def _steps(kernels: dict[str, Kernels], repeats: int) -> list[dict[str, Any]]:
    parameters = read_run()
    free = parameters.free
    phases = {
        f"bounded, {parameters.bounded.num_self_iterations} iterations": bounded_phase(
            parameters.bounded.num_self_iterations
        ),
        f"free, {free.max_steps} + {free.gradient_steps} iterations": search_settings(
            free, tolerance=None
        ).phase(free.gradient, free.gradient_steps),
    }
    model = untrained_model(GROUP).train()
    batch_size = parameters.optimisation.sequences_a_step(free.lengths.end)
    problems = WordProblems.draw(GROUP, batch_size, free.lengths.end, 0)
    inputs, labels = (torch.from_numpy(x).long() for x in (problems.inputs, problems.labels))
    optimiser = build_optimiser(model, parameters.optimisation)
    rows = []
    for name, phase in phases.items():
        calls: dict[tuple[str, str], Callable[[], Any]] = {}
        for when, chosen in kernels.items():
            step = functools.partial(_step, chosen, model, optimiser, inputs, labels, phase)
            calls[when, "step"] = step
        with MatrixProducts() as products:
            calls["before", "step"]()
        calls["both", "matrix products alone"] = products.replay()
        seconds = harness.interleaved(calls, repeats)
        alone = seconds["both", "matrix products alone"]
        for (when, what), time_ in seconds.items():
            rows.append(
                {
                    "part": f"{what}, {name}",
                    "when": when,
                    "milliseconds": time_ * 1e3,
                    "times_products": time_ / alone,
                }
            )
    rows += _passes(kernels, model, inputs, repeats)
    return rows


def _step(
    kernels: Kernels,
    model: ImplicitForCausalLM,
    optimiser: torch.optim.Optimizer,
    inputs: Tensor,
    labels: Tensor,
    phase: Phase,
) -> None:
    with using(kernels):
        optimiser.zero_grad()
        model(inputs, labels=labels, phase=phase).loss.backward()
        for group in optimiser.param_groups:
            group["lr"] = 0.0  # the search shall stay what it is
        optimiser.step()


def _passes(
    kernels: dict[str, Kernels], model: ImplicitForCausalLM, inputs: Tensor, repeats: int
) -> list[dict[str, Any]]:
    """Time an iteration of the search against one that keeps its activations."""
    number, rows = 8, []
    for when, chosen in kernels.items():

        def searched(chosen=chosen) -> Any:
            with using(chosen), torch.no_grad():
                cell, start = model.trunk.cell(inputs)
                return find_fixed_point(cell, start, Picard(), FixedSteps(number))

        def kept(chosen=chosen) -> Any:
            with using(chosen):
                cell, value = model.trunk.cell(inputs)
                for _ in range(number):
                    value = cell(value)
                return value

        calls = {"iteration of a search": searched, "iteration with activations kept": kept}
        for what, seconds in harness.interleaved(calls, repeats).items():
            rows.append({"part": what, "when": when, "milliseconds": seconds / number * 1e3})
    return rows


def _training(when: str, kernels: Kernels) -> dict[str, Any]:
    """Train the run to its end; return the seconds, validation left out, until it was solved."""
    parameters = read_run()
    held_out = WordProblems.draw(GROUP, 128, parameters.free.lengths.end, seed=1)
    solved_after: list[float] = []
    spent = 0.0
    start = time.perf_counter()

    def timed(phase: Phase | None) -> Validate:
        validate = validator(held_out, len(held_out.inputs), phase, len(held_out.inputs))

        def measure(module: Any, execution: Execution) -> dict[str, float]:
            nonlocal spent
            reached = time.perf_counter() - start - spent
            metrics = validate(module, execution)
            spent = time.perf_counter() - start - reached
            if metrics["accuracy_last_10"] >= SOLVED:
                solved_after.append(reached)
            return metrics

        return measure

    with tempfile.TemporaryDirectory() as folder, using(kernels):
        train_run(GROUP, parameters, Path(folder), validate=timed)
    return {
        "part": "training to the end",
        "when": when,
        "seconds": time.perf_counter() - start - spent,
        "seconds_to_solve": solved_after[0] if solved_after else None,
    }


if __name__ == "__main__":
    sys.exit(harness.main("training_step", run, packages=("torch",)))
