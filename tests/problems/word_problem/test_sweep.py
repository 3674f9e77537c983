import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from implicit_models.equilibrium.phase import Phase, search_phase
from implicit_models.equilibrium.solvers import Picard
from implicit_models.equilibrium.stopping import FixedSteps
from implicit_models.equilibrium.window import Window
from implicit_models.evaluation.prediction import predict
from implicit_models.evaluation.residual_trace import trace_residual
from implicit_models.problems.word_problem.evaluation.sweep import sweep_word_problem
from implicit_models.problems.word_problem.parameters import WordProblemSweepParameters
from implicit_models.tracking.tracker import NullTracker
from stages.evaluation.sweep_test_time_compute import track
from tests.evaluation.stubs import Stub, contractive_model

INPUTS = np.random.default_rng(0).integers(0, 8, (6, 12), dtype=np.uint8)
TEST = SimpleNamespace(inputs=INPUTS, labels=INPUTS)
PARAMETERS = WordProblemSweepParameters(
    length=12,
    num_sequences=5,
    batch_size=3,
    self_iterations=(1, 4, 12),
    tolerances=(0.5, 0.02),
    window=5,
    patience=2,
    max_steps=500,
    damping=1.0,
)


class Front(Stub):
    """Right at as many leading positions as there are self-iterations allowed."""

    def forward(self, input_ids, use_cache, phase=None):
        allowed = phase.stopping.max_steps + 1  # the evaluation that gives the output
        self.is_wrong = lambda tokens, positions: positions >= allowed
        return super().forward(input_ids, use_cache, phase)


def test_accuracy_follows_the_allowed_self_iterations():
    result = sweep_word_problem(Front(None), TEST, PARAMETERS)
    accuracies = [point.scores["accuracy"] for point in result.self_iterations]
    assert accuracies == pytest.approx([1 / 12, 4 / 12, 1.0])
    assert [point.scores["accuracy"] for point in result.tolerance] == [1.0, 1.0]
    steps = INPUTS[:5].astype(float) + 1
    depth = steps.sum(1).mean()
    assert result.tolerance[0].self_iterations["mean"] == pytest.approx(depth + 1)
    assert result.tolerance[0].evaluations_per_token["mean"] == pytest.approx(depth * 5 / 12 + 1)
    assert result.tolerance[1].share_converged == (steps < 2).mean()
    assert result.tolerance[0].relative_residual == pytest.approx(steps.mean() / 100)


def test_tolerances_are_searched_through_the_window_and_self_iterations_as_a_whole():
    model = Front(None)
    sweep_word_problem(model, TEST, PARAMETERS)
    batches = 2
    assert [phase.window for phase in model.phases] == (
        [None] * 3 * batches + [Window(5, 2)] * 2 * batches
    )
    assert [phase.stopping.max_steps for phase in model.phases[::batches]] == [0, 3, 11, 500, 500]


def test_metrics_and_rows_are_the_schema():
    result = sweep_word_problem(Front(None), TEST, PARAMETERS)
    found = result.metrics()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert [point["self_iterations"] for point in found["self_iterations"]] == [1, 4, 12]
    assert [point["relative_residual"] is None for point in found["self_iterations"]] == [
        *(True, False, False)
    ]
    assert [point["tolerance"] for point in found["tolerance"]] == [0.5, 0.02]
    shared = {"accuracy", "accuracy_last_10", "flops", "seconds"}
    shared |= {"relative_residual", "relative_residual_p95"}
    assert set(found["self_iterations"][0]) == shared | {"self_iterations"}
    assert set(found["tolerance"][0]) == shared | {
        "tolerance",
        "self_iterations",
        "evaluations_per_token",
        "share_converged",
    }
    assert (found["length"], found["num_sequences"]) == (12, 5)
    rows = result.rows()
    assert [row["sweep"] for row in rows] == ["self_iterations"] * 3 + ["tolerance"] * 2
    assert [row["allowed"] for row in rows] == [1, 4, 12, 0.5, 0.02]
    work = found["tolerance"][0]["evaluations_per_token"]["mean"]
    assert rows[3]["evaluations_per_token"] == work


