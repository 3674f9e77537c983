import pytest
import yaml

from implicit_models.parameters import ParameterError, read_section
from implicit_models.problems.downstream.parameters import BenchmarkParameters
from implicit_models.problems.problem import section_schema
from implicit_models.problems.text.parameters import (
    ReadingParameters,
    TextEvaluationParameters,
    TextSweepParameters,
)
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
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"window": "all"}, "window = 'all' is not allowed; .* one of 'whole'; .* is 'whole'"),
        ({"solver": "picart"}, "solver = 'picart' is not allowed; .*the closest is 'picard'"),
        (
            {"solver": "anderson", "window": 4},
            "window = 4 is not allowed; allowed is null or 'whole' with solver = 'anderson'",
        ),
        (
            {"best_so_far": True, "window": 4},
            "window = 4 is not allowed; allowed is null or 'whole' with best_so_far = True",
        ),
        ({"window": "whole", "patience": 3}, "patience = 3 is not allowed; .* null with window ="),
        ({"solver": "broyden", "patience": 3}, "patience = 3 .* only null with solver = 'broyden'"),
    ],
)
def test_what_a_search_cannot_be(schema, valid, changes, message):
    without = {key: value for key, value in valid.items() if key not in ("window", "patience")}
    with pytest.raises(ParameterError, match=f"^{message}"):
        schema(**without | changes)


@pytest.mark.parametrize(
    ("schema", "valid"), [(WordProblemSweepParameters, SWEEP), (TextSweepParameters, TEXT_SWEEP)]
)
def test_a_sweep_has_tolerances(schema, valid):
    with pytest.raises(ParameterError, match="^tolerance = 0.1 is not allowed; .* tolerances"):
        schema(**valid | {"tolerance": 0.1})


@pytest.mark.parametrize("schema", [ReadingParameters, BenchmarkParameters])
def test_a_search_is_the_same_section_everywhere(schema):
    data = {schema.data_key: "somewhere", "model": "models/a/final"}
    with pytest.raises(
        ParameterError, match="^window = 4 is not allowed; allowed is null or 'whole' with"
    ):
        schema(**data, solver="broyden", window=4)
    assert schema(**data, solver="broyden", damping=0.5).search == {
        "solver": "broyden",
        "damping": 0.5,
    }


def test_a_reading_takes_its_own_search_before_the_sections():
    section = TextEvaluationParameters(**TEXT | {"window": 8, "patience": 4, "damping": 0.7})
    reading = ReadingParameters(model="m", corpus="c", tolerance=0.2, window="whole")
    found = reading.evaluation(section)
    assert found == section.replace(tolerance=0.2, window="whole", patience=None)
    anderson = ReadingParameters(model="m", corpus="c", solver="anderson").evaluation(section)
    assert anderson == section.replace(solver="anderson", window=None, patience=None)
    assert ReadingParameters(model="m", corpus="c").evaluation(section) == section


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
