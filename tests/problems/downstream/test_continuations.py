"""Shared beginnings: read once, and the answers are those of reading every text by itself."""

import dataclasses

import numpy as np
import pytest
import torch

from implicit_models.evaluation.score_store import ScoreStore
from implicit_models.language_models.phases import default_phase
from implicit_models.problems.downstream.evaluation import continuations as module
from implicit_models.problems.downstream.evaluation.answers import Answers, Continuation
from implicit_models.problems.downstream.evaluation.continuations import ReadingCost, answer, group
from tests.language_models.kinds import EXPLICIT, IMPLICIT, VOCABULARY, model_of
from tests.language_models.models import LSTM, small_model
from tests.language_models.models import VOCABULARY as LSTM_VOCABULARY


def questions(vocabulary: int, count: int = 5, seed: int = 0) -> list[Continuation]:
    """Questions of unequal lengths with answers of unequal lengths, and one of a single token."""
    draw = np.random.default_rng(seed)

    def tokens(length: int) -> tuple[int, ...]:
        return tuple(int(token) for token in draw.integers(1, vocabulary, length))

    found = [Continuation((1,), tokens(n)) for n in (2, 3)]
    for number in range(count):
        context = tokens(3 * number + 2)
        found += [Continuation(context, tokens(n)) for n in (1, 4, 2)]
        # As of WinoGrande: the ends of the contexts differ, what comes after them does not.
        end = tokens(3)
        found += [Continuation((*context, *tokens(2)), end) for _ in range(2)]
    return found


def brute_force(model, each: Continuation, **arguments) -> tuple[float, bool]:
    """One text, from its first token, all logits."""
    text = torch.tensor([each.context + each.tokens])
    with torch.inference_mode():
        logits = model(input_ids=text[:, :-1], use_cache=False, **arguments).logits
    scored = logits[0, len(each.context) - 1 :].log_softmax(-1)
    expected = text[0, len(each.context) :]
    nats = scored.gather(1, expected[:, None]).sum()
    return float(nats), bool((scored.argmax(-1) == expected).all())


def arguments_of(model) -> dict:
    if not getattr(model.config, "implicit", False):
        return {}
    return {"phase": default_phase(model.config, differentiable=False, num_tokens=2)}


def model_named(name: str, tolerance: float = 1e-8):
    if name == "lstm":
        return small_model(LSTM), LSTM_VOCABULARY
    return model_of(name, tolerance=tolerance, window=16), VOCABULARY


@pytest.mark.parametrize(
    ("name", "batch_size"),
    [(name, 3) for name in IMPLICIT]
    + [(name, size) for name in (*EXPLICIT, "lstm") for size in (1, 3, 64)],
)
def test_answers_are_those_of_brute_force(name, batch_size):
    model, vocabulary = model_named(name)
    arguments = arguments_of(model)
    asked = questions(vocabulary, 3 if name in IMPLICIT else 5)
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([asked[-1].context]), **arguments).logits
    asked.append(Continuation(asked[-1].context, (int(logits[0, -1].argmax()),)))
    found = answer(
        model, asked, phase=arguments.get("phase"), batch_size=batch_size, piece_length=5
    )
    expected = [brute_force(model, each, **arguments) for each in asked]
    np.testing.assert_allclose(
        [one.log_likelihood for one in found], [nats for nats, _ in expected], rtol=1e-6
    )
    assert [one.is_greedy for one in found] == [greedy for _, greedy in expected]
    assert found[-1].is_greedy


@pytest.mark.parametrize("name", ["mamba2-implicit", "mamba2-explicit", "lstm"])
def test_shared_beginnings_are_read_once(name):
    model, vocabulary = model_named(name)
    phase = arguments_of(model).get("phase")
    context = (*range(1, vocabulary), *range(1, vocabulary))[:24]
    asked = [Continuation(context, (token, 1)) for token in (1, 2, 3, 4)]
    costs = {}
    for shares in (True, False):
        costs[shares] = ReadingCost()
        answer(
            model, asked, phase=phase, batch_size=8, cost=costs[shares], shares_beginnings=shares
        )
    # The last token of the context is read with each answer: what follows it is predicted there.
    assert costs[True].num_tokens == len(context) - 1 + 4 * 2
    assert costs[False].num_tokens == 4 * (len(context) + 1)
    assert costs[True].num_texts == costs[False].num_texts == 4
    assert costs[True].num_scored == costs[False].num_scored == 4 * 2
    if phase is not None:
        assert 0 < costs[True].token_evaluations < costs[False].token_evaluations / 2
        assert costs[True].num_converged == costs[True].num_searches == costs[True].num_tokens


@pytest.mark.parametrize("name", ["mamba2-implicit", "llama-explicit"])
def test_interrupted_is_uninterrupted(tmp_path, monkeypatch, name):
    model, vocabulary = model_named(name, tolerance=1e-2)
    phase = arguments_of(model).get("phase")
    asked = questions(vocabulary, 4)
    whole = answer(model, asked, phase=phase, batch_size=3)

    calls = []

    def dying(*arguments, **named):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return score(*arguments, **named)

    score = module.score
    with ScoreStore(tmp_path / "answers", "") as store:
        kept = Answers(store)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(module, "score", dying)
            answer(model, asked, phase=phase, batch_size=3, kept=kept)
        num_kept = len(kept.find(asked))
    assert 0 < num_kept < len(set(asked))
    with ScoreStore(tmp_path / "answers", "") as store:
        kept = Answers(store)
        cost = ReadingCost()
        assert answer(model, asked, phase=phase, batch_size=3, kept=kept, cost=cost) == whole
        again = ReadingCost()
        assert answer(model, asked, phase=phase, batch_size=3, kept=kept, cost=again) == whole
    assert cost.num_texts == len(set(asked)) and again == cost


def test_equal_questions_are_asked_once():
    model, vocabulary = model_named("mamba2-explicit")
    asked = questions(vocabulary, 1)
    once, twice = ReadingCost(), ReadingCost()
    first = answer(model, asked, phase=None, batch_size=4, cost=once)
    second = answer(model, asked + asked[::-1], phase=None, batch_size=4, cost=twice)
    assert second == first + first[::-1]
    assert dataclasses.replace(once, seconds=0) == dataclasses.replace(twice, seconds=0)


def test_groups():
    context = tuple(range(10))
    answers = [Continuation(context, (n,)) for n in range(5)]
    ends = [Continuation((*context, 90 + n), (1,)) for n in range(2)]
    other = Continuation((0, 1, 50, 51, 52, 53), (1,))
    single = [Continuation((1,), (1,)), Continuation((2,), (1,))]
    found = group([*single, other, *ends, *answers], max_members=16)
    assert sorted(len(one.continuations) for one in found) == [1, 1, 1, 7]
    largest = max(found, key=lambda one: len(one.continuations))
    assert largest.shared == context[:9]  # the last is the one whose state predicts the answers
    assert sum(len(one.continuations) for one in group(answers, 2)) == 5
    assert [len(one.continuations) for one in group(answers, 2)] == [2, 2, 1]
    assert group([], 4) == []
