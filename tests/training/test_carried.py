"""Sequences that go on from those of the step before: truncated backpropagation through time."""

import dataclasses
import functools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from implicit_models.data.batching import stream_indices
from implicit_models.equilibrium.gradients import Phantom
from implicit_models.equilibrium.phase import Phase, bounded_phase
from implicit_models.equilibrium.solvers import Picard
from implicit_models.equilibrium.stopping import ResidualBelow
from implicit_models.equilibrium.window import Window
from implicit_models.families.building import build
from implicit_models.families.family import initial_memory
from implicit_models.families.parameters import ModelParameters
from implicit_models.language_models.forward import forward_labelled
from implicit_models.language_models.labelled import Continuation
from implicit_models.language_models.losses import IGNORED
from implicit_models.language_models.source_names import SourceError
from implicit_models.problems.word_problem.data import groups
from implicit_models.problems.word_problem.data.continuing import ContinuedProducts
from implicit_models.problems.word_problem.data.sequences import prefix_products
from implicit_models.training.carried import Carried, begin, carry_on, joined
from implicit_models.training.curriculum import Passing, Segment, explicit_segment
from implicit_models.training.distributed import Execution, Processes, distribute
from implicit_models.training.parameters import ExplicitParameters
from tests.training.setup_training import (
    BOUNDED,
    FREE,
    LENGTHS,
    MODEL,
    run,
    sequences,
    small_training,
)

VOCABULARY = 5
TEXT = torch.from_numpy(np.random.default_rng(0).integers(0, VOCABULARY, (3, 24)))
LABELS = TEXT.cumsum(1) % VOCABULARY
SLIDING = ModelParameters(
    family="llama",
    implicit=True,
    num_layers=2,
    d_model=8,
    num_heads=2,
    d_feed_forward=16,
    sliding_window=7,
    weight_normalisation=True,
)
MODELS = {
    "implicit": MODEL.replace(num_layers=2),
    "explicit": MODEL.replace(implicit=False, num_layers=2),
    "lstm": ModelParameters(family="lstm", num_layers=2, d_model=8, hidden_size=12),
    "sliding implicit": SLIDING,
    "sliding explicit": SLIDING.replace(implicit=False),
}
FACTORS = {"in_proj": 0.2, "qkv_proj": 0.2, "gate_up_proj": 0.2, "out_proj": 3.0}
EXACT = Phase(Picard(0.9), ResidualBelow(1e-14, 400), Phantom(2, 0.9), window=Window(4, 2))
TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-10}


def sums(labels: Tensor, before: Tensor) -> Tensor:
    return (labels + before[:, None]) % VOCABULARY


PASSING = Passing(num_steps=100, reset_share=0.0, if_right=None)
SUMS = Continuation(is_ordered=False, labels=sums)
DTYPES = list(TOLERANCES)


def built(name: str, dtype: torch.dtype) -> tuple[Any, Phase | None]:
    model: Any = build(MODELS[name], VOCABULARY, seed=3).to(dtype)
    if model.is_implicit:
        with torch.no_grad():  # so that it contracts
            for part, weight in model.model.stack.named_modules():
                if part.rpartition(".")[2] in FACTORS:
                    weight.scale.mul_(FACTORS[part.rpartition(".")[2]])
    tolerance = 1e-14 if dtype == torch.float64 else 1e-6
    phase = dataclasses.replace(EXACT, stopping=ResidualBelow(tolerance, 400))
    return model, phase if model.is_implicit else None


