import dataclasses
import json
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from implicit_models.equilibrium.phase import search_phase
from implicit_models.evaluation.parameters import EvaluationParameters
from implicit_models.evaluation.prediction import predict, sequential
from implicit_models.evaluation.state_tracking import evaluate_state_tracking
from tests.evaluation.stubs import Stub, contractive_model

PARAMETERS = EvaluationParameters(
    lengths=(12, 24),
    num_sequences=6,
    num_sequential_sequences=4,
    batch_size=4,
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


def test_search_numbers_are_those_of_the_sequences():
    result = evaluate_state_tracking(Stub(_never), SPLITS, PARAMETERS)
    steps = SPLITS[12].inputs[:6, 0].astype(float) + 1
    used = steps + 1  # the evaluation that gives the output
    found = result.lengths[12]
    assert found.self_iterations == pytest.approx(
        {"mean": used.mean(), "p50": np.median(used), "p95": np.quantile(used, 0.95)}
    )
    assert found.relative_residual["max"] == pytest.approx(steps.max() / 100)
    assert found.share_converged == (steps < 5).mean()
    tokens = SPLITS[12].inputs[:4].astype(float) + 2
    assert found.sequential.self_iterations["mean"] == pytest.approx(tokens.mean())


def test_token_match_counts_positions_of_both_modes_weighted_by_tokens():
    class Disagreeing(Stub):
        def initial_carry(self, batch):
            return 6  # the sequential mode believes to be six tokens further

    model = Disagreeing(lambda tokens, positions: positions >= 18)
    result = evaluate_state_tracking(model, SPLITS, PARAMETERS)
    assert result.lengths[12].sequential.token_match == 1.0
    assert result.lengths[24].sequential.token_match == 18 / 24
    assert result.lengths[24].sequential.accuracy == 12 / 24
    assert result.lengths[24].sequential.num_sequences == 4
    assert result.metrics()["mode_token_match"] == pytest.approx((12 + 18) / 36)


def test_metrics_are_the_schema_and_json():
    found = evaluate_state_tracking(Stub(_never), SPLITS, PARAMETERS).metrics()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert (found["kind"], found["num_parameters"]) == ("implicit", 5)
    assert found["mode_token_match"] == 1.0
    per_length = ("accuracy", "accuracy_last_10", "self_iterations", "relative_residual")
    for name in (*per_length, "share_converged", "sequential", "seconds"):
        assert list(found[name]) == ["12", "24"]
    assert set(found["self_iterations"]["12"]) == {"mean", "p50", "p95"}
    assert set(found["relative_residual"]["12"]) == {"mean", "p50", "p95", "max"}
    counts = np.bincount(np.concatenate([SPLITS[n].inputs[:6].ravel() for n in (12, 24)]))
    assert found["chance"] == counts.max() / counts.sum()


def test_explicit_models_have_one_mode_and_no_search():
    model = Stub(_never, is_implicit=False)
    found = evaluate_state_tracking(model, SPLITS, PARAMETERS).metrics()
    assert found["kind"] == "explicit"
    assert found["accuracy"] == {"12": 1.0, "24": 1.0}
    assert found["self_iterations"] == found["sequential"] == found["share_converged"] == {}
    assert found["mode_token_match"] is None
    assert all(piece[1] > 1 for piece in model.pieces)


def test_too_little_data_names_what_to_change():
    parameters = dataclasses.replace(PARAMETERS, lengths=(48,))
    with pytest.raises(ValueError, match=r"length 48; the data has \[12, 24\].*test.lengths"):
        evaluate_state_tracking(Stub(_never), SPLITS, parameters)
    parameters = dataclasses.replace(PARAMETERS, lengths=(12,), num_sequences=9)
    with pytest.raises(ValueError, match="num_sequences = 9.*only 8"):
        evaluate_state_tracking(Stub(_never), SPLITS, parameters)


@pytest.mark.parametrize("read", [None, sequential], ids=["simultaneous", "sequential"])
def test_batch_mates_never_change_a_result(read):
    model, inputs = contractive_model(), SPLITS[12].inputs
    mode = {} if read is None else {"read": read}
    phase = search_phase(1e-3, 40, damping=1.0)
    alone = predict(model, inputs, phase=phase, batch_size=1, **mode)
    together = predict(model, inputs, phase=phase, batch_size=8, **mode)
    assert np.array_equal(alone.labels, together.labels)
    assert np.array_equal(alone.search.self_iterations, together.search.self_iterations)
    assert np.array_equal(alone.search.converged, together.search.converged)
    np.testing.assert_allclose(alone.search.residual, together.search.residual, rtol=1e-2)


def test_both_modes_of_a_real_model_agree_at_a_tight_tolerance():
    parameters = dataclasses.replace(
        PARAMETERS,
        lengths=(12,),
        num_sequential_sequences=6,
        batch_size=3,
        tolerance=1e-5,
        max_steps=1000,
    )
    result = evaluate_state_tracking(contractive_model(), SPLITS, parameters)
    assert result.lengths[12].share_converged == 1.0
    assert result.lengths[12].sequential.token_match == 1.0
    assert result.lengths[12].sequential.num_sequences == 6


@pytest.mark.parametrize("read", [None, sequential], ids=["simultaneous", "sequential"])
def test_self_iterations_are_the_evaluations_of_the_cell(read, monkeypatch):
    model, inputs = contractive_model(), SPLITS[12].inputs[:1]
    calls = []
    forward = model.stack.forward

    def count(*arguments):
        calls.append(None)
        return forward(*arguments)

    monkeypatch.setattr(model.stack, "forward", count)
    mode = {} if read is None else {"read": read}
    search = predict(
        model, inputs, phase=search_phase(1e-3, 40, damping=1.0), batch_size=1, **mode
    ).search
    assert search.converged.all()
    assert search.self_iterations.sum() == len(calls)


def test_parameters_are_read_without_torch():
    program = (
        "import sys; import implicit_models.evaluation.parameters; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
