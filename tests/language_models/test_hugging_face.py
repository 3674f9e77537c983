"""What users of transformers rely on, for all four kinds of model alike."""

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import infer_auto_device_map
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModel, AutoModelForCausalLM, Trainer, TrainingArguments

from implicit_models.checksums import DamagedFileError, filled
from implicit_models.equilibrium.phase import bounded_phase
from implicit_models.families.lstm.configuration import LSTMConfig
from implicit_models.families.lstm.model import LSTMLanguageModel
from implicit_models.language_models.cache import CarryCache
from implicit_models.language_models.modelling import ImplicitForCausalLM
from implicit_models.language_models.padding import Alignment
from implicit_models.language_models.pretrained import ModelFileError
from implicit_models.language_models.serialisation import load_model, save_model
from tests.language_models.kinds import (
    EXPLICIT,
    IMPLICIT,
    KINDS,
    TIGHT,
    VOCABULARY,
    mask_of,
    model_of,
    tokens,
)

every_kind = pytest.mark.parametrize("kind", KINDS)
LENGTH = 9
SPANS = {
    "left": [(5, LENGTH), (0, LENGTH), (8, LENGTH)],
    "right": [(0, 3), (0, LENGTH), (0, 1)],
    "both": [(2, 6), (0, LENGTH), (3, 4)],
}


def assert_close(found: Any, expected: Any) -> None:
    """Up to rounding, or where searches go different ways to that of `TIGHT`."""
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def cross_entropy(logits: Tensor, pairs: list[tuple[int, int, int]]) -> float:
    """The mean over (row, token whose logits they are, label), by hand."""
    total = 0.0
    for row, token, label in pairs:
        scores = logits[row, token].tolist()
        largest = max(scores)
        total += largest + math.log(sum(math.exp(each - largest) for each in scores))
        total -= scores[label]
    return total / len(pairs)


# Causality, padding, cache


@every_kind
@torch.no_grad()
def test_a_token_changes_nothing_before_it(kind: str) -> None:
    model, text = model_of(kind), tokens(2, LENGTH)
    before = model(text).logits
    for position in (0, 4, 8):
        changed = text.clone()
        changed[:, position] = changed[:, position] % (VOCABULARY - 1) + 1
        after = model(changed).logits
        assert_close(after[:, :position], before[:, :position])
        assert ((after - before)[:, position:].abs().amax(-1) > 1e-6).all()


@pytest.mark.parametrize("side", SPANS)
@every_kind
@torch.no_grad()
def test_padding_changes_nothing(kind: str, side: str) -> None:
    model, text, mask = model_of(kind), tokens(3, LENGTH), mask_of(SPANS[side], LENGTH)
    padded = model(text, attention_mask=mask, output_hidden_states=True)
    for row, (first, last) in enumerate(SPANS[side]):
        alone = model(text[row : row + 1, first:last], output_hidden_states=True)
        assert_close(padded.logits[row, first:last], alone.logits[0])
        for found, expected in zip(padded.hidden_states, alone.hidden_states, strict=True):
            assert_close(found[row, first:last], expected[0])
        if model.is_implicit:
            assert torch.equal(padded.self_iterations[row, first:last], alone.self_iterations[0])
    if model.is_implicit:
        assert torch.equal(padded.self_iterations > 0, mask.bool())
    other = torch.where(mask.bool(), text, VOCABULARY - text)
    there = mask.bool()
    assert_close(model(other, attention_mask=mask).logits[there], padded.logits[there])
    assert_close(model(text, attention_mask=there).logits[there], padded.logits[there])


@every_kind
@torch.no_grad()
def test_pieces_through_a_cache_give_what_the_whole_gives(kind: str) -> None:
    model, text = model_of(kind, tolerance=TIGHT), tokens(2, LENGTH)
    whole = model(text).logits
    cache, start = model.initial_cache(2), 0
    for end in (4, 5, 5, 8, LENGTH):
        output = model(text[:, start:end], cache=cache)
        assert output.cache is cache and cache.get_seq_length() == end
        assert_close(output.logits, whole[:, start:end])
        start = end


