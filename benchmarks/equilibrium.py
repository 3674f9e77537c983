"""The search for fixed points: windows against whole sequences, solvers, and torchdeq beside ours.

One process on one core. Five parts:

- Windows: trained and half-trained models on word problems of which every token is hard, 16
  sequences of 64 to 4,096 tokens, searched as a whole and with windows, tolerance 0.01. The match
  is the share of tokens of which the window and the whole search predict the same label. Bars
  are of a window of 20, about as deep as the whole search; what each width leaves unsettled, and
  why evaluation takes 8, `window_error` measures.
  Whole sequences of 4,096 tokens are iterated `CAPPED` times only: to the end would take an hour.
- Patience: match, accuracy, depth and work against tolerance, patience and window, on 64 sequences
  of 64 tokens.
- Training: the search of the free phase, 64 sequences of a half-trained model, tolerance 0.05:
  whole sequences within the laptop recipe's 24 iterations, whole sequences to the end, windows.
- Solvers: iterations and time to a tolerance, on trained and untrained cells.
- torchdeq: the same cell, from the same start, for the same number of iterations, residuals
  measured and nothing else kept by either. Peak memory is that of a process of its own.

Timings are medians of interleaved repeats; what takes minutes runs once.
"""

import functools
import itertools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks import harness
from benchmarks.trained import WordProblems, trained_model, untrained_model
from implicit_models.equilibrium.anderson import Anderson
from implicit_models.equilibrium.broyden import Broyden
from implicit_models.equilibrium.iterate import find_fixed_point
from implicit_models.equilibrium.phase import Phase, search_phase
from implicit_models.equilibrium.solution import Result
from implicit_models.equilibrium.solvers import Picard, Solver
from implicit_models.equilibrium.stopping import FixedSteps, ResidualBelow
from implicit_models.equilibrium.window import Window
from implicit_models.language_models.cell import StackCell
from implicit_models.language_models.modelling import ImplicitForCausalLM

BATCH = 16
TOLERANCE = 0.01
DAMPING = 0.8
MAX_STEPS_PER_TOKEN = 64  # as in params.yaml
MAX_DEPTH_PER_TOKEN = 8  # of a whole sequence: what reading token by token takes
CAPPED = 64
WIDTHS = (1, 4, 8, 16, 20, 32, 64)
JUDGED_WIDTH = 20
HALF_TRAINED = {"A5": (1500, (20, 64)), "S3": (400, (64, 256))}  # training steps, lengths

ANDERSON_HISTORY, BROYDEN_HISTORY = 6, 8
COMPARED: dict[str, Solver] = {
    "Picard": Picard(),
    "Anderson": Anderson(ANDERSON_HISTORY),
    "Broyden": Broyden(BROYDEN_HISTORY),
}
COMPARED_ITERATIONS = 48


def run(quick: bool) -> harness.Report:
    """Measure all parts."""
    torch.manual_seed(0)
    if quick:
        model = untrained_model("A5")
        rows, bars = _windows(model, "A5", "untrained", (16, 32), 1)
        rows += _patience(model, "A5", "untrained", 2)
        solver_rows = _solvers({"untrained": model}, (16,), 1)
        deq_rows, deq_bars = _torchdeq(model, repeats=3)
        return harness.Report([*rows, *solver_rows, *deq_rows], bars | deq_bars)
    rows, bars = [], {}
    for group in ("A5", "S3"):
        half = HALF_TRAINED[group]
        for state, (steps, lengths) in {
            "trained": (None, (64, 256, 1024, 4096)),
            "half-trained": half,
        }.items():
            found = _windows(trained_model(group, steps), group, state, lengths, 3)
            rows += found[0]
            bars |= found[1]
            rows += _patience(trained_model(group, steps), group, state)
        rows += _training(trained_model(group, half[0]), group)
    trained = trained_model("A5")
    untrained = untrained_model("A5")
    rows += _solvers({"trained": trained, "untrained": untrained}, (64,), 1)
    deq_rows, deq_bars = _torchdeq(trained, repeats=15)
    return harness.Report([*rows, *deq_rows], bars | deq_bars)


