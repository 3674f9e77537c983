import json
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from implicit_models.equilibrium.phase import search_phase
from implicit_models.equilibrium.window import Window
from implicit_models.evaluation.contraction import spectral_radii
from implicit_models.evaluation.prediction import predict
from implicit_models.problems.word_problem.evaluation import interface
from implicit_models.problems.word_problem.evaluation.state_tracking import evaluate_state_tracking
from implicit_models.problems.word_problem.parameters import WordProblemEvaluationParameters
from stages.tracked import numbers
from tests.evaluation.stubs import Stub, contractive_model

PARAMETERS = WordProblemEvaluationParameters(
    lengths=(12, 24),
    num_sequences=6,
    num_mode_sequences=4,
    batch_size=4,
    window=5,
    patience=2,
    tolerance=0.05,
    max_steps=50,
    damping=1.0,
)


def _split(length, num_sequences=8, vocabulary_size=8):
    generator = np.random.default_rng(length)
    inputs = generator.integers(0, vocabulary_size, (num_sequences, length), dtype=np.uint8)
    return SimpleNamespace(inputs=inputs, labels=inputs.copy())


SPLITS = {length: _split(length) for length in (12, 24)}


def _never(tokens, positions):
    return torch.zeros_like(tokens, dtype=torch.bool)


def test_accuracy_where_the_wrong_positions_are_known():
    model = Stub(lambda tokens, positions: positions >= 18)
    result = evaluate_state_tracking(model, SPLITS, PARAMETERS)
    short, long = result.lengths[12], result.lengths[24]
    assert (short.accuracy, short.accuracy_last_10) == (1.0, 1.0)
    assert (long.accuracy, long.accuracy_last_10) == (18 / 24, 4 / 10)
    assert long.by_position.tolist() == [1.0] * 18 + [0.0] * 6
    assert long.num_sequences == 6
    rows = result.position_rows()
    assert len(rows) == 12 + 24
    assert rows[12] == {"length": 24, "position": 1, "accuracy": 1.0}
    assert rows[-1] == {"length": 24, "position": 24, "accuracy": 0.0}


def _spread(values):
    return pytest.approx(
        {"mean": values.mean(), "p50": np.median(values), "p95": np.quantile(values, 0.95)}
    )


def test_search_numbers_are_those_of_the_windowed_tokens():
    found = evaluate_state_tracking(Stub(_never), SPLITS, PARAMETERS).lengths[12]
    steps = SPLITS[12].inputs[:6].astype(float) + 1
    # One more evaluation, of every token, gives the output.
    assert found.self_iterations == _spread(steps.sum(1) + 1)
    assert found.evaluations_per_token == _spread(steps.sum(1) * 5 / 12 + 1)
    assert found.relative_residual["max"] == pytest.approx(steps.max() / 100)
    assert found.relative_residual["mean"] == pytest.approx(steps.mean() / 100)
    assert found.share_converged == (steps < 5).mean()


def test_mode_numbers_are_those_of_the_first_sequences():
    found = evaluate_state_tracking(Stub(_never), SPLITS, PARAMETERS).lengths[12].modes
    steps = SPLITS[12].inputs[:4].astype(float) + 1
    assert found.num_sequences == 4
    assert found.window.self_iterations == _spread(steps.sum(1) + 1)
    assert found.window.evaluations_per_token == _spread(steps.sum(1) * 5 / 12 + 1)
    assert found.simultaneous.self_iterations == _spread(steps[:, 0] + 1)
    assert found.simultaneous.evaluations_per_token == _spread(steps[:, 0] + 1)
    assert found.simultaneous.share_converged == (steps[:, 0] < 5).mean()
    assert found.sequential.self_iterations == _spread(steps.sum(1) + 1)
    assert found.sequential.evaluations_per_token == _spread(steps.mean(1) + 1)
    assert found.sequential.share_converged == (steps < 5).mean()


