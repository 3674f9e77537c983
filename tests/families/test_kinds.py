"""What models are compared as: their family says it."""

import pytest

from implicit_models.families.huggingface.parameters import HuggingFaceParameters
from implicit_models.families.lstm.parameters import LSTMParameters
from implicit_models.families.mamba2.parameters import Mamba2Parameters
from implicit_models.families.upcycled.parameters import UpcycledParameters

MAMBA2 = {"family": "mamba2", "num_layers": 1, "d_model": 8, "d_state": 4, "head_dim": 4}
LSTM = {"family": "lstm", "num_layers": 1, "d_model": 8, "hidden_size": 8}


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        (Mamba2Parameters(**MAMBA2), "explicit"),
        (Mamba2Parameters(**MAMBA2, implicit=True), "implicit"),
        (LSTMParameters(**LSTM), "recurrent"),
        (HuggingFaceParameters(family="huggingface", source="gpt2"), "explicit"),
        (UpcycledParameters(family="upcycled", source="gpt2", implicit=True), "implicit"),
    ],
)
def test_a_family_says_what_its_models_are_compared_as(model, kind):
    assert model.kind == kind
    assert "kind" not in model.model_dump()