@pytest.mark.parametrize("whole_mask", [True, False])
@every_kind
@torch.no_grad()
def test_padded_pieces_through_a_cache(kind: str, whole_mask: bool) -> None:
    model, text = model_of(kind, tolerance=TIGHT), tokens(3, LENGTH)
    mask = mask_of([(3, LENGTH), (0, 7), (5, 8)], LENGTH)
    whole = model(text, attention_mask=mask).logits
    cache, start = CarryCache(), 0
    for end in (4, 6, 7, LENGTH):
        so_far = mask[:, :end] if whole_mask else mask[:, start:end]
        output = model(text[:, start:end], attention_mask=so_far, cache=cache)
        there = mask[:, start:end].bool()
        assert_close(output.logits[there], whole[:, start:end][there])
        start = end


@every_kind
@torch.no_grad()
def test_the_caches_name_of_before_is_taken_with_a_warning(kind: str) -> None:
    model, text = model_of(kind), tokens(2, 4)
    expected = model(text, cache=model.initial_cache(2)).logits
    for each in (model, model.model):
        with pytest.warns(FutureWarning, match="`past_key_values` is deprecated.*`cache`"):
            found = each(text, past_key_values=(cache := model.initial_cache(2)))
        assert found.cache is cache
    assert torch.equal(model.lm_head(found.last_hidden_state), expected)


@every_kind
def test_a_cache_is_made_where_it_is_wanted(kind: str) -> None:
    model, text = model_of(kind), tokens(1, 3)
    assert model(text, phase=a_phase(model)).cache is None
    assert model(text, phase=a_phase(model), use_cache=True).cache is not None
    with torch.no_grad():
        assert model(text).cache is not None
        without = model(text, use_cache=False)
        assert without.cache is None
        assert_close(without.logits, model(text).logits)
        model.config.use_cache = False
        assert model(text).cache is None


@every_kind
@torch.no_grad()
def test_a_cache_is_read_without_being_advanced(kind: str) -> None:
    model, text, more = model_of(kind), tokens(2, 4), tokens(2, 3, seed=1)
    cache = model(text).cache
    expected = model(more, cache=cache.copy())
    before = cache.carry
    for _ in range(2):
        found = model(more, cache=cache, use_cache=False)
        assert found.cache is None and torch.equal(found.logits, expected.logits)
    assert cache.carry is before and cache.get_seq_length() == 4


def a_phase(model: ImplicitForCausalLM) -> Any:
    return bounded_phase(3) if model.is_implicit else None


# Files


@every_kind
@torch.no_grad()
def test_what_was_saved_is_loaded(kind: str, tmp_path: Path) -> None:
    model, text = model_of(kind, dtype=torch.float32), tokens(2, LENGTH)
    model.train().save_pretrained(tmp_path / "whole")
    model.save_pretrained(tmp_path / "parts", max_shard_size="4KB")
    assert len(list((tmp_path / "parts").glob("*.safetensors"))) > 2
    expected = model.eval()(text).logits
    for folder in ("whole", "parts"):
        for placed in ({}, {"device_map": {"": "cpu"}}):
            loaded = AutoModelForCausalLM.from_pretrained(tmp_path / folder, **placed)
            assert type(loaded) is type(model) and not loaded.training
            assert loaded.dtype == torch.float32
            assert torch.equal(loaded(text).logits, expected)
            assert loaded.config.to_diff_dict() == model.config.to_diff_dict()
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    trunk = AutoModel.from_pretrained(tmp_path / "whole")
    assert torch.equal(trunk(text).last_hidden_state, model.model(text).last_hidden_state)
    with pytest.raises(ValueError, match="model_type is 'implicit_"):
        other = next(each for each in KINDS if each.split("-")[0] != kind.split("-")[0])
        type(model_of(other)).from_pretrained(tmp_path / "whole")