def test_each_mode_is_searched_as_the_parameters_say():
    model = Stub(_never)
    evaluate_state_tracking(model, SPLITS, PARAMETERS.replace(lengths=(12,)))
    assert [len(batch) for batch in model.batches] == [4, 2, 4, 4, 4]
    windows = [Window(5, 2), Window(5, 2), Window(5, 2), Window(1, 2), None]
    assert [phase.window for phase in model.phases] == windows
    searched = {phase.stopping for phase in model.phases if phase.window is not None}
    assert searched == {search_phase(0.05, 50, 1.0).stopping}


def test_matches_count_positions_and_the_modes_match_is_weighted_by_tokens():
    class Disagreeing(Stub):
        def forward(self, input_ids, use_cache, phase=None):
            width = phase.window.width if phase.window else None
            first_wrong = {5: 21, None: 18, 1: 12}[width]
            self.is_wrong = lambda tokens, positions: positions >= first_wrong
            return super().forward(input_ids, use_cache, phase)

    result = evaluate_state_tracking(Disagreeing(_never), SPLITS, PARAMETERS)
    short, long = result.lengths[12].modes, result.lengths[24].modes
    assert (short.token_match, short.simultaneous.window_match) == (1.0, 1.0)
    assert (long.window.window_match, long.window.accuracy) == (1.0, 21 / 24)
    assert long.token_match == 18 / 24
    assert long.simultaneous.window_match == 21 / 24
    assert long.sequential.window_match == 15 / 24
    assert (long.simultaneous.accuracy, long.sequential.accuracy) == (18 / 24, 12 / 24)
    assert (long.simultaneous.accuracy_last_10, long.sequential.accuracy_last_10) == (0.4, 0.0)
    assert result.lengths[24].accuracy == 21 / 24
    assert result.metrics()["mode_token_match"] == pytest.approx((12 + 18) / 36)


def test_spectral_radius_is_that_of_the_worst_token_of_the_shortest_sequences():
    parameters = PARAMETERS.replace(lengths=(24, 12), damping=0.5)
    result = evaluate_state_tracking(Stub(_never), SPLITS, parameters)
    found = result.spectral_radius
    worst = SPLITS[12].inputs[:4].max(1) / 10.0
    assert list(found) == [12]
    assert found[12] == pytest.approx(
        {
            "mean": worst.mean(),
            "p50": np.median(worst),
            "p95": np.quantile(worst, 0.95),
            "max": worst.max(),
        }
    )
    damped = result.spectral_radius_damped[12]
    assert damped["mean"] == pytest.approx(0.5 + 0.5 * worst.mean())


def test_the_simultaneous_mode_may_take_what_the_sequential_one_took():
    model = Stub(_never)
    evaluate_state_tracking(model, SPLITS, PARAMETERS.replace(lengths=(12,)))
    allowed = {phase.window: phase.stopping.max_steps for phase in model.phases}
    slowest = int((SPLITS[12].inputs[:4].astype(int) + 1).sum(1).max())
    assert allowed == {Window(5, 2): 50, Window(1, 2): 50, None: slowest + 1}


def test_no_sequence_to_compare_leaves_modes_and_spectral_radius_out():
    model = Stub(_never)
    parameters = PARAMETERS.replace(num_mode_sequences=0)
    found = evaluate_state_tracking(model, SPLITS, parameters).metrics()
    assert found["modes"] == found["spectral_radius"] == found["spectral_radius_damped"] == {}
    assert found["mode_token_match"] is None
    assert {phase.window for phase in model.phases} == {Window(5, 2)}


def test_of_long_sequences_fewer_are_read():
    model = Stub(_never)
    result = evaluate_state_tracking(model, SPLITS, PARAMETERS.replace(max_tokens=72))
    assert {n: each.num_sequences for n, each in result.lengths.items()} == {12: 6, 24: 3}
    modes = {n: each.modes.num_sequences for n, each in result.lengths.items()}
    assert modes == {12: 4, 24: 3}
    every = evaluate_state_tracking(Stub(_never), SPLITS, PARAMETERS).lengths[12]
    assert np.array_equal(result.lengths[12].by_position, every.by_position)