def _windows(
    model: ImplicitForCausalLM, group: str, state: str, lengths: tuple[int, ...], repeats: int
) -> tuple[list[dict[str, Any]], dict[str, harness.Bar]]:
    """Search with every window, and as a whole."""
    rows: list[dict[str, Any]] = []
    for length in lengths:
        problems = WordProblems.draw(group, BATCH, length, seed=1)
        tokens = torch.from_numpy(problems.inputs.astype("int64"))
        labels = torch.from_numpy(problems.labels.astype("int64"))
        whole = search_phase(TOLERANCE, MAX_DEPTH_PER_TOKEN * length, DAMPING)
        is_capped = length > 1024
        if is_capped:
            whole = Phase(Picard(DAMPING), FixedSteps(CAPPED), None)
        phases: dict[int | None, Phase] = {None: whole}
        for width in WIDTHS if length <= 1024 else (8, 16, 20, 32):
            phases[width] = search_phase(TOLERANCE, MAX_STEPS_PER_TOKEN, DAMPING, Window(width))
        seconds, outputs = _interleaved(
            {
                width: functools.partial(_forward, model, tokens, phase)
                for width, phase in phases.items()
            },
            # Once where it takes minutes; the short ones repeat.
            {
                width: repeats if length <= 64 or (width and length <= 256) else 1
                for width in phases
            },
        )
        simultaneous = outputs[None].logits.argmax(-1)
        for width, output in outputs.items():
            predicted = output.logits.argmax(-1)
            capped = is_capped and width is None
            rows.append(
                {
                    "part": "windows",
                    "model": f"{group} {state}",
                    "length": length,
                    "window": width or ("whole, capped" if capped else "whole"),
                    "depth": int(output.search.depth.max()),
                    "token_evaluations": int(output.search.token_evaluations.sum()),
                    "seconds": seconds[width],
                    "microseconds_per_token": None
                    if capped
                    else seconds[width] / tokens.numel() * 1e6,
                    "accuracy": None if capped else (predicted == labels).double().mean().item(),
                    "token_match": None
                    if is_capped
                    else (predicted == simultaneous).double().mean().item(),
                    "not_converged": output.search.metrics()["share_not_converged"],
                }
            )
    return rows, _window_bars(rows, f"{group} {state}")


def _patience(
    model: ImplicitForCausalLM, group: str, state: str, num_sequences: int = 64
) -> list[dict[str, Any]]:
    """Compare the predictions of windows of some width, patience and tolerance with the whole's."""
    problems = WordProblems.draw(group, num_sequences, 64, seed=3)
    tokens = torch.from_numpy(problems.inputs.astype("int64"))
    labels = torch.from_numpy(problems.labels.astype("int64"))
    # What the predictions are compared with is searched much further than they are.
    exact = _forward(model, tokens, search_phase(1e-4, MAX_DEPTH_PER_TOKEN * 64, DAMPING))
    settled = exact.search.result == Result.CONVERGED
    expected = exact.logits.argmax(-1)
    rows = []
    for tolerance in (0.01, 0.001):
        for width, patience in itertools.product((8, JUDGED_WIDTH), (1, 2, 4, 8, 12, 16)):
            phase = search_phase(tolerance, MAX_STEPS_PER_TOKEN, DAMPING, Window(width, patience))
            start = time.perf_counter()
            output = _forward(model, tokens, phase)
            seconds = time.perf_counter() - start
            predicted = output.logits.argmax(-1)
            agreed = (predicted == expected).double()
            rows.append(
                {
                    "part": "patience",
                    "model": f"{group} {state}",
                    "length": 64,
                    "tolerance": tolerance,
                    "window": width,
                    "patience": patience,
                    "depth": int(output.search.depth.max()),
                    "token_evaluations": int(output.search.token_evaluations.sum()),
                    "seconds": seconds,
                    "accuracy": (predicted == labels).double().mean().item(),
                    "whole_accuracy": (expected == labels).double().mean().item(),
                    "token_match": agreed.mean().item(),
                    "token_match_where_whole_converged": (
                        agreed[settled.expand_as(agreed)].mean().item()
                    ),
                    "not_converged": output.search.metrics()["share_not_converged"],
                }
            )
    return rows


def _forward(model: ImplicitForCausalLM, tokens: Tensor, phase: Phase):
    with torch.inference_mode():
        return model(tokens, phase=phase, use_cache=False)


def _interleaved(
    functions: Mapping[Any, Callable[[], Any]], repeats: Mapping[Any, int]
) -> tuple[dict[Any, float], dict[Any, Any]]:
    """Return the median seconds and the last result of each function, called in turn."""
    seconds: dict[Any, list[float]] = {key: [] for key in functions}
    results = {}
    for turn in range(max(repeats.values())):
        for key, function in functions.items():
            if turn < repeats[key]:
                start = time.perf_counter()
                results[key] = function()
                seconds[key].append(time.perf_counter() - start)
    return {key: statistics.median(times) for key, times in seconds.items()}, results


