"""Every solver and gradient from params.yaml, through the stages to the report."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from implicit_models.equilibrium.anderson import Anderson
from implicit_models.equilibrium.broyden import Broyden
from implicit_models.equilibrium.gradients import ImplicitFunction, Phantom, Unrolled
from implicit_models.equilibrium.solvers import BestSoFar
from implicit_models.parameters import ParameterError
from implicit_models.parameters.composition import compose
from stages.evaluation import evaluate_benchmarks, sweep_test_time_compute
from tests.repositories import ROOT
from tests.stages.in_process import run_stages, work_in
from tests.stages.tiny import SEARCH, shrink

RUN = "s3_implicit_mamba2"
NO_PHANTOM = {"phantom_steps": None}


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """Work in an empty project; returns how often each solver and gradient is called."""
    work_in(tmp_path, monkeypatch)
    counted: Counter[str] = Counter()
    methods = [(solver, "step") for solver in (Anderson, Broyden)]
    methods += [(BestSoFar, "answer")]
    methods += [(gradient, "__call__") for gradient in (ImplicitFunction, Phantom, Unrolled)]
    for owner, name in methods:
        monkeypatch.setattr(owner, name, counting(getattr(owner, name), owner.__name__, counted))
    return counted


def counting(method: Callable, name: str, counted: Counter[str]) -> Callable:
    def call(*arguments, **named):
        counted[name] += 1
        return method(*arguments, **named)

    return call


def write(free: dict, evaluation: dict | None = None) -> None:
    parameters = shrink(yaml.safe_load(compose(ROOT, ["preset=quick"])))
    parameters["baselines"] = {}
    parameters["runs"][RUN]["free"] |= free
    for section in ("evaluation", "sweep"):  # left out: as the model was trained
        for key in ("window", "patience"):
            parameters[section]["word_problem"][key] = None
        parameters[section]["word_problem"] |= evaluation or {}
    Path("params.yaml").write_text(yaml.safe_dump(parameters, sort_keys=False))


def read(name: str) -> dict:
    return json.loads(Path("results/runs", RUN, name).read_text())


@pytest.mark.parametrize(
    ("free", "used"),
    [
        ({"solver": "anderson"}, {"Anderson", "Phantom"}),
        ({"solver": "broyden", "best_so_far": True}, {"BestSoFar", "Broyden", "Phantom"}),
        ({"best_so_far": True}, {"BestSoFar", "Phantom"}),
        ({"gradient": "implicit_function", **NO_PHANTOM}, {"ImplicitFunction"}),
        (
            {"solver": "anderson", "gradient": "implicit_function", **NO_PHANTOM},
            {"Anderson", "ImplicitFunction"},
        ),
        (
            {"gradient": "unrolled", "unrolled_steps": 2, "damping": 1.0, **NO_PHANTOM},
            set(),
        ),
    ],
    ids=lambda value: None if isinstance(value, set) else "-".join(map(str, value.values())),
)
def test_a_run_is_trained_tested_and_reported_with_it(calls, free, used):
    write(free)
    assert "report" in run_stages(Path.cwd())
    assert set(calls) == used | {"Unrolled"}  # as the bounded phase is
    config = json.loads(Path("models", RUN, "final", "config.json").read_text())
    trained = {"solver": "picard", "best_so_far": False, "gradient": "phantom", **free}
    assert {name: config[name] for name in trained} == trained
    found = read("evaluation.json")
    shown = {name: found["search"][name] for name in ("solver", "best_so_far", "damping")}
    assert shown == {name: config[name] for name in shown}
    has_window = trained["solver"] == "picard" and not trained["best_so_far"]
    assert bool(found["modes"]) == has_window
    card = Path("models", RUN, "final", "README.md").read_text()
    further = card.partition("## If it is trained further")[2].partition("## Training")[0]
    for name in ("gradient", "unrolled_steps"):
        assert (f"| {name} | {trained.get(name)} |" in further) == (name in trained)
    assert f"| best_so_far | {trained['best_so_far']} |" not in card.partition("## Search")[0]
    if not has_window:
        work = [each["mean"] for each in found["self_iterations"].values()]
        assert 1 <= min(work) <= max(work) <= SEARCH["max_steps"] + 1
    assert [point["self_iterations"] for point in read("test_time_compute.json")["tolerance"]]
    assert RUN in Path("results/report.md").read_text()


def test_another_search_than_the_trained_one(calls):
    write({}, {"solver": "anderson", "damping": 1.0})
    run_stages(Path.cwd())
    found = read("evaluation.json")
    assert calls["Anderson"] and not found["modes"]
    assert found["search"] == {
        **{"solver": "anderson", "best_so_far": False, "damping": 1.0, "tolerance": 0.01},
        **{"max_steps": SEARCH["max_steps"], "window": None, "patience": None},
    }


def test_a_window_that_the_models_solver_has_not_is_named_with_its_section(calls):
    write({"solver": "broyden"})
    run_stages(Path.cwd())
    write({"solver": "broyden"}, {"window": 4})
    for stage, section in ((evaluate_benchmarks, "evaluation"), (sweep_test_time_compute, "sweep")):
        with pytest.raises(ParameterError, match=rf"^{section}\.word_problem\.solver is 'broyden'"):
            stage.main(RUN)