def gradients(model: torch.nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def read(model: Any, phase: Phase | None, pieces: list[slice]) -> tuple[Tensor, Any]:
    """Read the text in pieces; the last one alone gets a gradient."""
    memory: Any = initial_memory(model, len(TEXT))
    memory = memory.resumed(memory.tensors())
    found = []
    for piece in pieces:
        model.zero_grad()
        inputs, labels = TEXT[:, piece], LABELS[:, piece]
        output = forward_labelled(model, inputs, labels, phase, None, memory)
        output.loss.backward()
        memory = output.memory
        found.append(output.loss.detach() * inputs.numel())
    return torch.stack(found).sum() / TEXT.numel(), memory


@pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "float64"])
@pytest.mark.parametrize("name", MODELS)
def test_windows_with_a_carry_are_one_long_pass(name: str, dtype: torch.dtype) -> None:
    model, phase = built(name, dtype)
    tolerance = TOLERANCES[dtype]
    whole, after = read(model, phase, [slice(0, 24)])
    for length in (3, 8, 12):
        pieces = [slice(n, n + length) for n in range(0, 24, length)]
        loss, memory = read(model, phase, pieces)
        assert loss.item() == pytest.approx(whole.item(), rel=tolerance)
        for ours, theirs in zip(memory.tensors().values(), after.tensors().values(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
            assert not ours.requires_grad


@pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "float64"])
@pytest.mark.parametrize("name", MODELS)
def test_the_gradient_within_a_window_is_that_of_one_long_pass(
    name: str, dtype: torch.dtype
) -> None:
    """A window's loss depends on what is before it through a carry that counts as a constant."""
    model, phase = built(name, dtype)
    read(model, phase, [slice(0, 16), slice(16, 24)])
    found = gradients(model)
    first = initial_memory(model, 3)
    with torch.no_grad():
        before = forward_labelled(model, TEXT[:, :16], LABELS[:, :16], phase, None, first).memory
    model.zero_grad()
    text, labels = TEXT[:, 16:24], LABELS[:, 16:24]
    output = forward_labelled(model, text, labels, phase, None, before)
    output.loss.backward()
    for parameter, expected in gradients(model).items():
        torch.testing.assert_close(found[parameter], expected, rtol=0, atol=TOLERANCES[dtype])


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_in_bfloat16_a_memory_of_float32_is_gone_on_from(name: str) -> None:
    """A text's start has the precision that weights are kept in."""
    model = build(MODELS[name], VOCABULARY, seed=0)
    phase = bounded_phase(3) if "implicit" in name else None
    losses = []
    for precision in ("float32", "bfloat16"):
        module, memory = distribute(model, precision, Execution()), initial_memory(model, 3)
        for piece in (slice(0, 8), slice(8, 16)):
            inputs, labels = TEXT[:, piece], LABELS[:, piece]
            output = forward_labelled(module, inputs, labels, phase, None, memory)
            memory = output.memory
        losses.append(output.loss.item())
    assert losses[0] != losses[1] and losses[1] == pytest.approx(losses[0], rel=0.02)


@pytest.mark.parametrize("name", MODELS)
def test_a_row_that_is_reset_is_a_text_of_its_own(name: str) -> None:
    model, phase = built(name, torch.float64)
    start = initial_memory(model, 3)
    labels = LABELS[:, :8]
    begun = begin(labels, None, torch.zeros(3, dtype=torch.bool), start, SUMS)
    output = forward_labelled(model, TEXT[:, :8], labels, phase, None, begun.memory)
    assert output.memory is not None
    carried = carry_on(output.memory, labels, output.predictions(), PASSING)
    begins = torch.tensor([False, True, False])
    own = TEXT[:, 8:16].cumsum(1) % VOCABULARY
    second = begin(own, carried, begins, start, SUMS)
    assert second.went_on == 2
    assert torch.equal(second.labels[[0, 2]], LABELS[[0, 2], 8:16])
    assert torch.equal(second.labels[1], own[1])
    together = forward_labelled(model, TEXT[:, 8:16], second.labels, phase, None, second.memory)
    alone = forward_labelled(
        model, TEXT[1:2, 8:16], own[1:2], phase, None, initial_memory(model, 1)
    )
    assert together.memory is not None and alone.memory is not None
    for ours, theirs in zip(
        together.memory.tensors().values(), alone.memory.tensors().values(), strict=True
    ):
        torch.testing.assert_close(ours[1:2], theirs, rtol=1e-10, atol=1e-12)


def test_the_carry_that_follows_may_have_a_gradient() -> None:
    """State in, state out, differentiable: where nobody detaches it."""
    for name in (each for each in MODELS if each != "lstm"):
        model, phase = built(name, torch.float64)
        cache = model.initial_cache(3)
        keywords = {} if phase is None else {"phase": phase}
        first = model(input_ids=TEXT[:, :6], cache=cache, use_cache=True, **keywords)
        carry = first.cache.tensors().values()
        assert all(tensor.requires_grad for tensor in carry if tensor.is_floating_point())
        second = model(
            input_ids=TEXT[:, 6:8], cache=first.cache, use_cache=True,
            **keywords,
        )  # fmt: skip
        second.logits.sum().backward()
        assert model.get_input_embeddings().weight.grad is not None


def test_products_go_on_where_sequences_follow_each_other() -> None:
    table = groups.multiplication_table("A4 x Z3")
    draw = np.random.default_rng(1).integers(0, len(table), (7, 30))
    whole = torch.from_numpy(prefix_products(table, draw).astype(np.int64))
    continued, label = ContinuedProducts(table), torch.zeros(7, dtype=torch.long)
    for first, last in ((0, 4), (4, 5), (5, 17), (17, 30)):
        own = torch.from_numpy(prefix_products(table, draw[:, first:last]).astype(np.int64))
        found = continued(own, label)
        assert torch.equal(found, whole[:, first:last])
        label = found[:, -1]