@every_kind
def test_devices_share_no_search(kind: str) -> None:
    with torch.device("meta"):
        model = model_of(kind, tie_word_embeddings=False)
    size = sum(parameter.numel() * 8 for parameter in model.parameters())
    for first in (0.5, 0.8, 0.95):
        placed = infer_auto_device_map(
            model,
            max_memory={"cpu": int(first * size), "disk": 2 * size},
            no_split_module_classes=list(model._no_split_modules),
        )
        assert set(placed) <= {"", "model", "lm_head"}


@every_kind
@torch.no_grad()
def test_bfloat16(kind: str, tmp_path: Path) -> None:
    model_of(kind, dtype=torch.float32).save_pretrained(tmp_path)
    settings = {"tolerance": 0.05, "max_self_iterations": 20} if kind in IMPLICIT else {}
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    text, mask = tokens(2, LENGTH), mask_of([(0, LENGTH), (4, LENGTH)], LENGTH)
    output = model(text, attention_mask=mask, **settings)
    assert output.logits.dtype == torch.bfloat16 and output.logits[mask.bool()].isfinite().all()
    precise = model_of(kind, dtype=torch.float32)(text, attention_mask=mask, **settings).logits
    error = (output.logits - precise)[mask.bool()].norm() / precise[mask.bool()].norm()
    assert error < 0.1  # 3 digits, of which a search to 5 % and a few roundings take some
    found = model.generate(
        text, attention_mask=mask, max_new_tokens=3, do_sample=False, pad_token_id=0, **settings
    )
    assert found.shape == (2, LENGTH + 3) and int(found.max()) < VOCABULARY
    with torch.enable_grad():
        model(text, labels=text, phase=a_phase(model)).loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("differentiable", [True, False])
@every_kind
def test_autocast(kind: str, differentiable: bool) -> None:
    """As the Trainer uses it with bf16=True: in training, in evaluation, and with a cache."""
    model, text = model_of(kind, dtype=torch.float32, tolerance=0.02), tokens(2, LENGTH)
    model.config.training_tolerance = 0.02
    mask = mask_of([(0, LENGTH), (4, LENGTH)], LENGTH)
    with torch.set_grad_enabled(differentiable):
        expected = model(text, attention_mask=mask, labels=text)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = model(text, attention_mask=mask, labels=text)
            start = model(text[:, :6], attention_mask=mask[:, :6], use_cache=True)
            more = model(text[:, 6:], attention_mask=mask, cache=start.cache)
    there = mask.bool()
    for logits, of in ((found.logits[there], expected.logits[there]),) + (
        (more.logits, expected.logits[:, 6:]),
    ):
        assert (logits - of).norm() / of.norm() < 0.1
    if differentiable:
        found.loss.backward()
        assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("solver", ["anderson", "broyden"])
@pytest.mark.parametrize("kind", IMPLICIT)
@torch.no_grad()
def test_autocast_of_a_search_of_whole_texts(kind: str, solver: str) -> None:
    model = model_of(kind, dtype=torch.float32, tolerance=0.02, solver=solver)
    expected = model(tokens(2, LENGTH)).logits
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = model(tokens(2, LENGTH)).logits
    assert (found - expected).norm() / expected.norm() < 0.1


