import json

import numpy as np
import pytest
import torch

from implicit_models.equilibrium.phase import Phase, search_phase
from implicit_models.equilibrium.solvers import Picard
from implicit_models.equilibrium.stopping import FixedSteps
from implicit_models.equilibrium.window import Window
from implicit_models.evaluation.score_store import ScoreStore
from implicit_models.evaluation.scoring import TextError, score
from implicit_models.parameters import ParameterError
from implicit_models.problems.text.evaluation.sweep import sweep_text
from implicit_models.problems.text.parameters import TextSweepParameters
from tests.evaluation.readable import make, random_tokens

PARAMETERS = TextSweepParameters(
    length=10,
    num_sequences=5,
    batch_size=2,
    self_iterations=(1, 4, 24),
    tolerances=(0.3, 1e-4),
    window=4,
    patience=2,
    max_steps=100,
    damping=1.0,
    bootstrap_samples=20,
)
STREAM = random_tokens(64)
INPUTS, LABELS = STREAM[:50].reshape(5, 10), STREAM[1:51].reshape(5, 10)


@pytest.fixture(scope="module", params=["implicit mamba2", "implicit llama"])
def model(request):
    return make(request.param)


@pytest.fixture(scope="module")
def result(model):
    return sweep_text(model, STREAM, PARAMETERS)


def _perplexity(model, phase):
    return np.exp(score(model, INPUTS, LABELS, phase=phase).nll.mean())


def test_every_point_is_the_perplexity_of_its_search(model, result):
    for point in result.self_iterations:
        phase = Phase(Picard(1.0), FixedSteps(point.allowed - 1), None)
        assert point.scores["perplexity"] == pytest.approx(_perplexity(model, phase), rel=1e-6)
        assert point.self_iterations["mean"] == point.allowed
        assert point.evaluations_per_token["mean"] == point.allowed
    windows = {"window": Window(4, 2), "simultaneous": None, "sequential": Window(1, 2)}
    assert [(point.allowed, point.mode) for point in result.tolerance] == [
        (tolerance, mode) for tolerance in (0.3, 1e-4) for mode in windows
    ]
    for point in result.tolerance:
        phase = search_phase(point.allowed, 100, 1.0, windows[point.mode])
        assert point.scores["perplexity"] == pytest.approx(_perplexity(model, phase), rel=1e-6)


def test_all_ways_of_searching_closely_agree(result):
    most = result.self_iterations[-1].scores["perplexity"]
    for point in result.tolerance[3:]:
        assert point.share_converged == 1.0
        assert point.scores["perplexity"] == pytest.approx(most, rel=1e-2)


def test_modes_are_compared_token_by_token(model, result):
    def most_likely(allowed, window):
        phase = search_phase(allowed, 100, 1.0, window)
        with torch.no_grad():
            return model(torch.from_numpy(INPUTS), use_cache=False, phase=phase).logits.argmax(-1)

    for point in result.tolerance:
        whole = most_likely(point.allowed, None)
        windows = {"window": Window(4, 2), "sequential": Window(1, 2)}
        if point.mode == "simultaneous":
            assert point.token_match is None
        else:
            alike = most_likely(point.allowed, windows[point.mode]) == whole
            assert point.token_match == alike.double().mean().item()
    coarse, fine = ([p.token_match for p in result.tolerance[at : at + 3]] for at in (0, 3))
    assert fine == [1.0, None, 1.0]
    assert min(coarse[0], coarse[2]) < 1.0
    assert all(point.token_match is None for point in result.self_iterations)


def test_metrics_and_rows_are_the_schema(result):
    found = result.metrics()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert (found["length"], found["num_sequences"]) == (10, 5)
    shared = {"perplexity", "standard_error", "relative_residual", "relative_residual_p95"}
    shared |= {"flops", "seconds"}
    assert set(found["self_iterations"][1]) == shared | {"self_iterations"}
    costs = {"share_converged", "self_iterations", "evaluations_per_token"}
    assert set(found["tolerance"][0]) == shared | costs | {"tolerance", "mode", "token_match"}
    rows = result.rows()
    assert len(rows) == 3 + 2 * 3 and len({tuple(row) for row in rows}) == 1
    assert [row["mode"] for row in rows[:5]] == [
        *("simultaneous", "simultaneous", "simultaneous", "window", "simultaneous"),
    ]


def test_points_that_were_kept_are_not_read_again(model, result, tmp_path):
    store = ScoreStore(tmp_path / "kept", "z" * 64)
    few = PARAMETERS.replace(tolerances=(0.3,))
    first = sweep_text(model, STREAM, few, store=store).metrics()
    again = sweep_text(model, STREAM, few, store=store).metrics()
    assert again == first  # seconds too
    for found, expected in zip(first["tolerance"], result.metrics()["tolerance"], strict=False):
        assert {**found, "seconds": 0} == {**expected, "seconds": 0}


def test_what_cannot_be_swept_says_so():
    with pytest.raises(ValueError, match="explicit"):
        sweep_text(make("explicit mamba2"), STREAM, PARAMETERS)
    with pytest.raises(TextError, match="has 10 tokens; a sequence of 10 needs one more"):
        sweep_text(make("implicit mamba2"), STREAM[:10], PARAMETERS)
    asked = PARAMETERS.num_sequences
    words = f"num_sequences = {asked} is not allowed; allowed is at most 3, the sequences of 10"
    with pytest.raises(ParameterError, match=words):
        sweep_text(make("implicit mamba2"), STREAM[:35], PARAMETERS)
    few = PARAMETERS.replace(self_iterations=(1,), tolerances=(0.3,), num_sequences=3)
    assert sweep_text(make("implicit mamba2"), STREAM[:35], few).num_sequences == 3
