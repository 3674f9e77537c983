import pytest
import yaml

from implicit_models.parameters import ParameterError, read_section
from implicit_models.problems.problem import section_schema
from implicit_models.problems.text.parameters import TextEvaluationParameters, TextSweepParameters
from implicit_models.problems.word_problem.parameters import (
    WordProblemEvaluationParameters,
    WordProblemSweepParameters,
)

EVALUATION = {
    "lengths": (16, 32),
    "num_sequences": 8,
    "num_mode_sequences": 8,
    "tolerance": 0.01,
    "max_steps": 64,
    "damping": 0.8,
}
SWEEP = {
    "length": 16,
    "num_sequences": 8,
    "self_iterations": (1, 2),
    "tolerances": (0.1, 0.01),
    "damping": 0.8,
}

TEXT = {
    "context_length": 16,
    "stride": 8,
    "lengths": (16, 32),
    "tolerance": 0.01,
    "max_steps": 64,
    "damping": 0.8,
}
TEXT_SWEEP = {
    "length": 16,
    "num_sequences": 8,
    "self_iterations": (1, 2),
    "tolerances": (0.1, 0.01),
    "damping": 0.8,
}


@pytest.mark.parametrize(
    ("schema", "valid", "key", "value", "allowed"),
    [
        (WordProblemEvaluationParameters, EVALUATION, "lengths", (), "each only once"),
        (WordProblemEvaluationParameters, EVALUATION, "lengths", (16, 16), "each only once"),
        (
            WordProblemEvaluationParameters,
            EVALUATION,
            "num_mode_sequences",
            9,
            "at most num_sequences",
        ),
        (WordProblemEvaluationParameters, EVALUATION, "window", 0, "at least 1"),
        (WordProblemEvaluationParameters, EVALUATION, "patience", 0, "at least 1"),
        (WordProblemEvaluationParameters, EVALUATION, "patience", 65, "at most max_steps, 64"),
        (WordProblemEvaluationParameters, EVALUATION, "tolerance", 1.0, "below 1.0"),
        (WordProblemEvaluationParameters, EVALUATION, "damping", 2.0, "above 0.0, below 2.0"),
        (WordProblemSweepParameters, SWEEP, "self_iterations", (), "each only once"),
        (WordProblemSweepParameters, SWEEP, "self_iterations", (1, 2, 1), "each only once"),
        (WordProblemSweepParameters, SWEEP, "tolerances", (), "each only once"),
        (WordProblemSweepParameters, SWEEP, "tolerances", (0.1, 0.1), "each only once"),
        (WordProblemSweepParameters, SWEEP, "tolerances", (0.1, 1.0), "below 1.0"),
        (WordProblemSweepParameters, SWEEP, "window", 0, "at least 1"),
        (WordProblemSweepParameters, SWEEP, "patience", 0, "at least 1"),
        (WordProblemSweepParameters, SWEEP, "patience", 65, "at most max_steps, 64"),
        (WordProblemSweepParameters, SWEEP, "damping", 0.0, "above 0.0, below 2.0"),
        (TextEvaluationParameters, TEXT, "stride", 17, "at most context_length, 16"),
        (TextEvaluationParameters, TEXT, "stride", 0, "at least 1"),
        (TextEvaluationParameters, TEXT, "lengths", (16, 16), "each length only once"),
        (TextEvaluationParameters, TEXT, "lengths", (16, 0), "at least 1"),
        (TextEvaluationParameters, TEXT, "piece_length", 0, "at least 1"),
        (TextEvaluationParameters, TEXT, "max_tokens", 0, "at least 1"),
        (TextEvaluationParameters, TEXT, "patience", 65, "at most max_steps, 64"),
        (TextEvaluationParameters, TEXT, "bootstrap_samples", 1, "at least 2"),
        (TextSweepParameters, TEXT_SWEEP, "self_iterations", (), "each only once"),
        (TextSweepParameters, TEXT_SWEEP, "tolerances", (0.1, 1.0), "below 1.0"),
        (TextSweepParameters, TEXT_SWEEP, "patience", 65, "at most max_steps, 64"),
    ],
)
def test_refusal_names_key_value_and_what_is_allowed(schema, valid, key, value, allowed):
    schema(**valid)
    with pytest.raises(ParameterError) as caught:
        schema(**valid | {key: value})
    assert str(caught.value).startswith(f"{key} = {value!r} is not allowed; ")
    assert allowed in str(caught.value)


@pytest.mark.parametrize(
    ("schema", "valid"),
    [(WordProblemEvaluationParameters, EVALUATION), (WordProblemSweepParameters, SWEEP)],
)
def test_damping_has_no_default(schema, valid):
    with pytest.raises(ParameterError, match="^damping is missing; allowed is float, above 0"):
        schema(**{key: value for key, value in valid.items() if key != "damping"})


def test_each_kind_of_data_has_a_section_of_its_own_and_needs_none(tmp_path):
    file = tmp_path / "params.yaml"
    word_problem = {**EVALUATION, "lengths": [16, 32]}
    text = {**TEXT, "lengths": [], "max_tokens": None}
    file.write_text(yaml.safe_dump({"evaluation": {"word_problem": word_problem, "text": text}}))
    found = read_section("evaluation", section_schema("evaluation"), file)
    assert found.word_problem == WordProblemEvaluationParameters(**EVALUATION)
    assert found.text == TextEvaluationParameters(**TEXT | {"lengths": ()})
    file.write_text(yaml.safe_dump({"evaluation": {"text": text}, "sweep": {}}))
    assert read_section("evaluation", section_schema("evaluation"), file).word_problem is None
    sweep = read_section("sweep", section_schema("sweep"), file)
    assert (sweep.word_problem, sweep.text) == (None, None)
    file.write_text(yaml.safe_dump({"evaluation": {"text": text | {"strides": 4}}}))
    with pytest.raises(ParameterError, match=r"evaluation\.text\.strides = 4 .*text\.stride"):
        read_section("evaluation", section_schema("evaluation"), file)