def train(model: ImplicitForCausalLM, optimiser: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        text = tokens(2, 6, seed=step)
        model(text, labels=text).loss.backward()
        optimiser.step()
        optimiser.zero_grad()


@every_kind
def test_training_goes_on_where_it_was_saved(kind: str, tmp_path: Path) -> None:
    straight = model_of(kind, dtype=torch.float32)
    optimiser = torch.optim.AdamW(straight.parameters(), lr=1e-2)
    train(straight, optimiser, range(2))
    straight.save_pretrained(tmp_path)
    torch.save(optimiser.state_dict(), tmp_path / "optimiser.pt")
    train(straight, optimiser, range(2, 5))
    resumed = AutoModelForCausalLM.from_pretrained(tmp_path)
    optimiser = torch.optim.AdamW(resumed.parameters(), lr=1e-2)
    optimiser.load_state_dict(torch.load(tmp_path / "optimiser.pt", weights_only=True))
    train(resumed, optimiser, range(2, 5))
    for (name, found), expected in zip(
        resumed.named_parameters(), straight.parameters(), strict=True
    ):
        assert torch.equal(found, expected), name


@every_kind
def test_broken_weights_are_named(kind: str, tmp_path: Path) -> None:
    model = model_of(kind, dtype=torch.float32, tie_word_embeddings=False)
    model.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    whole = file.read_bytes()
    for broken in (whole[:1000], whole[: len(whole) // 2], b"", b"\xff" * 100):
        file.write_bytes(broken)
        with pytest.raises(ModelFileError, match="the weights in .* cannot be read"):
            AutoModelForCausalLM.from_pretrained(tmp_path)
    file.write_bytes(whole)
    weights = load_file(file)
    weights["surplus"] = weights.pop("model.stack.norm")
    weights["lm_head.weight"] = weights["lm_head.weight"][:-1].clone()
    save_file(weights, file, metadata={"format": "pt"})
    match = "missing: model.stack.norm; unexpected: surplus; mismatched: lm_head.weight .*30.* .*31"
    with pytest.raises(ModelFileError, match=match):
        AutoModelForCausalLM.from_pretrained(tmp_path)


# Embeddings


@every_kind
def test_the_head_is_the_embedding_unless_it_is_untied(kind: str, tmp_path: Path) -> None:
    tied = model_of(kind, dtype=torch.float32)
    assert tied.lm_head.weight is tied.model.embed_tokens.weight
    assert "lm_head.weight" not in dict(tied.named_parameters())
    tied.save_pretrained(tmp_path / "tied")
    assert "lm_head.weight" not in load_file(tmp_path / "tied" / "model.safetensors")
    untied = model_of(kind, dtype=torch.float32, tie_word_embeddings=False)
    assert not torch.equal(untied.lm_head.weight, untied.model.embed_tokens.weight)
    untied.save_pretrained(tmp_path / "untied")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "untied")
    assert loaded.lm_head.weight is not loaded.model.embed_tokens.weight
    trunk = AutoModel.from_pretrained(tmp_path / "untied")  # which has no head
    with torch.no_grad():
        found = loaded(tokens(2, 5))
        assert torch.equal(found.logits, untied(tokens(2, 5)).logits)
        last = trunk(tokens(2, 5)).last_hidden_state
        assert torch.equal(loaded.lm_head(last), found.logits)


@pytest.mark.parametrize("tied", [True, False])
@every_kind
@torch.no_grad()
def test_resizing_keeps_the_old_tokens(kind: str, tied: bool, tmp_path: Path) -> None:
    model, text = model_of(kind, tie_word_embeddings=tied), tokens(2, 5, vocabulary=20)
    before = model(text).logits
    for size, multiple, rows in ((40, None, 40), (33, 8, 40), (41, 8, 48), (20, None, 20)):
        model.resize_token_embeddings(size, pad_to_multiple_of=multiple, mean_resizing=False)
        assert model.config.vocab_size == rows
        assert model.get_input_embeddings().weight.shape == (rows, 16)
        assert model.lm_head.weight.shape == (rows, 16)
        assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied
        logits = model(text).logits
        kept = min(rows, VOCABULARY)
        assert logits.shape == (2, 5, rows)
        assert_close(logits[..., :kept], before[..., :kept])
        new = torch.full((1, 3), rows - 1)
        assert model(new, labels=new).loss.isfinite()
        with pytest.raises(ValueError, match=f"must lie between 0 and {rows - 1}"):
            model(new + 1)
        model.save_pretrained(tmp_path / str(size))
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path / str(size))
        assert torch.equal(loaded(text).logits, logits)
        assert (loaded.lm_head.weight is loaded.model.embed_tokens.weight) == tied


@pytest.mark.parametrize("tied", [True, False])
@every_kind
@torch.no_grad()
def test_rows_that_fill_the_vocabulary_up_are_no_tokens(
    kind: str, tied: bool, tmp_path: Path
) -> None:
    plain = model_of(kind, tie_word_embeddings=tied)
    padded = model_of(kind, tie_word_embeddings=tied, pad_vocab_size_multiple=16)
    assert padded.get_input_embeddings().weight.shape == (32, 16)
    for name, parameter in padded.named_parameters():
        parameter[: len(plain.get_parameter(name))] = plain.get_parameter(name)
        parameter[len(plain.get_parameter(name)) :] = 7.0
    text = tokens(2, LENGTH)
    found, expected = padded(text, labels=text), plain(text, labels=text)
    assert_close(found.logits, expected.logits)
    assert_close(found.loss, expected.loss)
    with pytest.raises(ValueError, match="input_ids holds 31; token ids must lie between 0 and 30"):
        padded(torch.full((1, 2), 31))
    padded.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.config.vocab_size == VOCABULARY
    assert torch.equal(loaded(text).logits, found.logits)
    for size in (31, 32, 33):
        resized = copy.deepcopy(padded)
        resized.resize_token_embeddings(size, mean_resizing=False)
        assert resized.config.vocab_size == resized.config.num_embeddings == size
        logits = resized(text).logits
        assert logits.shape[-1] == size
        assert_close(logits[..., :VOCABULARY], expected.logits)


# Training


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.* is deprecated:FutureWarning")
@every_kind
def test_checkpointing_changes_no_gradient(kind: str) -> None:
    text, mask = tokens(2, LENGTH), mask_of([(0, LENGTH), (4, LENGTH)], LENGTH)
    gradients = []
    for checkpointing in (False, True):
        model = model_of(kind, training_max_self_iterations=6).train()
        if checkpointing:
            model.gradient_checkpointing_enable()
            assert model.is_gradient_checkpointing
        saved: list[int] = []

        def keep(tensor: Tensor, saved: list[int] = saved) -> Tensor:
            saved.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = model(text, attention_mask=mask, labels=text).loss
        loss.backward()
        gradients.append([sum(saved), *(parameter.grad for parameter in model.parameters())])
    assert gradients[1][0] < gradients[0][0] / 2
    torch.testing.assert_close(gradients[0][1:], gradients[1][1:], rtol=1e-12, atol=1e-14)
    model.gradient_checkpointing_disable()
    assert not model.is_gradient_checkpointing


@pytest.mark.parametrize("alignment", ["next_token", "aligned"])
@every_kind
@torch.no_grad()
def test_labels(kind: str, alignment: str) -> None:
    model, text = model_of(kind, label_alignment=alignment), tokens(2, 4)
    labels = text.clone()
    labels[0, 0] = labels[1, 2] = -100
    shift = 1 if alignment == "next_token" else 0
    pairs = [
        (row, at - shift, int(labels[row, at]))
        for row in range(2)
        for at in range(shift, 4)
        if labels[row, at] != -100
    ]
    assert len(pairs) == 6 - shift
    output = model(text, labels=labels)
    assert output.loss.item() == pytest.approx(cross_entropy(output.logits, pairs), rel=1e-12)
    for count in (10, torch.tensor(10)):
        divided = model(text, labels=labels, num_items_in_batch=count).loss
        assert divided.item() == pytest.approx(output.loss.item() * len(pairs) / 10, rel=1e-12)


@pytest.mark.parametrize("alignment", ["next_token", "aligned"])
@pytest.mark.parametrize("kind", [*KINDS, "lstm"])
def test_the_trainer_steps_along_the_gradient_of_the_mean_loss(
    kind: str, alignment: str, tmp_path: Path
) -> None:
    """Of two batches of unequal numbers of labels, accumulated."""
    changes = {"label_alignment": alignment}
    if kind == "lstm":
        config = LSTMConfig(vocab_size=VOCABULARY, embedding_size=8, hidden_size=8, **changes)
        model = LSTMLanguageModel(config).double()
        reference = copy.deepcopy(model)
    else:
        changes |= {"training_max_self_iterations": 4}
        model, reference = (model_of(kind, **changes) for _ in range(2))
    text = tokens(4, 6)
    labels = text.clone()
    labels[0, 2:], labels[3, :1] = -100, -100
    rows = [{"input_ids": text[row], "labels": labels[row]} for row in range(4)]
    settings = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
    settings |= {"max_steps": 1, "optim": "sgd", "learning_rate": 0.1, "max_grad_norm": 0.0}
    trainer_of(model, rows, tmp_path, **settings).train()
    reference.train()(text, labels=labels).loss.backward()
    for (name, found), start in zip(model.named_parameters(), reference.parameters(), strict=True):
        expected = start.detach() - 0.1 * start.grad
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9, msg=name)