def _window_bars(rows: list[dict[str, Any]], model: str) -> dict[str, harness.Bar]:
    """Judge one window at each length."""
    bars: dict[str, harness.Bar] = {}
    per_token = {}
    for length in sorted({row["length"] for row in rows}):
        at_length = [row for row in rows if row["length"] == length]
        whole = next(row for row in at_length if str(row["window"]).startswith("whole"))
        best = next(row for row in at_length if row["window"] == JUDGED_WIDTH)
        per_token[length] = best["microseconds_per_token"]
        if whole["window"] != "whole":
            continue
        name = f"{model}, L={length}"
        required = {256: 10.0, 1024: 40.0}.get(length)
        if required and "half" not in model:
            bars[f"{name}: times faster than whole"] = harness.at_least(
                whole["seconds"] / best["seconds"], required
            )
        bars[f"{name}: token match"] = harness.at_least(
            best["token_match"], 0.995 if "half" in model else 0.999
        )
        if "half" in model:
            continue
        bars[f"{name}: accuracy lost"] = harness.at_most(
            whole["accuracy"] - best["accuracy"], 0.001
        )
        bars[f"{name}: depth, to whole"] = harness.at_most(best["depth"] / whole["depth"], 1.2)
    if {256, 4096} <= set(per_token):
        bars[f"{model}: time per token, L=4096 to L=256"] = harness.at_most(
            per_token[4096] / per_token[256], 1.5
        )
    return bars


def _training(model: ImplicitForCausalLM, group: str) -> list[dict[str, Any]]:
    """Search as training does, for the time and for what is left unsettled."""
    rows = []
    for length in (20, 64):
        cell, start = _cell(model, 64, length, group)
        searches: dict[str, tuple[ResidualBelow, Window | None]] = {
            "whole, 24 iterations": (ResidualBelow(0.05, 24), None),
            "whole": (ResidualBelow(0.05, MAX_DEPTH_PER_TOKEN * length), None),
            "8, patience 1": (ResidualBelow(0.05, 24), Window(8, 1)),
            "20, patience 1": (ResidualBelow(0.05, 24), Window(20, 1)),
            "20, patience 12": (ResidualBelow(0.05, 24), Window(20)),
        }
        seconds, solutions = _interleaved(
            {
                name: functools.partial(
                    find_fixed_point, cell, start, Picard(DAMPING), stopping, window=window
                )
                for name, (stopping, window) in searches.items()
            },
            dict.fromkeys(searches, 3),
        )
        for name, solution in solutions.items():
            rows.append(
                {
                    "part": "training",
                    "model": f"{group} half-trained",
                    "length": length,
                    "window": name,
                    "depth": int(solution.depth.max()),
                    "token_evaluations": int(solution.token_evaluations.sum()),
                    "seconds": seconds[name],
                    "not_converged": solution.metrics()["share_not_converged"],
                }
            )
    return rows


def _solvers(
    models: Mapping[str, ImplicitForCausalLM], lengths: tuple[int, ...], repeats: int
) -> list[dict[str, Any]]:
    """Iterate whole sequences to a tolerance with each solver."""
    solvers: dict[str, Solver] = {
        "Picard(1.0)": Picard(),
        "Picard(0.8)": Picard(DAMPING),
        "Anderson(5)": Anderson(),
        "Anderson(5, 0.8)": Anderson(damping=DAMPING),
        "Broyden(8)": Broyden(),
        "Broyden(8, 0.8)": Broyden(damping=DAMPING),
    }
    rows = []
    for state, model in models.items():
        for length in lengths:
            cell, start = _cell(model, BATCH, length)
            for tolerance in (1e-2, 1e-4):
                stopping = ResidualBelow(tolerance, 512)
                seconds, solutions = _interleaved(
                    {
                        name: functools.partial(find_fixed_point, cell, start, solver, stopping)
                        for name, solver in solvers.items()
                    },
                    dict.fromkeys(solvers, repeats),
                )
                for name, solution in solutions.items():
                    rows.append(
                        {
                            "part": "solvers",
                            "model": f"A5 {state}",
                            "length": length,
                            "tolerance": tolerance,
                            "solver": name,
                            "depth": int(solution.depth.max()),
                            "mean_iterations": solution.depth.double().mean().item(),
                            "not_converged": solution.metrics()["share_not_converged"],
                            "seconds": seconds[name],
                        }
                    )
    return rows