def test_every_number_of_both_sweeps_is_tracked():
    class Recorder(NullTracker):
        def log_metrics(self, metrics, step=None, level="all"):
            assert level == "stage"  # some hundred, which say nothing among an entry's headline
            logged.update({(name, step): value for name, value in metrics.items()})

    logged = {}
    found = sweep_word_problem(Front(None), TEST, PARAMETERS).metrics()
    track(found, Recorder())
    shared = {"accuracy", "accuracy_last_10", "flops", "seconds"}
    shared |= {"relative_residual", "relative_residual_p95"}
    expected = {
        (f"sweep.self_iterations.{name}", number) for name in shared for number in (1, 4, 12)
    } - {(f"sweep.self_iterations.relative_residual{end}", 1) for end in ("", "_p95")}
    iterations = {
        f"{cost}.{name}"
        for cost in ("self_iterations", "evaluations_per_token")
        for name in ("mean", "p50", "p95")
    }
    for tolerance in ("0.5", "0.02"):
        names = shared | iterations | {"share_converged"}
        expected |= {(f"sweep.tolerance_{tolerance}.{name}", None) for name in names}
    assert set(logged) == expected
    assert logged["sweep.self_iterations.accuracy", 4] == found["self_iterations"][1]["accuracy"]
    assert logged["sweep.tolerance_0.5.seconds", None] == found["tolerance"][0]["seconds"]


def test_what_cannot_be_swept_says_so():
    with pytest.raises(ValueError, match="explicit"):
        explicit = Stub(None, is_implicit=False)
        sweep_word_problem(explicit, TEST, PARAMETERS)
    with pytest.raises(ValueError, match="only 4 test sequences of length 12"):
        few = SimpleNamespace(inputs=INPUTS[:4], labels=INPUTS[:4])
        sweep_word_problem(Front(None), few, PARAMETERS)


@pytest.fixture
def model():
    return contractive_model()


def test_residuals_of_a_real_model_fall(model):
    result = sweep_word_problem(model, TEST, PARAMETERS)
    first, *residuals = [point.relative_residual for point in result.self_iterations]
    assert first is None
    assert residuals == sorted(residuals, reverse=True)
    assert [point.self_iterations["mean"] for point in result.self_iterations] == [1, 4, 12]
    assert result.tolerance[1].share_converged == 1.0
    assert result.tolerance[1].relative_residual < 0.02


def test_trace_ends_with_the_residual_of_the_search(model):
    phase = Phase(Picard(), FixedSteps(9), None)
    trace = trace_residual(model, INPUTS[0], phase)
    assert trace.shape == (9, 12)
    assert not torch.is_inference_mode_enabled()
    search = predict(model, INPUTS[:1], phase=phase, batch_size=1).search
    assert trace[-1].max() == pytest.approx(search.residual[0], rel=1e-4)


def test_windowed_trace_shows_the_front_from_the_first_token_to_the_last(model):
    phase = search_phase(1e-3, 40, damping=1.0, window=Window(4, 2))
    trace = trace_residual(model, INPUTS[0], phase)
    search = predict(model, INPUTS[:1], phase=phase, batch_size=1).search
    assert len(trace) + 1 == search.self_iterations[0]
    np.testing.assert_allclose(trace[-1], search.residual, rtol=1e-4)
    reached = np.isfinite(trace)
    assert reached[0].tolist() == [True] * 4 + [False] * 8
    assert (reached[1:] >= reached[:-1]).all() and reached[-1].all()
    assert (reached[:, :-1] >= reached[:, 1:]).all()
    last_changed = [int((trace[:, n] != trace[-1, n]).nonzero()[0].max()) for n in range(12)]
    assert last_changed == sorted(last_changed) and last_changed[0] + 2 < len(trace)


def test_prefix_of_the_trace_knows_nothing_of_what_follows(model):
    phase = Phase(Picard(), FixedSteps(9), None)
    whole, prefix = (trace_residual(model, INPUTS[0, :n], phase) for n in (12, 7))
    np.testing.assert_allclose(whole[:, :7], prefix, rtol=1e-3, atol=1e-6)
