"""Further tests: the same models on sequences with other shares of easy tokens."""

import json
import re

import numpy as np
import pytest

from implicit_models.language_models.serialisation import load_model, save_model
from implicit_models.parameters import ParameterError
from implicit_models.problems.word_problem.data.splits import name_of_test, open_splits
from implicit_models.problems.word_problem.data.writing import write_splits
from implicit_models.problems.word_problem.evaluation.interface import evaluate
from implicit_models.problems.word_problem.evaluation.state_tracking import (
    evaluate_state_tracking,
)
from implicit_models.problems.word_problem.parameters import (
    SplitParameters,
    TestParameters,
    WordProblemEvaluationParameters,
    WordProblemParameters,
)
from tests.language_models.models import IMPLICIT, LSTM, VOCABULARY, small_model

DATA = WordProblemParameters(
    kind="word_problem",
    group=f"Z{VOCABULARY}",
    identity_probability=0.5,
    seed=1,
    train=SplitParameters(num_sequences=8, length=6),
    validation=SplitParameters(num_sequences=4, length=6),
    test=TestParameters(
        num_sequences=8, lengths=(6, 9), further_identity_probabilities=(0.9, 0.25)
    ),
)
ASKED = WordProblemEvaluationParameters(
    lengths=(6, 9), num_sequences=8, num_mode_sequences=2, num_past_sequences=0
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "z"
    write_splits(DATA, folder)
    return folder


@pytest.mark.parametrize("of", [IMPLICIT, LSTM], ids=["implicit", "lstm"])
def test_each_is_an_evaluation_of_its_own_sequences(data, tmp_path, of):
    save_model(small_model(of), tmp_path / "model")
    found = evaluate(tmp_path / "model", data, ASKED).metrics
    json.dumps(found, allow_nan=False)
    assert list(found["further_tests"]) == ["0.25", "0.9"]
    opened = open_splits(data)
    loaded = load_model(tmp_path / "model")
    for probability in (0.9, 0.25):
        splits = {n: opened.split(name_of_test(n, probability)) for n in ASKED.lengths}
        expected = evaluate_state_tracking(loaded, splits, ASKED).metrics()
        of_test = found["further_tests"][str(probability)]
        assert "modes" not in of_test  # compared on the first test alone
        for name in set(of_test) - {"seconds"}:
            assert of_test[name] == expected[name]
    # The first test is what it is without them, and what the model costs is counted in it.
    alone = DATA.replace(test=DATA.test.replace(further_identity_probabilities=None))
    write_splits(alone, tmp_path / "alone")
    without = evaluate(tmp_path / "model", tmp_path / "alone", ASKED).metrics
    assert without["further_tests"] == {}
    for name in ("accuracy", "self_iterations", "mode_token_match", "spectral_radius"):
        assert found[name] == without[name]
    assert found["cost"]["flops"] == without["cost"]["flops"]


def test_accuracy_is_told_apart(data, tmp_path):
    """A model that names the same element always is right where the identity has led nowhere."""
    save_model(small_model(LSTM), tmp_path / "model")
    found = evaluate(tmp_path / "model", data, ASKED).metrics
    opened = open_splits(data)
    for probability in (0.9, 0.25):
        chance = found["further_tests"][str(probability)]["chance"]
        for length in ASKED.lengths:
            labels = opened.split(name_of_test(length, probability)).labels
            for name, scored in (("accuracy", labels), ("accuracy_last_10", labels[:, -10:])):
                most = np.bincount(scored.ravel()).max()
                assert chance[name][str(length)] == pytest.approx(most / scored.size)


@pytest.mark.parametrize(
    ("test", "words"),
    [
        (
            {"further_identity_probabilities": (0.9, 0.5)},
            "test.further_identity_probabilities = [0.9, 0.5] is not allowed; 0.5 is the first",
        ),
        (
            {"identity_probability": 0.9, "further_identity_probabilities": (0.9,)},
            "test.further_identity_probabilities = [0.9] is not allowed; 0.9 is the first test's",
        ),
    ],
)
def test_a_test_is_not_made_twice(test, words):
    with pytest.raises(ParameterError, match=re.escape(words)):
        DATA.replace(test=TestParameters(num_sequences=8, lengths=(6,), **test))


@pytest.mark.parametrize("found", [(), (0.9, 0.9), (1.5,)])
def test_probabilities_are_some_and_distinct_and_between_0_and_1(found):
    with pytest.raises(ParameterError, match="further_identity_probabilities"):
        TestParameters(num_sequences=8, lengths=(6,), further_identity_probabilities=found)


def test_a_monoid_alone_has_no_easy_tokens():
    test = TestParameters(num_sequences=8, lengths=(6,), further_identity_probabilities=(0.9,))
    words = "test.further_identity_probabilities = [0.9] is not allowed; M has no factor"
    with pytest.raises(ParameterError, match=re.escape(words)):
        DATA.replace(group="M", identity_probability=0.0, test=test)
