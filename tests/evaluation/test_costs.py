"""What evaluations say they cost, against torch's counter on all that they do."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from transformers import Gemma2Config, Gemma2ForCausalLM, MistralConfig, MistralForCausalLM

from implicit_models.cost.flops import model_flops
from implicit_models.equilibrium.phase import Phase, search_phase
from implicit_models.equilibrium.solvers import Picard
from implicit_models.equilibrium.stopping import FixedSteps
from implicit_models.equilibrium.window import Window
from implicit_models.evaluation.score_store import ScoreStore
from implicit_models.evaluation.scoring import prefix, score
from implicit_models.families.reader import reader_of
from implicit_models.language_models.forward import is_implicit
from implicit_models.language_models.language_model import LanguageModel
from implicit_models.problems.downstream.evaluation import continuations as module
from implicit_models.problems.downstream.evaluation.answers import Answers, Continuation
from implicit_models.problems.downstream.evaluation.continuations import ReadingCost, answer
from implicit_models.problems.text.evaluation.length_extrapolation import (
    evaluate_length_extrapolation,
)
from implicit_models.problems.text.evaluation.perplexity import evaluate_perplexity
from implicit_models.problems.text.evaluation.sweep import sweep_text
from implicit_models.problems.text.evaluation.text import evaluate_text
from implicit_models.problems.text.parameters import TextEvaluationParameters, TextSweepParameters
from implicit_models.problems.word_problem.evaluation.state_tracking import evaluate_state_tracking
from implicit_models.problems.word_problem.evaluation.sweep import sweep_word_problem
from implicit_models.problems.word_problem.parameters import (
    WordProblemEvaluationParameters,
    WordProblemSweepParameters,
)
from tests.cost.counting import count
from tests.evaluation.readable import llama, make, random_tokens
from tests.language_models.models import VOCABULARY

KINDS = ("explicit mamba2", "explicit llama", "lstm", "transformers llama", "transformers mamba2")
IMPLICIT = ("implicit mamba2", "implicit llama")
FIXED = Phase(Picard(1.0), FixedSteps(2), None)
SLIDING = search_phase(3e-2, 60, 1.0, Window(32, 2))
DOCUMENTS = [random_tokens(length, seed=length) for length in (100, 7, 61, 1)]
END = 3


def exactly(kind: str) -> Any:
    """Ours and torch's LSTM to the last product; others as far as a count can be extended."""
    return pytest.approx if kind.startswith("transformers") else lambda number, rel: number


def counted(model: LanguageModel, work: Callable[[], Any]) -> tuple[int, Any]:
    """Return the FLOPs that torch counts of some work, and its result; caches are filled before."""
    reader_of(model)
    model_flops(model)
    results = []
    flops = count(lambda: results.append(work()))
    return flops, results[0]


CASES = [(kind, None) for kind in KINDS] + [
    (kind, phase) for kind in IMPLICIT for phase in (FIXED, SLIDING)
]


@pytest.mark.parametrize("piece_length", [None, 40])
@pytest.mark.parametrize(("kind", "phase"), CASES)
def test_documents_of_unequal_lengths(kind: str, phase: Phase | None, piece_length) -> None:
    model = make(kind)
    expected, found = counted(
        model,
        lambda: evaluate_perplexity(
            model,
            DOCUMENTS,
            start_token=END,
            context_length=64,
            stride=48,
            batch_size=3,
            phase=phase,
            piece_length=piece_length,
            generator=np.random.default_rng(0),
            bootstrap_samples=2,
        ),
    )
    assert found.totals.flops == exactly(kind)(expected, rel=0.02)


@pytest.mark.parametrize(("kind", "phase"), CASES)
def test_length_extrapolation(kind: str, phase: Phase | None) -> None:
    model, stream = make(kind), random_tokens(301)
    expected, found = counted(
        model,
        lambda: evaluate_length_extrapolation(
            model,
            stream,
            (75, 300),
            phase=phase,
            batch_size=4,
            piece_length=90,
            generator=np.random.default_rng(0),
            bootstrap_samples=2,
        ),
    )
    flops = sum(each.totals.flops for each in found.values())
    assert flops == exactly(kind)(expected, rel=0.02)


