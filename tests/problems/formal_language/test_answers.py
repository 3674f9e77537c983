"""The evaluation of formal languages: counted rightly, whatever is read together."""

from typing import Any

import numpy as np
import pytest

from implicit_models.equilibrium.phase import search_phase
from implicit_models.equilibrium.window import Window
from implicit_models.evaluation.prediction import predict
from implicit_models.families.building import build
from implicit_models.language_models.modelling import ImplicitForCausalLM
from implicit_models.problems.formal_language.data import interface
from implicit_models.problems.formal_language.data.language import IGNORED
from implicit_models.problems.formal_language.data.splits import FormalLanguageData, open_splits
from implicit_models.problems.formal_language.evaluation.answers import by_split, read_strings
from tests.language_models.models import EXPLICIT, IMPLICIT, LSTM, make_contract
from tests.problems.formal_language.test_strings import language

MODELS = {"implicit": IMPLICIT, "explicit": EXPLICIT, "lstm": LSTM}
PHASE = search_phase(1e-6, 200, 0.8, Window(16, 4))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> FormalLanguageData:
    path = tmp_path_factory.mktemp("data") / "reversed"
    interface.prepare(language("reverse_string"), path, path)
    return open_splits(path)


def read(name: str, data: FormalLanguageData, batch_size: int = 5) -> Any:
    model = build(MODELS[name], len(data.tokens), seed=2).eval()  # which gives both answers
    phase = PHASE if name == "implicit" else None
    if isinstance(model, ImplicitForCausalLM) and phase is not None:
        make_contract(model, "mamba2")
    split = data.splits["test"]
    found = read_strings(model, split, phase=phase, batch_size=batch_size, description="test")
    return model, split, phase, found


@pytest.mark.parametrize("name", MODELS)
def test_every_string_is_read_as_if_alone(name: str, data: FormalLanguageData) -> None:
    model, split, phase, found = read(name, data)
    for row, count in enumerate(split.num_tokens):
        alone = predict(model, split.inputs[row : row + 1, :count], phase=phase, batch_size=1)
        expected = (alone.labels[0] == split.labels[row, :count]) & found.is_asked[row, :count]
        assert np.array_equal(found.is_right[row, :count] & found.is_asked[row, :count], expected)
    _, _, _, together = read(name, data, batch_size=12)
    assert np.array_equal(found.is_right, together.is_right)
    assert (found.search is None) == (name != "implicit")


def test_what_is_told_is_counted_over_answers(data: FormalLanguageData) -> None:
    _, split, _, found = read("explicit", data)
    right = [
        [bool(found.is_right[row, n]) for n in np.flatnonzero(split.labels[row] != IGNORED)]
        for row in range(len(split.labels))
    ]
    answers = sum(right, [])
    told = by_split({"test": found}, 2)
    assert told["accuracy"]["test"] == pytest.approx(sum(answers) / len(answers))
    scaled = 2 * sum(answers) / len(answers) - 1
    assert told["scaled_accuracy"]["test"] == pytest.approx(scaled)
    assert told["share_all_right"]["test"] == pytest.approx(np.mean([all(row) for row in right]))
    assert told["num_answers"]["test"] == split.lengths.sum()
    assert told["num_sequences"]["test"] == 12 and told["longest"]["test"] == split.lengths.max()
    assert told["self_iterations"]["test"] is None
    rows = found.length_rows()
    assert sum(row["num_answers"] for row in rows) == len(answers)
    weighted = sum(row["num_answers"] * row["accuracy"] for row in rows)
    assert weighted == pytest.approx(sum(answers))
    assert all(a["longest"] < b["shortest"] for a, b in zip(rows, rows[1:], strict=False))


def test_a_search_tells_what_it_cost(data: FormalLanguageData) -> None:
    _, split, _, found = read("implicit", data)
    told = by_split({"test": found}, 2)
    assert told["evaluations_per_token"]["test"]["mean"] > 1
    assert 0 < told["share_converged"]["test"] <= 1
    assert len(found.search.self_iterations) == len(split.labels) and found.flops > 0
