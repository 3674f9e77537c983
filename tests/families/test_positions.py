"""A Llama without rotary positions: what it cannot tell, and that the engine serves it as well."""

import pytest
import torch

from implicit_models.equilibrium.phase import search_phase
from implicit_models.equilibrium.window import Window
from implicit_models.families.parameters import ModelParameters
from implicit_models.parameters import ParameterError
from tests.language_models.models import (
    EXPLICIT_LLAMA,
    EXPLICIT_SLIDING,
    IMPLICIT_LLAMA,
    IMPLICIT_SLIDING,
    our_model,
    tokens,
)


@pytest.mark.parametrize("sizes", [EXPLICIT_LLAMA, EXPLICIT_SLIDING], ids=["llama", "sliding"])
@pytest.mark.parametrize("rope", [True, False])
def test_without_positions_one_layer_cannot_tell_the_order_of_what_stands_before(
    sizes: ModelParameters, rope: bool
) -> None:
    model = our_model(sizes.replace(num_layers=1, rope=rope))
    assert model.config.rope is rope
    text = tokens(3, 5)
    other = text[:, [2, 0, 3, 1, 4]]
    with torch.no_grad():
        last, permuted = (model(each).logits[:, -1] for each in (text, other))
    assert torch.allclose(last, permuted, rtol=1e-9, atol=1e-9) is not rope


@pytest.mark.parametrize("sizes", [IMPLICIT_LLAMA, IMPLICIT_SLIDING], ids=["llama", "sliding"])
def test_window_and_whole_find_the_same_without_positions(sizes: ModelParameters) -> None:
    model = our_model(sizes.replace(rope=False))
    text = tokens(3, 12)
    with torch.no_grad():
        whole = model(text, phase=search_phase(1e-11, 2000, 0.8)).logits
        for width in (1, 4):
            phase = search_phase(1e-11, 2000, 0.8, Window(width, 2))
            torch.testing.assert_close(model(text, phase=phase).logits, whole, rtol=0, atol=1e-8)


def test_a_base_without_rotary_positions_is_refused() -> None:
    with pytest.raises(ParameterError, match=r"rope_theta = 10000\.0 is not allowed"):
        IMPLICIT_LLAMA.replace(rope=False, rope_theta=1e4)
    assert not IMPLICIT_LLAMA.replace(rope=False).replace(num_layers=1).rope
