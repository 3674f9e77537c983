import pytest

from implicit_models.evaluation.parameters import EvaluationParameters, SweepParameters
from implicit_models.parameters import ParameterError

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


@pytest.mark.parametrize(
    ("schema", "valid", "key", "value", "allowed"),
    [
        (EvaluationParameters, EVALUATION, "lengths", (), "each only once"),
        (EvaluationParameters, EVALUATION, "lengths", (16, 16), "each only once"),
        (EvaluationParameters, EVALUATION, "num_mode_sequences", 9, "at most num_sequences"),
        (EvaluationParameters, EVALUATION, "window", 0, "at least 1"),
        (EvaluationParameters, EVALUATION, "patience", 0, "at least 1"),
        (EvaluationParameters, EVALUATION, "patience", 65, "at most max_steps, 64"),
        (EvaluationParameters, EVALUATION, "tolerance", 1.0, "below 1.0"),
        (EvaluationParameters, EVALUATION, "damping", 2.0, "above 0.0, below 2.0"),
        (SweepParameters, SWEEP, "self_iterations", (), "each only once"),
        (SweepParameters, SWEEP, "self_iterations", (1, 2, 1), "each only once"),
        (SweepParameters, SWEEP, "tolerances", (), "each only once"),
        (SweepParameters, SWEEP, "tolerances", (0.1, 0.1), "each only once"),
        (SweepParameters, SWEEP, "tolerances", (0.1, 1.0), "below 1.0"),
        (SweepParameters, SWEEP, "window", 0, "at least 1"),
        (SweepParameters, SWEEP, "patience", 0, "at least 1"),
        (SweepParameters, SWEEP, "patience", 65, "at most max_steps, 64"),
        (SweepParameters, SWEEP, "damping", 0.0, "above 0.0, below 2.0"),
    ],
)
def test_refusal_names_key_value_and_what_is_allowed(schema, valid, key, value, allowed):
    schema(**valid)
    with pytest.raises(ParameterError) as caught:
        schema(**valid | {key: value})
    assert str(caught.value).startswith(f"{key} = {value!r} is not allowed; ")
    assert allowed in str(caught.value)


@pytest.mark.parametrize(
    ("schema", "valid"), [(EvaluationParameters, EVALUATION), (SweepParameters, SWEEP)]
)
def test_damping_has_no_default(schema, valid):
    with pytest.raises(TypeError, match="damping"):
        schema(**{key: value for key, value in valid.items() if key != "damping"})