def test_only_sequences_that_are_right_at_their_end_are_passed_on() -> None:
    labels = torch.tensor([[1, 2, 3], [1, 2, 3], [1, 2, 3], [1, IGNORED, 3]])
    predictions = torch.tensor([[0, 2, 3], [1, 2, 0], [1, 0, 3], [1, 0, 3]])
    memory = SimpleNamespace(tensors=lambda: {"state": torch.arange(4.0, requires_grad=True)})

    def passed(if_right: int | None) -> list[bool]:
        found = carry_on(memory, labels, predictions, Passing(1, 0.0, if_right))  # type: ignore
        assert not found.memory["state"].requires_grad
        return found.is_passed.tolist()

    assert passed(None) == [True] * 4
    assert passed(1) == [True, False, True, True]
    assert passed(2) == [True, False, False, True]
    assert passed(3) == [False, False, False, True]


def test_what_was_carried_goes_through_names_and_processes() -> None:
    rows = torch.arange(6)
    whole = Carried(rows > 2, rows, {"0.state": rows[:, None] * 1.5})
    found = Carried.of_tensors({"model.x": rows, **whole.tensors()})
    assert found is not None and found.memory.keys() == {"0.state"}
    parts = [whole.share(Processes(rank, 3), 6) for rank in range(3)]
    again = joined([part for part in parts if part is not None])
    for name, tensor in again.tensors().items():
        assert torch.equal(tensor, whole.tensors()[name])
    assert whole.share(Processes(), 4) is None
    assert Carried.of_tensors({"model.x": rows}) is None


def passing(segment: Segment, **changes: Any) -> Segment:
    return dataclasses.replace(segment, passing=dataclasses.replace(PASSING, **changes))


SEGMENTS = {
    "bounded": passing(BOUNDED),
    "free": passing(FREE),
    "the last steps, resets, filter": passing(FREE, num_steps=9, reset_share=0.3, if_right=1),
    "explicit": passing(
        explicit_segment(ExplicitParameters(num_training_steps=9, decay_steps=0, lengths=LENGTHS))
    ),
}


@pytest.mark.parametrize(
    ("family", "name"),
    [("mamba2", name) for name in SEGMENTS] + [("sliding", name) for name in ("free", "explicit")],
)
@pytest.mark.parametrize("micro_batch", [None, 3])
def test_interrupted_and_continued_equals_uninterrupted(
    family: str, name: str, micro_batch: int | None, tmp_path: Path
) -> None:
    execution = Execution(micro_batch=micro_batch)
    training = small_training(SEGMENTS[name], continuation=SUMS)
    model = {"mamba2": MODEL, "sliding": SLIDING}[family].replace(implicit=name != "explicit")
    whole, _, progress, recorder = run(
        tmp_path / "whole", training, execution=execution, parameters=model
    )
    first = training.segment.first_step
    for stop_after in range(first + 2, training.segment.last_step - 1, 4):
        folder = tmp_path / f"cut{stop_after}"
        run(folder, training, stop_after, execution=execution, parameters=model)
        cut, _, continued, _ = run(folder, training, execution=execution, parameters=model)
        for ours, theirs in zip(cut.parameters(), whole.parameters(), strict=True):
            assert torch.equal(ours, theirs)
        assert progress is not None and continued is not None
        for ours, theirs in zip(continued.history, progress.history, strict=True):
            assert ours["loss"] == theirs["loss"]
    shares = [row.get("share_carried") for row in recorder.rows.values()]
    begin_at = training.segment.last_step - SEGMENTS[name].passing.num_steps  # type: ignore
    for step, share in zip(recorder.rows, shares, strict=True):
        assert (share is None) == (step - 1 < begin_at)
    assert shares[-1] is not None and shares[-1] <= 1


def test_passing_a_carry_changes_what_is_learnt(tmp_path: Path) -> None:
    weights = []
    for number, segment in enumerate((BOUNDED, SEGMENTS["bounded"])):
        model, *_ = run(tmp_path / str(number), small_training(segment, continuation=SUMS))
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert not torch.equal(*weights)


