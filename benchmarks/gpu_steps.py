"""Training steps and evaluations of the cell, with our kernels and loop and with the baseline's."""

import functools
import os
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_baseline import Loop, baseline_kernels, baseline_loop
from benchmarks.gpu_counts import cell_bytes, cell_operations, step_operations
from benchmarks.gpu_device import (
    Row,
    Scale,
    attempt,
    describe,
    device,
    median_seconds,
    our_kernels,
    peak_gibibytes,
    release,
)
from implicit_models.equilibrium.gradients import Phantom
from implicit_models.equilibrium.iterate import find_fixed_point
from implicit_models.equilibrium.phase import Phase
from implicit_models.equilibrium.solvers import Picard
from implicit_models.equilibrium.stopping import FixedSteps
from implicit_models.families.llama.configuration import ImplicitLlamaConfig
from implicit_models.families.llama.family import ImplicitLlamaForCausalLM
from implicit_models.families.mamba2.family import ImplicitMamba2ForCausalLM
from implicit_models.kernels import cuda_graph
from implicit_models.kernels.dispatch import Kernels, using
from implicit_models.language_models.losses import LOSSES
from implicit_models.language_models.modelling import ImplicitForCausalLM

DAMPING = 0.8
# What is measured of a model beside our launches: parts are named "mamba2-130m, baseline".
BASELINE, CUDA_GRAPHS = "baseline", "CUDA graphs"
OURS_AS_GRAPHS = f"ours, {CUDA_GRAPHS}"


@dataclass(frozen=True)
class Contender:
    """Kernels, and a loop (None: ours); the weights are the same for all.

    Attributes
    ----------
    autocast
        Whether parameters are float32, and autocast rounds them for products.
    """

    side: str
    kernels: Kernels
    loop_name: str
    loop: Loop | None
    autocast: bool = False

    def row(self, model: str, scale: Scale, batch: int) -> Row:
        """Begin a row."""
        return {
            "model": model,
            "side": self.side,
            "kernels": self.kernels.name,
            "loop": self.loop_name,
            "parameters": "float32, autocast" if self.autocast else str(scale.dtype)[6:],
            "batch": batch,
        }


def contenders(family: str) -> tuple[Contender, list[Contender]]:
    """Return our contender, and the possible baselines, best first."""
    name, loop = baseline_loop()
    baselines = [Contender(BASELINE, kernels, name, loop) for kernels in baseline_kernels(family)]
    is_graph = os.environ.get(cuda_graph.VARIABLE) == "1"
    return Contender("ours", our_kernels(), OURS_AS_GRAPHS if is_graph else "ours", None), baselines


def measure_model(part: str, scale: Scale) -> Iterator[Row]:
    """Measure ours of a model, or its baseline; what matters most and fails least comes first."""
    model, _, what = part.partition(", ")
    family, _, size = model.partition("-")
    full = scale.batches[size]
    ours, baselines = contenders(family)
    if what == BASELINE:
        yield from _baseline(baselines, ours, model, scale, full)
        return
    for phase in reversed(scale.phases):
        yield from _steps(ours, model, scale, phase, full)
    yield from _evaluations(ours, model, scale, full)
    if size == "130m" and not what:
        yield from _steps(replace(ours, autocast=True), model, scale, scale.phases[-1], full)


def _baseline(
    baselines: list[Contender], ours: Contender, model: str, scale: Scale, full: int
) -> Iterator[Row]:
    """Measure the first baseline that runs, and ours where only a smaller batch fits."""
    for baseline in baselines:
        runs = False
        for phase in reversed(scale.phases):
            batch = full
            for row in _steps(baseline, model, scale, phase, full):
                batch, runs = row["batch"], runs or "seconds" in row
                yield row
            if batch < full:  # compare at the same size
                yield from _steps(ours, model, scale, phase, batch)
        if runs:
            yield from _evaluations(baseline, model, scale, full)
            break


def _steps(
    contender: Contender, model: str, scale: Scale, phase: tuple[int, int], batch: int
) -> Iterator[Row]:
    """Measure a step; where memory runs out, say so and try half the batch."""
    label = f"({phase[0]}+{phase[1]})"
    while True:
        row = {"part": "training step", "phase": label} | contender.row(model, scale, batch)
        ran_out = None
        try:
            found = row | _step(contender, model, scale, phase, batch)
        except torch.OutOfMemoryError as error:
            ran_out = found = row | {"error": describe(error)}
        except Exception as error:  # whatever it is, it is a finding
            found = row | {"error": describe(error)}
        release()
        yield found
        if ran_out is None or batch == 1:
            return
        batch //= 2


