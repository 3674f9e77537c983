"""Generating text: ours beside transformers' Llama and Mamba2 of equal size and equal weights.

One process on one core, float32, greedy, random weights. For each family:

- Prefill: the first token after a prompt of 2,048 tokens.
- Decoding: 64 tokens after a prompt of 128, one text and eight together; 32 tokens after 2,048.
- The implicit model of the same stack, made to take exactly `ITERATIONS` self-iterations a
  token, 16 tokens after 8: the time of one against that of a whole explicit token, head and
  sampling included.
- Prefill with the implicit model, 2,048 tokens as a whole, `ITERATIONS` self-iterations: the time
  of one against that of the explicit model's prefill.
- Prefill with an implicit model until all tokens have settled, of 256 tokens by the width of the
  window, and of 2,048 with the default one: random weights whose input projections are scaled down
  so that tokens settle within a few self-iterations.
- Peak memory: by how much prefill and decoding of 2,048 + 32 tokens raise that of a process of
  their own. glibc is told to return large tensors at once, or the peak would mostly be what it
  happens to keep, which varies by half from run to run.

Times are medians of interleaved repeats; what `generate` takes for the prompt alone is subtracted
from what it takes for prompt and tokens.
"""

import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from benchmarks import harness
from implicit_models.equilibrium.phase import Phase, search_phase
from implicit_models.equilibrium.solvers import Picard
from implicit_models.equilibrium.stopping import FixedSteps
from implicit_models.equilibrium.window import Window
from implicit_models.families.conversion import to_transformers
from implicit_models.families.llama.configuration import ImplicitLlamaConfig
from implicit_models.families.llama.family import ImplicitLlamaForCausalLM
from implicit_models.families.mamba2.configuration import ImplicitMamba2Config
from implicit_models.families.mamba2.family import ImplicitMamba2ForCausalLM
from implicit_models.families.upcycling import upcycle
from implicit_models.language_models.configuration import ImplicitConfig
from implicit_models.language_models.modelling import ImplicitForCausalLM

FAMILIES = ("llama", "mamba2")
LIBRARIES = ("ours", "transformers")
VOCABULARY = 8192
LONG, PIECE, SHORT, SHORTEST = 2048, 256, 128, 8
ITERATIONS = 8  # those of the search and the one that gives the output
CONTRACTION = 0.3  # of the random input projections, for cells that settle as trained ones do


def run(quick: bool) -> harness.Report:
    """Measure all parts."""
    rows: list[dict[str, Any]] = []
    bars: dict[str, harness.Bar] = {}
    repeats = 1 if quick else 5
    for family in FAMILIES:
        models = {library: model_of(library, family, quick) for library in LIBRARIES}
        long = 64 if quick else LONG
        cases = {  # prompt, texts, tokens
            "prefill": (long, 1, 1),
            "decoding": (SHORT, 1, 4 if quick else 64),
            "decoding, 8 texts": (SHORT, 8, 4 if quick else 64),
            "decoding after a long prompt": (long, 1, 4 if quick else 32),
        }
        for case, (length, texts, tokens) in cases.items():
            times = repeats if tokens > 1 or quick else 9
            seconds = _seconds(models, length, texts, tokens, times)
            for library in LIBRARIES:
                rows.append(_row(family, case, library, length, texts, tokens, seconds[library]))
            ratio = seconds["transformers"] / seconds["ours"]
            bars[f"{family}, {case}: speed, ours to transformers'"] = harness.at_least(ratio, 1.0)
        ours = models["ours"]
        assert isinstance(ours, ImplicitForCausalLM)
        found, bar = _per_self_iteration(ours, family, quick, repeats)
        rows += found
        bars[f"{family}: a self-iteration to an explicit token"] = bar
        rows.append(_settled_prefill(ours, family, long, ours.config.window))
        row, bar = _prefill_per_self_iteration(ours, family, long, min(repeats, 3))
        rows.append(row)
        bars[f"{family}, prefill: a self-iteration to the explicit prefill"] = bar
        if not quick:
            memory = {library: _peak_memory(library, family) for library in LIBRARIES}
            for library, peak in memory.items():
                rows.append(
                    {
                        "family": family,
                        "part": "memory",
                        "model": library,
                        "prompt": LONG,
                        "peak_memory_mib": peak,
                    }
                )
            ratio = memory["ours"] / memory["transformers"]
            bars[f"{family}: peak memory, ours to transformers'"] = harness.at_most(ratio, 1.0)
    return harness.Report(rows, bars)