def test_a_step_that_is_left_out_leaves_nothing_to_go_on_from(tmp_path: Path) -> None:
    data = sequences()
    data.labels = data.labels.astype(np.int64)
    training = small_training(SEGMENTS["free"], continuation=SUMS, sequences=data)
    calls = []

    def lost(labels: Tensor, before: Tensor) -> Tensor:
        calls.append(before)
        return sums(labels, before)

    poisoned = dataclasses.replace(training, continuation=Continuation(False, lost))
    optimisation = training.optimisation.replace(max_skipped_steps=3)
    model = build(MODEL, VOCABULARY, seed=0)
    with torch.no_grad():
        model.get_input_embeddings().weight[:] = float("nan")  # type: ignore[operator]
    with pytest.raises(FloatingPointError):
        run(
            tmp_path,
            dataclasses.replace(poisoned, optimisation=optimisation),
            model=model,
        )
    assert not calls  # no step had anything to go on from


def test_a_carry_of_another_batch_begins_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    training = small_training(SEGMENTS["free"], continuation=SUMS)
    run(tmp_path, training, stop_after=12)
    larger = dataclasses.replace(
        training,
        batch_size=8,
        batch_indices=functools.partial(
            training.batch_indices.func,  # type: ignore[attr-defined]
            batch_size=8,
            num_sequences=16,
            seed=0,
        ),
    )
    _, _, progress, recorder = run(tmp_path, larger)
    assert progress is not None and progress.step == 17
    assert "is of 4 sequences, and a step has 8: all begin anew" in caplog.text


def test_streams_walk_through_all_sequences_in_order() -> None:
    drawn = {"batch_size": 4, "num_sequences": 18, "seed": 5}
    steps = [stream_indices(4 * step, **drawn) for step in range(18)]
    for before, after in zip(steps, steps[1:], strict=False):
        assert np.array_equal(after, (before + 1) % 18)
    for stream in np.transpose(steps):
        assert sorted(stream) == list(range(18))
    assert set(np.concatenate(steps[:5])) == set(range(18))  # an epoch
    assert not np.array_equal(steps[0], stream_indices(0, **drawn | {"seed": 6}))


def test_ordered_sequences_begin_where_the_data_begin(tmp_path: Path) -> None:
    """A text of 16 sequences is read by 4 streams; what is not its beginning goes on."""
    segment = passing(dataclasses.replace(FREE, lengths=LENGTHS.replace(minimum=6, start=6)))
    drawn = {"batch_size": 4, "num_sequences": 16, "seed": 0}
    training = small_training(
        segment,
        continuation=Continuation(is_ordered=True),
        stream_indices=functools.partial(stream_indices, **drawn),
        monitoring=small_training().monitoring.replace(log_every=1, validate_every=4),
    )
    _, _, progress, recorder = run(tmp_path, training)
    assert progress is not None
    for step, row in recorder.rows.items():
        rows = stream_indices(4 * (step - 1), **drawn)
        expected = 0.0 if step == 6 else float((rows != 0).mean())
        assert row["share_carried"] == expected


def test_what_has_no_state_passes_nothing_on() -> None:
    llama = ModelParameters(
        family="llama", implicit=True, num_layers=1, d_model=8, num_heads=2, d_feed_forward=16
    )
    with pytest.raises(SourceError, match="a fixed size.*llama with sliding_window"):
        initial_memory(build(llama, VOCABULARY, seed=0), 2)


def test_a_carry_of_another_model_or_batch_is_refused() -> None:
    implicit, _ = built("implicit", torch.float32)
    wider = build(MODELS["implicit"].replace(d_model=16), VOCABULARY, seed=0)
    deeper = build(MODELS["implicit"].replace(num_layers=3), VOCABULARY, seed=0)
    for other in (wider, deeper):
        with pytest.raises(ValueError, match="the carry is of another model"):
            implicit(input_ids=TEXT, cache=other.initial_cache(3))  # type: ignore
    llama = ModelParameters(
        family="llama", num_layers=2, d_model=16, num_heads=4, d_feed_forward=16, implicit=False
    )
    for changes in ({"num_key_value_heads": 2}, {"head_dim": 8}, {"sliding_window": 3}):
        other = build(llama.replace(**changes), VOCABULARY, seed=0)
        with pytest.raises(ValueError, match="the carry is of another model"):
            build(llama, VOCABULARY, seed=0)(input_ids=TEXT, cache=other.initial_cache(3))  # type: ignore
    with pytest.raises(ValueError, match="holds 2 sequences; the input has 3"):
        implicit(input_ids=TEXT, cache=implicit.initial_cache(2))
    lstm, _ = built("lstm", torch.float32)
    for states in (lstm.initial_cache(2), build(
        MODELS["lstm"].replace(num_layers=1), VOCABULARY, seed=0
    ).initial_cache(3)):  # type: ignore  # fmt: skip
        with pytest.raises(ValueError, match=r"this model and 3 sequences take \(3, 2, 12\)"):
            lstm(input_ids=TEXT, cache=states)
