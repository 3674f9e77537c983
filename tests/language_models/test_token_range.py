"""Token ids are checked, and a GPU is not waited for."""

from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from implicit_models.families.lstm.configuration import LSTMConfig
from implicit_models.families.lstm.model import LSTMLanguageModel
from tests.language_models.kinds import KINDS, VOCABULARY, model_of

SHAPES = [(2, 0), (0, 3), (0, 0)]


def any_model_of(kind: str) -> PreTrainedModel:
    if kind == "lstm":
        return LSTMLanguageModel(LSTMConfig(vocab_size=VOCABULARY, num_hidden_layers=2))
    return model_of(kind)


@pytest.mark.parametrize("kind", [*KINDS, "lstm"])
@pytest.mark.parametrize("wrong", [-1, VOCABULARY, 10**9])
def test_an_id_out_of_range_is_named(kind: str, wrong: int) -> None:
    tokens = torch.tensor([[0, VOCABULARY - 1], [wrong, 1]])
    message = f"input_ids holds {wrong}; token ids must lie between 0 and {VOCABULARY - 1}"
    with pytest.raises(ValueError, match=message):
        any_model_of(kind)(tokens)


@pytest.mark.parametrize("kind", [*KINDS, "lstm"])
@pytest.mark.parametrize(("batch", "length"), SHAPES)
def test_no_tokens_have_no_logits(kind: str, batch: int, length: int) -> None:
    model = any_model_of(kind)
    logits = model(torch.zeros(batch, length, dtype=torch.long)).logits
    assert logits.shape == (batch, length, VOCABULARY)


@pytest.mark.parametrize("length", [0, 3])
def test_an_lstm_goes_on_behind_no_tokens(length: int) -> None:
    model, nothing = any_model_of("lstm"), torch.zeros(2, 0, dtype=torch.long)
    text = torch.arange(2 * length).view(2, length)
    before = model(text, use_cache=True).cache
    after = model(nothing, cache=before).cache
    for name, states in after.tensors().items():
        assert torch.equal(states, before.tensors()[name])


class OnGPU(torch.Tensor):
    """Says that it is on a GPU, and refuses to be waited for."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda")

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ in ("__bool__", "__int__", "__float__", "__index__", "item", "tolist"):
            raise AssertionError(f"{func.__name__} waits for the GPU")
        return super().__torch_function__(func, types, args, kwargs or {})


def test_a_gpu_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It asserts the same by itself; on a CPU the two reads of extremes were the check."""
    asserted: list[bool] = []

    def assert_async(inside: torch.Tensor, message: str) -> None:
        assert f"between 0 and {VOCABULARY - 1}" in message
        asserted.append(bool(inside.as_subclass(torch.Tensor)))

    monkeypatch.setattr(torch, "_assert_async", assert_async)
    model = model_of("llama-explicit", pad_vocab_size_multiple=8)  # rows behind the last token's
    for last in (VOCABULARY - 1, VOCABULARY):
        tokens = torch.tensor([[0, last]]).as_subclass(OnGPU)
        assert model.model._embed(tokens, None).shape == (1, 2, model.config.hidden_size)
    assert asserted == [True, False]
    with pytest.raises(AssertionError, match="waits"):
        int(tokens.max())