@pytest.mark.parametrize("kind", ["explicit llama", *IMPLICIT])
def test_a_text_and_one_that_was_interrupted(kind: str, tmp_path) -> None:
    model = make(kind)
    parameters = TextEvaluationParameters(
        context_length=64,
        stride=64,
        batch_size=4,
        piece_length=100,
        lengths=(30, 90),
        bootstrap_samples=2,
        num_shown_tokens=0,
        window=32,
        patience=2,
        tolerance=3e-2,
        max_steps=60,
        damping=1.0,
    )
    store = ScoreStore(tmp_path / "kept", "z" * 64)

    def read() -> Any:
        stream = np.concatenate(DOCUMENTS)
        return evaluate_text(model, DOCUMENTS, stream, parameters, start_token=END, store=store)

    def flops_of(result: Any) -> list[float]:
        totals = [result.totals, *(each.totals for each in result.lengths.values())]
        return [each.flops for each in totals]

    expected, found = counted(model, read)
    assert sum(flops_of(found)) == expected
    again, resumed = counted(model, read)
    assert again == 0 and flops_of(resumed) == flops_of(found)


def questions() -> list[Continuation]:
    """Questions of 20 to 220 tokens, with answers of unequal lengths; of some the ends differ."""

    def tokens(length: int, seed: int) -> tuple[int, ...]:
        return tuple(random_tokens(length, seed=seed).tolist())

    found = [Continuation((END,), tokens(2, 0))]
    for length in (20, 90, 220):
        context = tokens(length, length)
        found += [Continuation(context, tokens(n, n)) for n in (1, 4, 30)]
        found += [Continuation((*context, *tokens(3, n)), tokens(2, 9)) for n in (5, 6)]
    return found


@pytest.mark.parametrize(
    ("kind", "phase", "shares"),
    [(*case, True) for case in CASES] + [("implicit mamba2", FIXED, False)],
)
def test_answers(kind: str, phase: Phase | None, shares: bool) -> None:
    model, cost = make(kind), ReadingCost()
    expected, _ = counted(
        model,
        lambda: answer(
            model,
            questions(),
            phase=phase,
            batch_size=4,
            piece_length=100,
            cost=cost,
            shares_beginnings=shares,
        ),
    )
    assert cost.flops == exactly(kind)(expected, rel=0.02)


@pytest.mark.parametrize(
    ("kind", "breaks_after"),
    [("explicit mamba2", 2), ("explicit mamba2", 5), ("implicit llama", 3)],
)
def test_answers_that_were_interrupted(kind: str, breaks_after: int, tmp_path, monkeypatch) -> None:
    model, calls = make(kind), []
    phase = SLIDING if is_implicit(model) else None

    def ask(kept: Answers | None) -> ReadingCost:
        cost = ReadingCost()
        answer(model, questions(), phase=phase, batch_size=2, kept=kept, cost=cost)
        return cost

    def dying(*arguments: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) > breaks_after:
            raise KeyboardInterrupt
        return score(*arguments, **named)

    whole = ask(None)
    with ScoreStore(tmp_path / "answers", "") as store:
        kept = Answers(store)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(module, "score", dying)
            ask(kept)
        assert 0 < len(kept.find(questions())) < len(questions())
    for _ in range(2):  # at last all answers are there already
        with ScoreStore(tmp_path / "answers", "") as store:
            kept = Answers(store)
            found = ask(kept)
        assert found.seconds > 0
        assert dataclasses.replace(found, seconds=0) == dataclasses.replace(whole, seconds=0)