def model_of(library: str, family: str, small: bool = False) -> PreTrainedModel:
    """Return an explicit model of some 30 million parameters; the same weights in every library."""
    settings: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64 if small else 512,
        "num_hidden_layers": 2 if small else 8,
        "implicit": False,
    }
    config: ImplicitConfig
    model: ImplicitForCausalLM
    if family == "llama":
        config = ImplicitLlamaConfig(
            num_attention_heads=settings["hidden_size"] // 64,
            intermediate_size=settings["hidden_size"] * 8 // 3 // 64 * 64,
            max_position_embeddings=2 * LONG,
            **settings,
        )
        model = ImplicitLlamaForCausalLM(config)
    else:
        settings["num_hidden_layers"] *= 2
        config = ImplicitMamba2Config(state_size=64, **settings)
        model = ImplicitMamba2ForCausalLM(config)
    model.initialise(0)
    model.eval()
    return model if library == "ours" else to_transformers(model)


def _row(
    family: str, case: str, library: str, length: int, texts: int, tokens: int, seconds: float
) -> dict[str, Any]:
    read = length if tokens == 1 else tokens - 1  # the first token is the prompt's
    return {
        "family": family,
        "part": case,
        "model": library,
        "prompt": length,
        "texts": texts,
        "tokens": tokens,
        "seconds": seconds,
        "tokens_per_second": read * texts / seconds,
    }


def _seconds(
    models: Mapping[str, PreTrainedModel], length: int, texts: int, tokens: int, repeats: int
) -> dict[str, float]:
    """Time the tokens alone, or the prompt where there is one token."""
    prompt = _prompt(texts, length)
    calls: dict[tuple[str, int], Callable[[], Any]] = {
        (name, number): functools.partial(generate, model, prompt, number)
        for name, model in models.items()
        for number in {1, tokens}
    }
    times = harness.interleaved(calls, repeats)
    if tokens == 1:
        return {name: times[name, 1] for name in models}
    return {name: times[name, tokens] - times[name, 1] for name in models}


def _per_self_iteration(
    explicit: ImplicitForCausalLM, family: str, quick: bool, repeats: int
) -> tuple[list[dict[str, Any]], harness.Bar]:
    """Time a self-iteration of decoding against a token of the explicit model."""
    implicit = upcycle(explicit)
    implicit.config.tolerance = 1e-30
    implicit.config.max_self_iterations = ITERATIONS - 1
    tokens = 4 if quick else 16
    models = {"explicit": explicit, "implicit": implicit}
    seconds = _seconds(models, SHORTEST, 1, tokens, repeats)
    rows = [
        {
            "family": family,
            "part": "a token",
            "model": name,
            "prompt": SHORTEST,
            "texts": 1,
            "tokens": tokens,
            "self_iterations": ITERATIONS if name == "implicit" else None,
            "seconds": seconds[name],
            "milliseconds_per_evaluation": seconds[name] / (tokens - 1) / evaluations * 1e3,
        }
        for name, evaluations in (("explicit", 1), ("implicit", ITERATIONS))
    ]
    length = 64 if quick else PIECE
    rows += [_settled_prefill(explicit, family, length, width) for width in (16, 64, 256, None)]
    ratio = seconds["implicit"] / ITERATIONS / seconds["explicit"]
    return rows, harness.at_most(ratio, 1.1)


