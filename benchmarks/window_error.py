"""What a window leaves unsettled: the error that evaluation's search hands on, by its settings.

Models of word problems, one core: those of params.yaml that are trained (``dvc repro`` has made
them), or else the implicit run's, which is trained here. 32 sequences of 640 tokens are searched
token by token to a tolerance of 1e-6, and then with windows of some width, patience and tolerance.
The error is the Euclidean distance of a token's logits from those, over their norm: the median of
20 tokens near the end, before those of the last window, which need no patience. Where a model does
not take errors back, they add up, and in the end the product is lost. Bars are of the search that
evaluation takes by default.
"""

import itertools
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks import harness
from benchmarks.trained import WordProblems, trained_model, untrained_model
from implicit_models.equilibrium.phase import SearchSettings
from implicit_models.language_models.modelling import ImplicitForCausalLM
from implicit_models.language_models.phases import search_settings
from implicit_models.language_models.serialisation import load_model
from implicit_models.parameters import read_content
from implicit_models.problems.word_problem.parameters import WordProblemEvaluationParameters

LENGTH, NUM_SEQUENCES = 640, 32
EXACT = {"window": 1, "tolerance": 1e-6, "patience": 2}
WINDOWS = (8, 12, 16, 20)
JUDGED = slice(-2 * max(WINDOWS), -max(WINDOWS))
RULES = ((0.01, 12), (0.01, 4), (0.001, 12), (0.001, 4), (0.0001, 4))  # tolerance, patience


def run(quick: bool) -> harness.Report:
    """Measure every trained model of A5."""
    torch.manual_seed(0)
    if quick:
        return _measured({"untrained": untrained_model("A5")}, 40, 4)
    return _measured(_trained() or {"a5_implicit_mamba2": trained_model("A5")})


def _trained() -> dict[str, ImplicitForCausalLM]:
    """Return the implicit runs of params.yaml on A5 whose models are there."""
    content = read_content()
    groups = {
        name: (data or {}).get("group") for name, data in (content.get("datasets") or {}).items()
    }
    found = {}
    for name, entry in (content.get("runs") or {}).items():
        folder = Path("models", name, "final")
        if groups.get(entry.get("dataset")) == "A5" and folder.is_dir():
            model = load_model(folder)
            if isinstance(model, ImplicitForCausalLM):
                found[name] = model
    return found


def _measured(
    models: dict[str, ImplicitForCausalLM], length: int = LENGTH, num_sequences: int = NUM_SEQUENCES
) -> harness.Report:
    problems = WordProblems.draw("A5", num_sequences, length, seed=4)
    tokens = torch.from_numpy(problems.inputs.astype("int64"))
    labels = torch.from_numpy(problems.labels.astype("int64"))
    parameters = WordProblemEvaluationParameters(
        lengths=(length,), num_sequences=num_sequences, num_mode_sequences=0
    )
    rows, bars = [], {}
    for name, model in models.items():
        default = search_settings(parameters, model.config)
        if default.window is None:
            raise ValueError(f"{name} searches whole sequences; allowed are searches with a window")
        exactly, exact = _read(model, tokens, labels, replace(default, **EXACT))
        rows.append({"model": name} | exact | {"error": 0.0})
        assert default in _searches(default), "the default search is to be judged"
        for search in _searches(default):
            logits, row = _read(model, tokens, labels, search)
            error = (logits - exactly).norm(dim=-1) / exactly.norm(dim=-1)
            rows.append({"model": name} | row | {"error": error.median().item()})
            if search == default:
                lost = exact["accuracy"] - row["accuracy"]
                bars[f"{name}: error"] = harness.at_most(rows[-1]["error"], 0.01)
                bars[f"{name}: accuracy lost"] = harness.at_most(lost, 0.005)
    return harness.Report(rows, bars)


def _read(
    model: ImplicitForCausalLM, tokens: Tensor, labels: Tensor, search: SearchSettings
) -> tuple[Tensor, dict[str, Any]]:
    """Return the logits of the judged tokens, and what reading all of them was like."""
    start = time.perf_counter()
    with torch.inference_mode():
        output = model(tokens, phase=search.phase(), use_cache=False)
    seconds = time.perf_counter() - start
    logits, solution = output.logits[:, JUDGED], output.search
    return (
        logits,
        {
            "window": search.window,
            "tolerance": search.tolerance,
            "patience": search.patience,
            "error": None,  # its place in the table
            "accuracy": (logits.argmax(-1) == labels[:, JUDGED]).double().mean().item(),
            "evaluations_per_token": solution.token_evaluations.sum().item() / tokens.numel(),
            "depth_per_token": solution.depth.double().mean().item() / tokens.shape[1],
            "not_converged": solution.metrics()["share_not_converged"],
            "seconds": seconds,
        },
    )


def _searches(default: SearchSettings) -> list[SearchSettings]:
    every = itertools.product(WINDOWS, RULES)
    return [
        replace(default, window=window, tolerance=tolerance, patience=patience)
        for window, (tolerance, patience) in every
    ]


if __name__ == "__main__":
    sys.exit(harness.main("window_error", run, num_cores=1, packages=("torch",)))