@pytest.mark.parametrize("kind", ["lstm", "explicit mamba2", *IMPLICIT])
def test_word_problems(kind: str) -> None:
    model = make(kind)
    lengths = (20, 70)
    parameters = WordProblemEvaluationParameters(
        lengths=lengths,
        num_sequences=5,
        batch_size=3,
        num_mode_sequences=0,
        window=32,
        patience=2,
        tolerance=3e-2,
        max_steps=60,
        damping=1.0,
    )
    splits = {
        length: _Sequences(random_tokens(5, length), random_tokens(5, length)) for length in lengths
    }
    expected, found = counted(model, lambda: evaluate_state_tracking(model, splits, parameters))
    assert sum(each.flops for each in found.lengths.values()) == expected


@pytest.mark.parametrize("kind", IMPLICIT)
def test_sweeps_of_word_problems(kind: str) -> None:
    model = make(kind)
    parameters = WordProblemSweepParameters(
        length=12,
        num_sequences=3,
        batch_size=2,
        self_iterations=(1, 3),
        tolerances=(1e-1,),
        window=8,
        patience=2,
        max_steps=20,
        damping=1.0,
    )
    split = _Sequences(random_tokens(3, 12), random_tokens(3, 12))
    expected, found = counted(model, lambda: sweep_word_problem(model, split, parameters))
    points = [*found.self_iterations, *found.tolerance]
    assert sum(point.flops for point in points) == expected


@pytest.mark.parametrize("kind", IMPLICIT)
def test_sweeps(kind: str) -> None:
    model = make(kind)
    parameters = TextSweepParameters(
        length=12,
        num_sequences=3,
        batch_size=2,
        self_iterations=(1, 3),
        tolerances=(1e-1,),
        window=8,
        patience=2,
        max_steps=20,
        damping=1.0,
        bootstrap_samples=2,
    )
    expected, found = counted(model, lambda: sweep_text(model, random_tokens(200), parameters))
    points = [*found.self_iterations, *found.tolerance]
    assert sum(point.flops for point in points) == expected
    metrics = found.metrics()
    told = [*metrics["self_iterations"], *metrics["tolerance"]]
    assert [point["flops"] for point in told] == [row["flops"] for row in found.rows()]
    assert found.self_iterations[0].flops < found.self_iterations[1].flops


@pytest.mark.parametrize("kind", ["mistral", "gemma2"])
def test_foreign_attention_to_a_window_read_in_pieces(kind: str) -> None:
    """Of Gemma 2 every other layer attends to everything."""
    config, made = {
        "mistral": (MistralConfig, MistralForCausalLM),
        "gemma2": (Gemma2Config, Gemma2ForCausalLM),
    }[kind]
    model = made(
        config(
            vocab_size=VOCABULARY,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=4,
            sliding_window=32,
        )
    ).eval()
    text = random_tokens(2, 151)
    for piece_length in (None, 20, 50):
        expected, found = counted(
            model,
            lambda piece_length=piece_length: score(
                model, text[:, :-1], text[:, 1:], phase=None, piece_length=piece_length
            ),
        )
        assert found.flops == pytest.approx(expected, rel=0.02)


def test_logits_that_nobody_wants_cost_a_foreign_model_nothing() -> None:
    model = llama(hidden_size=8, num_attention_heads=2, tie_word_embeddings=False).eval()
    model.resize_token_embeddings(2000, mean_resizing=False)
    inputs = random_tokens(2, 60)
    labels = np.full(inputs.shape, -100)
    labels[:, -2:] = 5
    expected, found = counted(model, lambda: score(model, inputs, labels, phase=None))
    assert found.flops == pytest.approx(expected, rel=0.02)
    assert found.flops < model_flops(model).head * inputs.size / 2


def test_a_prefix_costs_what_it_took_once() -> None:
    model, inputs = make("implicit llama"), random_tokens(2, 70)
    expected, found = counted(model, lambda: prefix(model, inputs, SLIDING, piece_length=50))
    assert found.flops == expected


@dataclasses.dataclass(frozen=True)
class _Sequences:
    inputs: np.ndarray
    labels: np.ndarray
    vocabulary_size: int = VOCABULARY