def _prefill_per_self_iteration(
    explicit: ImplicitForCausalLM, family: str, length: int, repeats: int
) -> tuple[dict[str, Any], harness.Bar]:
    """Time a self-iteration over a whole prompt against the explicit model's reading of it."""
    phase = Phase(Picard(), FixedSteps(ITERATIONS - 1), None)
    models = {"explicit": (explicit, None), "implicit": (upcycle(explicit).eval(), phase)}
    seconds = harness.interleaved(
        {name: functools.partial(_read, *how, length) for name, how in models.items()}, repeats
    )
    row = {
        "family": family,
        "part": f"prefill, {ITERATIONS} iterations",
        "model": "implicit",
        "prompt": length,
        "texts": 1,
        "tokens": 1,
        "self_iterations": ITERATIONS,
        "seconds": seconds["implicit"],
        "tokens_per_second": length / seconds["implicit"],
    }
    ratio = seconds["implicit"] / ITERATIONS / seconds["explicit"]
    return row, harness.at_most(ratio, 1.1)


def _settled_prefill(
    explicit: ImplicitForCausalLM, family: str, length: int, width: int | None
) -> dict[str, Any]:
    """Time a prompt's search with a window, or as a whole; once."""
    settings = explicit.config.to_dict() | {"implicit": True}
    model = type(explicit)(type(explicit.config).from_dict(settings))
    model.initialise(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if any(part in name for part in ("in_proj", "qkv_proj", "gate_up_proj")):
                parameter.mul_(CONTRACTION)
    config = model.config
    window = None if width is None else Window(width, config.patience)
    phase = search_phase(config.tolerance, config.max_self_iterations, config.damping, window)
    start = time.perf_counter()
    output = _read(model.eval(), phase, length)
    seconds = time.perf_counter() - start
    return {
        "family": family,
        "part": f"prefill, window {width or 'whole'}",
        "model": "implicit",
        "prompt": length,
        "texts": 1,
        "tokens": 1,
        "depth": int(output.search.depth.max()),
        "self_iterations": output.self_iterations.double().mean().item(),
        "not_converged": output.search.metrics()["share_not_converged"],
        "seconds": seconds,
        "tokens_per_second": length / seconds,
    }


def _read(model: ImplicitForCausalLM, phase: Phase | None, length: int) -> Any:
    with torch.inference_mode():
        return model(_prompt(1, length), use_cache=True, logits_to_keep=1, phase=phase)


def _prompt(texts: int, length: int) -> Tensor:
    draw = torch.Generator().manual_seed(0)
    return torch.randint(0, VOCABULARY, (texts, length), generator=draw)


def generate(model: PreTrainedModel, prompt: Tensor, tokens: int) -> Tensor:
    """Generate exactly so many tokens, greedily."""
    return model.generate(  # type: ignore[operator]
        prompt,
        attention_mask=torch.ones_like(prompt),
        min_new_tokens=tokens,
        max_new_tokens=tokens,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )


def _peak_memory(library: str, family: str) -> float:
    """Measure by how many MiB generation raises its process's peak memory: the lesser of two."""
    program = "import sys; from benchmarks.generation import measure_memory as m; m(*sys.argv[1:])"
    command = [sys.executable, "-c", program, library, family]
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(2**20)}
    return min(
        json.loads(
            subprocess.run(
                command, check=True, capture_output=True, text=True, env=environment
            ).stdout
        )
        for _ in range(2)
    )


def measure_memory(library: str, family: str) -> None:
    """Print by how many MiB 32 tokens after a prompt of 2,048 raise the peak memory."""
    model = model_of(library, family)
    generate(model, _prompt(1, 4), 2)
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of making the model
    before = _kibibytes("VmRSS")
    generate(model, _prompt(1, LONG), 32)
    print(json.dumps((_kibibytes("VmHWM") - before) / 1024))


def _kibibytes(name: str) -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition(f"{name}:")[2].split()[0])


if __name__ == "__main__":
    sys.exit(harness.main("generation", run, num_cores=1, packages=("torch", "transformers")))