def test_metrics_are_the_schema_and_json():
    found = evaluate_state_tracking(Stub(_never), SPLITS, PARAMETERS).metrics()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert (found["kind"], found["num_parameters"]) == ("implicit", 5)
    assert found["mode_token_match"] == 1.0
    per_length = ("accuracy", "accuracy_last_10", "self_iterations", "evaluations_per_token")
    for name in (*per_length, "relative_residual", "share_converged", "modes", "seconds"):
        assert list(found[name]) == ["12", "24"]
    for name in ("self_iterations", "evaluations_per_token"):
        assert set(found[name]["12"]) == {"mean", "p50", "p95"}
    assert set(found["relative_residual"]["12"]) == {"mean", "p50", "p95", "max"}
    assert list(found["spectral_radius"]) == ["12"]
    assert set(found["spectral_radius"]["12"]) == {"mean", "p50", "p95", "max"}
    modes = ("window", "simultaneous", "sequential")
    assert set(found["modes"]["12"]) == {"num_sequences", "token_match", *modes}
    for mode in modes:
        assert set(found["modes"]["12"][mode]) == {
            *("accuracy", "accuracy_last_10", "window_match", "share_converged", "seconds"),
            *("self_iterations", "evaluations_per_token", "relative_residual"),
        }


def test_chance_is_of_the_labels_that_are_scored():
    """At each length, and among the last 10 tokens where the score is of those."""
    rare = np.zeros((6, 24), dtype=np.uint8)
    rare[:, -10:] = np.arange(10) % 5  # each of five twice, after zeros alone
    short = np.tile(np.arange(12, dtype=np.uint8) % 4, (6, 1))
    splits = {n: SimpleNamespace(inputs=each, labels=each) for n, each in ((12, short), (24, rare))}
    chance = evaluate_state_tracking(Stub(_never), splits, PARAMETERS).metrics()["chance"]
    assert chance == {
        "accuracy": {"12": 3 / 12, "24": 16 / 24},
        "accuracy_last_10": {"12": 3 / 10, "24": 2 / 10},
    }


def test_every_number_is_tracked_and_the_headline_holds_both_costs():
    found = evaluate_state_tracking(Stub(_never), SPLITS, PARAMETERS).metrics()
    tracked = numbers(found, "evaluation.")
    assert tracked["evaluation.spectral_radius.12.max"] == found["spectral_radius"]["12"]["max"]
    for mode in ("window", "simultaneous", "sequential"):
        cost = found["modes"]["24"][mode]["evaluations_per_token"]
        assert tracked[f"evaluation.modes.24.{mode}.evaluations_per_token.p95"] == cost["p95"]
        assert f"evaluation.modes.24.{mode}.window_match" in tracked
    few = interface._headline(found)
    for cost in ("self_iterations", "evaluations_per_token"):
        assert few[cost] == {n: found[cost][n]["mean"] for n in ("12", "24")}


def test_explicit_models_have_one_mode_and_no_search():
    model = Stub(_never, is_implicit=False)
    found = evaluate_state_tracking(model, SPLITS, PARAMETERS).metrics()
    assert found["kind"] == "explicit"
    assert found["accuracy"] == {"12": 1.0, "24": 1.0}
    searched = ("self_iterations", "evaluations_per_token", "relative_residual", "share_converged")
    assert all(
        found[name] == {}
        for name in (*searched, "modes", "spectral_radius", "spectral_radius_damped")
    )
    assert found["mode_token_match"] is None
    assert set(model.phases) == {None}


def test_too_little_data_names_what_to_change():
    parameters = PARAMETERS.replace(lengths=(48,))
    with pytest.raises(ValueError, match=r"length 48; the data has \[12, 24\].*test.lengths"):
        evaluate_state_tracking(Stub(_never), SPLITS, parameters)
    parameters = PARAMETERS.replace(lengths=(12,), num_sequences=9)
    with pytest.raises(ValueError, match="num_sequences = 9.*only 8"):
        evaluate_state_tracking(Stub(_never), SPLITS, parameters)


MODES = pytest.mark.parametrize(
    "window", [None, Window(1, 2), Window(5, 2), Window(12, 2)], ids=str
)