def trainer_of(model: Any, rows: list[dict[str, Tensor]], folder: Path, **settings: Any) -> Trainer:
    common = {"report_to": "none", "use_cpu": True, "disable_tqdm": True, "save_strategy": "no"}
    common |= {"logging_strategy": "no", "lr_scheduler_type": "constant", "seed": 0}
    common |= {"dataloader_pin_memory": False}
    arguments = TrainingArguments(str(folder), **(common | settings))
    return Trainer(model, arguments, train_dataset=rows, eval_dataset=rows)  # type: ignore[arg-type]


@every_kind
def test_the_stock_trainer_trains_evaluates_and_saves(kind: str, tmp_path: Path) -> None:
    model = model_of(
        kind,
        dtype=torch.float32,
        max_self_iterations=50,
        training_max_self_iterations=6,
        phantom_steps=2,
    )
    text = tokens(4, 6)
    rows = [{"input_ids": row, "labels": row} for row in text]
    settings = {"per_device_train_batch_size": 4, "per_device_eval_batch_size": 2}
    settings |= {"max_steps": 15, "learning_rate": 5e-2}
    trainer = trainer_of(model, rows, tmp_path, **settings)
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    after = trainer.evaluate()["eval_loss"]
    assert after < 0.5 * before
    with torch.no_grad():
        logits = model.eval()(text).logits
    pairs = [(row, at, int(text[row, at + 1])) for row in range(4) for at in range(5)]
    assert after == pytest.approx(cross_entropy(logits, pairs), rel=1e-3)
    predictions = trainer.predict(rows).predictions  # type: ignore[arg-type]
    torch.testing.assert_close(torch.from_numpy(predictions), logits, rtol=1e-2, atol=1e-2)
    trainer.save_model(str(tmp_path / "saved"))
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    with torch.no_grad():
        assert torch.equal(loaded(text).logits, logits)