def _cell(
    model: ImplicitForCausalLM, batch: int, length: int, group: str = "A5"
) -> tuple[StackCell, Tensor]:
    problems = WordProblems.draw(group, batch, length, seed=2)
    with torch.no_grad():
        return model.cell(torch.from_numpy(problems.inputs.astype("int64")))


def _torchdeq(
    model: ImplicitForCausalLM, repeats: int
) -> tuple[list[dict[str, Any]], dict[str, harness.Bar]]:
    """Make the same number of iterations with torchdeq's solvers and with ours."""
    cell, start = _cell(model, BATCH, 64)
    rows: list[dict[str, Any]] = []
    bars: dict[str, harness.Bar] = {}
    for name in COMPARED:
        functions = {
            library: functools.partial(_iterate, library, name, cell, start)
            for library in ("ours", "torchdeq")
        }
        for function in functions.values():
            function()
        seconds, _ = _interleaved(functions, dict.fromkeys(functions, repeats))
        memory = {library: _peak_memory(library, name) for library in functions}
        for library in functions:
            rows.append(
                {
                    "part": "torchdeq",
                    "solver": name,
                    "library": library,
                    "depth": COMPARED_ITERATIONS,
                    "seconds": seconds[library],
                    "peak_memory_mib": memory[library],
                }
            )
        bars[f"{name}: time, ours to torchdeq's"] = harness.at_most(
            seconds["ours"] / seconds["torchdeq"], 1.0
        )
        bars[f"{name}: peak memory, ours to torchdeq's"] = harness.at_most(
            memory["ours"] / memory["torchdeq"], 1.0
        )
    return rows, bars


def _iterate(library: str, name: str, cell: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """Evaluate the cell `COMPARED_ITERATIONS` times."""
    if library == "ours":
        stopping = FixedSteps(COMPARED_ITERATIONS)
        return find_fixed_point(cell, start, COMPARED[name], stopping).value  # type: ignore[arg-type]
    from torchdeq.solver import anderson_solver, broyden_solver, fixed_point_iter

    arguments = {"stop_mode": "rel", "tol": 0.0, "return_final": True}
    with torch.no_grad():
        if name == "Picard":
            return fixed_point_iter(cell, start, max_iter=COMPARED_ITERATIONS, **arguments)[0]
        if name == "Anderson":
            # Its first two evaluations are counted as iterations.
            return anderson_solver(
                cell, start, max_iter=COMPARED_ITERATIONS, m=ANDERSON_HISTORY, **arguments
            )[0]
        # One evaluation comes before the first iteration.
        return broyden_solver(
            cell,
            start,
            max_iter=COMPARED_ITERATIONS - 1,
            LBFGS_thres=BROYDEN_HISTORY,
            **arguments,
        )[0]


class _Elementwise:
    """A cell that needs hardly any memory itself, so that the solver's shows."""

    def __init__(self, start: Tensor) -> None:
        self.offset = torch.linspace(-1, 1, start.shape[-1])

    def __call__(self, value: Tensor) -> Tensor:
        return torch.tanh(value).mul_(0.9).add_(self.offset)

    def select(self, rows: Tensor) -> "_Elementwise":
        return self


def _peak_memory(library: str, name: str) -> float:
    """Measure by how many MiB a search raises its process's peak memory: the least of three.

    What an allocator keeps for itself varies from process to process.
    """
    program = "import sys; from benchmarks.equilibrium import measure_memory as m; m(*sys.argv[1:])"
    command = [sys.executable, "-c", program, library, name]
    return min(
        json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        for _ in range(3)
    )


def measure_memory(library: str, name: str) -> None:
    """Print by how many MiB a search of 64 sequences of 256 tokens raises the peak memory."""
    small = torch.zeros(1, 4, 96)
    _iterate(library, name, _Elementwise(small), small)
    start = torch.zeros(64, 256, 96)
    cell = _Elementwise(start)
    before = _high_water_mark()
    _iterate(library, name, cell, start)
    print(json.dumps((_high_water_mark() - before) / 1024))


def _high_water_mark() -> int:
    """Read the KiB of the largest resident set; getrusage's would begin with the parent's."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


if __name__ == "__main__":
    sys.exit(harness.main("equilibrium", run, num_cores=1, packages=("torch", "torchdeq")))