@MODES
def test_batch_mates_never_change_a_result(window):
    model, inputs = contractive_model(), SPLITS[12].inputs
    phase = search_phase(1e-3, 40, damping=1.0, window=window)
    alone = predict(model, inputs, phase=phase, batch_size=1)
    together = predict(model, inputs, phase=phase, batch_size=8)
    assert len(set(alone.search.self_iterations)) > 1  # batches are of unequal difficulty
    assert np.array_equal(alone.labels, together.labels)
    for name in ("self_iterations", "converged"):
        assert np.array_equal(getattr(alone.search, name), getattr(together.search, name))
    np.testing.assert_allclose(alone.search.residual, together.search.residual, rtol=1e-2)


def test_all_modes_of_a_real_model_agree_at_a_tight_tolerance():
    parameters = PARAMETERS.replace(
        lengths=(12,),
        num_mode_sequences=6,
        batch_size=3,
        tolerance=1e-5,
        max_steps=1000,
    )
    found = evaluate_state_tracking(contractive_model(), SPLITS, parameters).lengths[12]
    assert found.share_converged == 1.0
    assert found.modes.num_sequences == 6
    assert found.modes.token_match == 1.0
    for mode in (found.modes.window, found.modes.simultaneous, found.modes.sequential):
        assert mode.window_match == mode.share_converged == 1.0
    simultaneous, sequential = found.modes.simultaneous, found.modes.sequential
    assert simultaneous.self_iterations == simultaneous.evaluations_per_token
    depths = [each.self_iterations["mean"] for each in (simultaneous, found, sequential)]
    assert depths == sorted(set(depths))
    assert found.evaluations_per_token["mean"] < found.self_iterations["mean"]
    assert sequential.evaluations_per_token["mean"] < found.evaluations_per_token["mean"]


@MODES
def test_evaluations_are_those_of_the_cell(window, monkeypatch):
    model, inputs = contractive_model(), SPLITS[12].inputs[:1]
    lengths = []
    stack = model.model.stack
    apply_blocks = stack._apply_blocks  # of an evaluation and of a search's step alike

    def count(hidden, *arguments, **settings):
        lengths.append(hidden.shape[1])
        return apply_blocks(hidden, *arguments, **settings)

    monkeypatch.setattr(stack, "_apply_blocks", count)
    phase = search_phase(1e-3, 40, damping=1.0, window=window)
    search = predict(model, inputs, phase=phase, batch_size=1).search
    assert search.converged.all()
    assert search.converged.shape == search.residual.shape == ((12,) if window else (1,))
    assert search.self_iterations.tolist() == [len(lengths)]
    computed = sum(lengths) / 12
    if window is None or window.width == 1:
        assert search.evaluations_per_token == pytest.approx([computed])
    else:  # what a window computes beyond the end of its sequence is not counted
        assert computed / 2 < search.evaluations_per_token[0] <= computed
    assert set(lengths[:-1]) <= set(range(1, (window.width if window else 12) + 1))


def test_spectral_radius_of_a_real_model_is_that_of_its_jacobian():
    model, inputs = contractive_model(), SPLITS[12].inputs[:3, :4]
    phase = search_phase(1e-6, 200, damping=1.0, window=Window(2, 2))
    plain, damped = spectral_radii(model, inputs, phase=phase, batch_size=2, dampings=(1.0, 0.6))
    assert not any(parameter.grad is not None for parameter in model.parameters())
    for sequence, *radii in zip(inputs, plain, damped, strict=True):
        tokens = torch.from_numpy(sequence.astype(np.int64))[None]
        cell, value = model.cell(tokens)
        with torch.no_grad():
            for _ in range(200):
                value = cell(value)
        jacobian = torch.autograd.functional.jacobian(cell, value).reshape(4 * 16, 4 * 16)
        eigenvalues = torch.linalg.eigvals(jacobian)
        expected = [eigenvalues.abs().max().item(), (0.4 + 0.6 * eigenvalues).abs().max().item()]
        assert radii == pytest.approx(expected, rel=0.05)


def test_parameters_are_read_without_torch():
    module = "implicit_models.problems.word_problem.parameters"
    program = f"import sys; import {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_models_are_ranked_by_their_hardest_test():
    metrics = {"accuracy_last_10": {"20": 1.0, "160": 0.5, "80": 0.75}}
    assert interface._score(metrics) == ("accuracy_last_10.160", 0.5, True)