def _step(
    contender: Contender, model_name: str, scale: Scale, phase: tuple[int, int], batch: int
) -> Row:
    search, phantom = phase
    model, tokens = _model(contender, model_name, scale), _tokens(model_name, scale, batch)
    # At a rate of zero the work is the same, and all contenders see the same weights throughout.
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=0.0, betas=(0.9, 0.95), weight_decay=0.1, foreach=True
    )
    seen: dict[str, Tensor] = {}

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        with using(contender.kernels), _precision(contender):
            if contender.loop is None:
                how = Phase(Picard(DAMPING), FixedSteps(search), Phantom(phantom, DAMPING))
                loss = model(tokens, labels=tokens, phase=how).loss
            else:
                loss = _plain_loss(model, tokens, contender.loop, search, phantom)
        loss.backward()
        optimiser.step()
        seen["loss"] = loss.detach()

    seconds = median_seconds(step, scale)
    memory = peak_gibibytes()
    gradients = [p.grad for p in model.model.stack.parameters() if p.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients).item()
    model.zero_grad(set_to_none=True)
    operations = step_operations(model.config, tokens.numel(), scale.length, search, phantom)
    return {
        "seconds": seconds,
        "tokens_per_second": tokens.numel() / seconds,
        "peak_memory_gib": memory,
        "teraflops": operations / seconds / 1e12,
        "loss": seen["loss"].item(),
        "gradient_norm": norm,
    }


def _plain_loss(
    model: ImplicitForCausalLM, tokens: Tensor, loop: Loop, search: int, phantom: int
) -> Tensor:
    """Return the loss as a user of the loop would compute it."""
    cell, start = model.cell(tokens)
    value = loop(cell, start, search, DAMPING)
    for _ in range(phantom):
        value = DAMPING * cell(value) + (1 - DAMPING) * value
    return LOSSES[model.config.label_alignment](model.lm_head(value), tokens, None)


def _evaluations(contender: Contender, model_name: str, scale: Scale, batch: int) -> Iterator[Row]:
    """Measure an evaluation of the cell: within a search, and keeping activations."""
    search = scale.phases[-1][0]
    counts = {"search only": search}
    if contender.loop_name != OURS_AS_GRAPHS:  # what keeps activations is no graph
        counts["keeping activations"] = 1
    for what, count in counts.items():
        row = {"part": "cell evaluation", "what": what} | contender.row(model_name, scale, batch)
        row |= {"evaluations": count}
        keeps = what == "keeping activations"
        yield from attempt(
            row,
            lambda count=count, keeps=keeps: _evaluation(
                contender, model_name, scale, batch, count, keeps
            ),
        )


def _evaluation(
    contender: Contender, model_name: str, scale: Scale, batch: int, count: int, keeps: bool
) -> Row:
    model, tokens = _model(contender, model_name, scale), _tokens(model_name, scale, batch)
    with using(contender.kernels):
        cell, start = model.cell(tokens)
        # Not zeros: products of those are faster than any other.
        value = torch.randn_like(start).requires_grad_(keeps)

        def search() -> None:
            with torch.no_grad():
                cell, _ = model.cell(tokens)  # as each training step makes one
            if contender.loop is not None:
                contender.loop(cell, value, count, DAMPING)
            else:
                find_fixed_point(cell, value, Picard(DAMPING), FixedSteps(count))

        seconds = median_seconds((lambda: cell(value)) if keeps else search, scale) / count
    operations = cell_operations(model.config, tokens.numel(), scale.length)
    found = {
        "seconds": seconds,
        "tokens_per_second": tokens.numel() / seconds,
        "peak_memory_gib": peak_gibibytes(),
        "teraflops": operations / seconds / 1e12,
    }
    if not keeps and contender.loop is None:
        moved = cell_bytes(model.config, tokens.numel(), scale.dtype.itemsize)
        found["gigabytes_per_second"] = moved / seconds / 1e9
    return found


def _model(contender: Contender, name: str, scale: Scale) -> ImplicitForCausalLM:
    model = _random_model(name, scale, torch.float32 if contender.autocast else scale.dtype)
    model.zero_grad(set_to_none=True)
    return model


@functools.lru_cache(maxsize=1)
def _random_model(name: str, scale: Scale, dtype: torch.dtype) -> ImplicitForCausalLM:
    config = scale.config(name)
    is_llama = isinstance(config, ImplicitLlamaConfig)
    made = ImplicitLlamaForCausalLM if is_llama else ImplicitMamba2ForCausalLM
    with torch.device(device()):  # much faster than drawing all weights on a CPU
        model = made(config)  # type: ignore[arg-type]
        model.initialise(0)
    torch.nn.Module.to(model, dtype)
    return model.train()


def _tokens(name: str, scale: Scale, batch: int) -> Tensor:
    draw = torch.Generator().manual_seed(1)
    vocabulary = scale.config(name).vocab_size
    return torch.randint(0, vocabulary, (batch, scale.length), generator=draw).to(device())


def _precision(contender: Contender) -> Any:
    if not contender.autocast:
        return nullcontext()
    return torch.autocast(device().type, dtype=torch.bfloat16)