@pytest.mark.parametrize("alignment", ["next_token", "aligned"])
@every_kind
def test_smoothed_labels_are_those_of_the_models_own_loss(
    kind: str, alignment: str, tmp_path: Path
) -> None:
    model, text = model_of(kind, dtype=torch.float32, label_alignment=alignment), tokens(3, 5)
    trainer = trainer_of(model, [], tmp_path, label_smoothing_factor=0.1)
    model.eval()
    with torch.no_grad():
        found = trainer.compute_loss(model, {"input_ids": text, "labels": text})
        logits = model(text).logits
    shifted = alignment == "next_token"
    expected = torch.nn.functional.cross_entropy(
        (logits[:, :-1] if shifted else logits).flatten(0, 1),
        (text[:, 1:] if shifted else text).flatten(),
        label_smoothing=0.1,
    )
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_a_model_saved_over_another_is_whole(tmp_path: Path) -> None:
    model = model_of(IMPLICIT[0])
    with filled(tmp_path / "model") as partial:
        save_model(model, partial)
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(2)
    model.save_pretrained(tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    assert torch.equal(
        loaded.get_input_embeddings().weight, model.get_input_embeddings().weight.detach()
    )


def test_a_save_that_is_cut_off_leaves_no_model(tmp_path: Path, monkeypatch: Any) -> None:
    model = model_of(IMPLICIT[0])
    with filled(tmp_path / "model") as partial:
        save_model(model, partial)
    card = (tmp_path / "model" / "README.md").read_bytes()

    def cut_off(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("transformers.modeling_utils.safe_save_file", cut_off)
    model.config.label_alignment = "aligned"
    with pytest.raises(KeyboardInterrupt):
        model.save_pretrained(tmp_path / "model")
    with pytest.raises(DamagedFileError, match="README.md"):  # the card, which is written first
        load_model(tmp_path / "model")
    (tmp_path / "model" / "README.md").write_bytes(card)
    with pytest.raises(DamagedFileError, match="config.json"):
        load_model(tmp_path / "model")


# Arguments and outputs


@every_kind
@torch.no_grad()
def test_embeddings_in_place_of_ids(kind: str) -> None:
    model, text = model_of(kind), tokens(2, 5)
    embeds = model.get_input_embeddings()(text)
    assert torch.equal(model(inputs_embeds=embeds).logits, model(text).logits)
    for wrong in ({}, {"input_ids": text, "inputs_embeds": embeds}):
        with pytest.raises(ValueError, match="give either input_ids or inputs_embeds"):
            model(**wrong)


@every_kind
@torch.no_grad()
def test_logits_of_some_tokens(kind: str) -> None:
    model, text = model_of(kind), tokens(2, 5)
    logits = model(text).logits
    assert_close(model(text, logits_to_keep=2).logits, logits[:, -2:])
    assert model(text, logits_to_keep=0).logits.shape == logits.shape
    assert_close(model(text, logits_to_keep=torch.tensor([0, 3])).logits, logits[:, [0, 3]])


@pytest.mark.parametrize("differentiable", [False, True])
@every_kind
def test_hidden_states(kind: str, differentiable: bool) -> None:
    model, text = model_of(kind, tolerance=1e-6, training_max_self_iterations=3), tokens(2, 5)
    with torch.set_grad_enabled(differentiable):
        output = model(text, output_hidden_states=True)
        assert len(output.hidden_states) == model.config.num_hidden_layers + 1
        last = output.hidden_states[-1]
        assert torch.equal(output.logits, model.lm_head(last))
        trunk = model.model(text, output_hidden_states=True)
        assert torch.equal(trunk.hidden_states[-1], trunk.last_hidden_state)
        if not model.is_implicit:
            assert torch.equal(output.hidden_states[0], model.model.embed_tokens(text))
        elif not differentiable:  # at the fixed point what goes in comes out
            torch.testing.assert_close(output.hidden_states[0], last, rtol=1e-5, atol=1e-5)
        assert model(text).hidden_states is None
        model.config.output_hidden_states = True
        assert len(model(text).hidden_states) == model.config.num_hidden_layers + 1


@every_kind
@torch.no_grad()
def test_tuples(kind: str) -> None:
    model, text = model_of(kind), tokens(2, 5)
    output = model(text, labels=text)
    found = model(text, labels=text, return_dict=False)
    assert isinstance(found, tuple) and len(found) == len(output.to_tuple())
    assert torch.equal(found[0], output.loss) and torch.equal(found[1], output.logits)
    assert isinstance(found[2], CarryCache)
    assert torch.equal(model(text, return_dict=False)[0], output.logits)
    assert torch.equal(output[0], output.loss) and torch.equal(output["logits"], output.logits)
    model.config.return_dict = False
    assert isinstance(model(text), tuple)


@every_kind
@torch.no_grad()
def test_self_iterations(kind: str) -> None:
    model, text = model_of(kind, tolerance=TIGHT, patience=3), tokens(2, 5)
    output = model(text)
    if not model.is_implicit:
        assert output.self_iterations is output.search is output.penalty is None
        return
    assert output.self_iterations.shape == (2, 5)
    assert output.self_iterations.min() > 3
    quick = model(text, tolerance=1e-2)
    assert (quick.self_iterations < output.self_iterations).all()
    # Each token takes part in its window's evaluations, and in one more that gives the output.
    capped = model(text, max_self_iterations=7, tolerance=1e-15)
    assert capped.self_iterations.max() <= 4 * 7 + 1
    alone = model(text[:, :1], max_self_iterations=7, tolerance=1e-15)
    assert alone.self_iterations.tolist() == [[8], [8]]
    with torch.enable_grad():
        assert model(text, phase=bounded_phase(3)).self_iterations.tolist() == [[3] * 5] * 2


@pytest.mark.parametrize("kind", EXPLICIT)
def test_an_explicit_model_takes_nothing_of_a_search(kind: str) -> None:
    model, text = model_of(kind), tokens(1, 3)
    settings: dict[str, Any]
    for settings in (
        {"tolerance": 0.1},
        {"max_self_iterations": 3},
        {"phase": bounded_phase(2)},
    ):
        with pytest.raises(ValueError, match="this explicit model takes None"):
            model(text, **settings)


@pytest.mark.parametrize("kind", IMPLICIT)
def test_settings_of_a_search_that_cannot_be(kind: str) -> None:
    model, text = model_of(kind), tokens(1, 3)
    for differentiable in (True, False):
        with torch.set_grad_enabled(differentiable):
            with pytest.raises(ValueError, match="max_self_iterations is 0; it must be at least 1"):
                model(text, max_self_iterations=0)
            with pytest.raises(ValueError, match="tolerance is -1.0; it must be positive"):
                model(text, tolerance=-1.0)
            with pytest.raises(ValueError, match="tolerance is given beside a phase"):
                model(text, tolerance=0.1, phase=bounded_phase(2))
    model.config.training_phase = "bounded"
    with pytest.raises(ValueError, match="the bounded phase of training has none"):
        model(text, tolerance=0.1)
    assert model(text, max_self_iterations=2).self_iterations.tolist() == [[2] * 3]


@every_kind
def test_what_no_model_takes(kind: str) -> None:
    model, text = model_of(kind), tokens(2, 5)
    for wrong in ({"output_attentions": True}, {"position_ids": text}, {"atention_mask": text}):
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{next(iter(wrong))}'"):
            model(text, **wrong)
    for ids in (text - VOCABULARY, text + VOCABULARY):
        with pytest.raises(ValueError, match="token ids must lie between 0 and 30"):
            model(ids)
    for shape in ((2, 4), (2, 6), (2, 10)):
        with pytest.raises(ValueError, match=r"must be that of the tokens, \(2, 5\)"):
            model(text, attention_mask=torch.ones(shape))
    # Apart from `forward`, whose number of dimensions the tests check themselves.
    for before, shape in ((0, (5,)), (0, (2, 1, 5)), (3, (8,)), (3, (2, 1, 8)), (3, (3, 8))):
        with pytest.raises(ValueError, match=r"must be that of the tokens, \(2, 5\)"):
            Alignment.where_padded(torch.ones(shape), (2, 5), before)
    for shape in ((2, 5, 15), (5, 16), (2, 1, 5, 16)):
        match = rf"inputs_embeds has the shape \({shape[0]}, .*must be \(B, L, 16\)"
        with pytest.raises(ValueError, match=match):
            model.model._embed(None, torch.ones(shape))


@every_kind
@torch.no_grad()
def test_nothing_at_all_is_read(kind: str) -> None:
    model = model_of(kind)
    for shape in ((0, 4), (2, 0)):
        output = model(torch.zeros(shape, dtype=torch.int64))
        assert output.logits.shape == (*shape, VOCABULARY)
    text, mask = tokens(3, 4), mask_of([(0, 4), (0, 0), (1, 3)], 4)
    output = model(text, attention_mask=mask)
    assert output.logits.isfinite().all()
    assert_close(output.logits[0], model(text[:1]).logits[0])
    assert_close(output.logits[2, 1:3], model(text[2:, 1:3]).logits[0])


def test_the_card_tells_what_was_saved(tmp_path: Path) -> None:
    model = model_of("mamba2-implicit", dtype=torch.float32)
    model.config.provenance = {"training": {"run": "abc123"}}
    model.save_pretrained(tmp_path)
    card = (tmp_path / "README.md").read_text()
    number = sum(parameter.numel() for parameter in model.parameters())
    for line in (f"{number:,} parameters", "| tolerance | 0.0001 |", "| run | abc123 |"):
        assert line in card
    settings = json.loads((tmp_path / "config.json").read_text())
    assert settings["architectures"] == ["ImplicitMamba2ForCausalLM"]
    assert settings["provenance"] == {"training": {"run": "abc123"}}
