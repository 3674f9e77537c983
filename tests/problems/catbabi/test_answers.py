"""The evaluation of streams: the same answers whatever is read at once, counted rightly."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from implicit_models.families.building import build
from implicit_models.families.parameters import ModelParameters
from implicit_models.problems.catbabi.data import interface
from implicit_models.problems.catbabi.data.streams import Stream, Streams, open_streams
from implicit_models.problems.catbabi.evaluation.answers import (
    AnswersResult,
    evaluate_answers,
    side_by_side,
)
from implicit_models.problems.catbabi.evaluation.sweep import sweep_answers
from implicit_models.problems.catbabi.parameters import (
    CatbabiEvaluationParameters,
    CatbabiSweepParameters,
)
from tests.problems.catbabi.test_streams import PARAMETERS

MODELS: dict[str, dict[str, Any]] = {
    "implicit": {"family": "mamba2", "implicit": True},
    "mamba2": {"family": "mamba2"},
    "llama": {"family": "llama"},
    "lstm": {"family": "lstm"},
}
SIZES: dict[str, dict[str, Any]] = {
    "mamba2": {"num_layers": 1, "d_model": 16, "d_state": 8, "head_dim": 8},
    "llama": {"num_layers": 1, "d_model": 16, "num_heads": 2, "d_feed_forward": 16},
    "lstm": {"num_layers": 1, "d_model": 16, "hidden_size": 16},
}
EVALUATION = CatbabiEvaluationParameters(num_streams=4, num_stories=60, tolerance=1e-6)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Streams:
    path = tmp_path_factory.mktemp("data") / "stories"
    interface.prepare(PARAMETERS, path, path)
    return open_streams(path, ["test"])


def model_of(name: str) -> Any:
    parameters = MODELS[name] | SIZES[MODELS[name]["family"]]
    model: Any = build(ModelParameters(**parameters), 180, seed=0, label_alignment="next_token")
    if name == "implicit":
        with torch.no_grad():  # so that it contracts
            for block in model.model.stack.blocks:
                block.mixer.in_proj.weight.mul_(0.2)
                block.mixer.out_proj.weight.mul_(3.0)
    return model.eval()


def evaluated(name: str, data: Streams, all_tokens: bool = False, **changes: Any) -> AnswersResult:
    stream = data.splits["test"]
    parameters = EVALUATION.replace(**changes)
    return evaluate_answers(
        model_of(name), stream, data.vocabulary, parameters, all_tokens=all_tokens
    )


@pytest.mark.parametrize("name", MODELS)
def test_a_stream_is_read_alike_in_pieces_of_any_length(name: str, data: Streams) -> None:
    few = {"num_stories": 24} if name == "implicit" else {}  # its searches take their time
    lengths = (50, 200, 400 if few else 1000)
    readings = [evaluated(name, data, piece_length=n, **few).reading for n in lengths]
    for other in readings[1:]:
        np.testing.assert_allclose(other.nll, readings[0].nll, rtol=1e-3, atol=1e-4)
        assert np.array_equal(other.is_right, readings[0].is_right)


def test_streams_side_by_side_are_texts_of_their_own(data: Streams) -> None:
    together = evaluated("mamba2", data).reading
    stream = data.splits["test"]
    end = int(stream.starts[60])
    for first, last in side_by_side(stream.starts[:60], end, 4):
        alone = Stream(stream.tokens[first : last + 1], stream.questions)
        own = stream.questions[:, 0]
        own = own[(own >= first) & (own < last)]
        alone = dataclasses.replace(alone, questions=stream.questions.copy())
        alone.questions[:, 0] -= first
        alone = dataclasses.replace(
            alone,
            questions=alone.questions[
                (alone.questions[:, 0] >= 0) & (alone.questions[:, 0] < last - first)
            ],
        )
        found = evaluate_answers(
            model_of("mamba2"),
            alone,
            data.vocabulary,
            EVALUATION.replace(num_streams=1, num_stories=None),
            all_tokens=False,
        ).reading
        np.testing.assert_allclose(found.nll[own - first], together.nll[own], rtol=1e-5)


def test_a_model_may_have_to_forget_after_every_piece(data: Streams) -> None:
    passed, reset = (evaluated("mamba2", data, carry=c).reading for c in ("passed", "reset"))
    asked = np.isfinite(passed.nll)
    assert np.array_equal(asked, np.isfinite(reset.nll))
    early = asked & (np.arange(len(asked)) < 200)
    np.testing.assert_allclose(passed.nll[early], reset.nll[early], rtol=1e-5)
    assert not np.allclose(passed.nll[asked], reset.nll[asked], rtol=1e-5)


def test_answers_are_counted_by_task_and_by_distance(data: Streams) -> None:
    found = evaluated("mamba2", data)
    metrics, stream = found.metrics(), data.splits["test"]
    questions = stream.questions[stream.questions[:, 0] < stream.starts[60]]
    assert metrics["num_questions"] == len(questions)
    right = {int(place): bool(found.reading.is_right[place]) for place in questions[:, 0]}
    assert metrics["accuracy"] == sum(right.values()) / len(right)
    for task, accuracy in metrics["accuracy_by_task"].items():
        own = [right[int(place)] for place, t, *_ in questions if t == int(task)]
        assert accuracy == sum(own) / len(own)
        assert metrics["num_questions_by_task"][task] == len(own)
    for name, entry in metrics["accuracy_by_distance"].items():
        first, _, last = name.removeprefix(">").partition("-")
        least = int(first) + name.startswith(">")
        most = int(last) if last else (10**9 if name.startswith(">") else least)
        own = [right[int(place)] for place, _, _, far in questions if least <= far <= most]
        assert (entry["accuracy"], entry["num_questions"]) == (sum(own) / len(own), len(own))
    counted = sum(each["num_questions"] for each in metrics["accuracy_by_distance"].values())
    assert counted == len(questions)
    most = 0
    for task in set(questions[:, 1]):
        places = questions[questions[:, 1] == task, 0]
        most += np.unique(stream.tokens[places + 1], return_counts=True)[1].max()
    assert metrics["chance"] == {"accuracy": most / len(questions)}
    rows = found.position_rows()
    assert sum(row["num_questions"] for row in rows) == len(questions)
    weighted = sum(row["num_questions"] * row["accuracy"] for row in rows)
    assert weighted / len(questions) == pytest.approx(metrics["accuracy"])
    words = [data.vocabulary[t] for t in stream.tokens[: int(questions[0, 0]) + 1]]
    assert words.count("<eos>") == 1  # the first question is in the first story
    assert any(row["position"] == questions[0, 0] for row in rows)
    assert metrics["perplexity"] is None and metrics["self_iterations_by_word"] is None


def test_iterations_are_those_of_a_tasks_tokens_and_of_a_word(data: Streams) -> None:
    found = evaluated("implicit", data, all_tokens=True, num_stories=24)
    metrics, stream, reading = found.metrics(), data.splits["test"], found.reading
    iterations, starts = reading.self_iterations, stream.starts[:25]
    assert iterations is not None and len(iterations) == starts[24]
    sums: dict[int, list[int]] = {}
    for first, last in zip(starts, starts[1:], strict=False):
        inside = (stream.questions[:, 0] > first) & (stream.questions[:, 0] < last)
        (task,) = set(stream.questions[inside, 1])
        sums.setdefault(int(task), []).extend(iterations[first:last])
    for task, values in sums.items():
        assert metrics["self_iterations_by_task"][str(task)] == pytest.approx(np.mean(values))
    assert metrics["self_iterations"]["mean"] == pytest.approx(iterations.mean())
    assert metrics["self_iterations"]["p50"] == pytest.approx(np.median(iterations))
    words = metrics["self_iterations_by_word"]
    for word in ("?", "the", "<eos>"):
        own = iterations[stream.tokens[: starts[24]] == data.vocabulary.index(word)]
        assert words[word]["num_tokens"] == len(own)
        assert words[word]["mean"] == pytest.approx(own.mean())
    assert "<pad>" not in words
    assert metrics["perplexity"] == pytest.approx(np.exp(reading.nll.mean()))
    assert metrics["share_converged"] > 0.99


def test_stories_are_shared_out_among_streams() -> None:
    draw = np.random.default_rng(0)
    for num_stories in (3, 4, 17, 50):
        lengths = draw.integers(1, 400, num_stories)
        starts = np.concatenate(([0], lengths.cumsum()[:-1]))
        total = int(lengths.sum())
        for num_streams in (1, 2, 3):
            rows = side_by_side(starts, total, num_streams)
            assert len(rows) == num_streams
            assert [row[0] for row in rows] == sorted({row[0] for row in rows})
            assert rows[0][0] == 0 and rows[-1][1] == total
            assert all(a[1] == b[0] for a, b in zip(rows, rows[1:], strict=False))
            assert all(row[0] in starts for row in rows)
    with pytest.raises(ValueError, match="num_streams = 4 is not allowed; allowed is at most 3"):
        side_by_side(np.arange(3), 9, 4)


def test_a_sweep_reads_whole_sequences_that_begin_with_a_story(data: Streams) -> None:
    parameters = CatbabiSweepParameters(
        length=100, num_sequences=6, batch_size=4, self_iterations=[1, 4], tolerances=[0.1]
    )
    stream = data.splits["test"]
    result = sweep_answers(model_of("implicit"), stream, parameters)
    assert result.num_sequences == 6 and result.length == 100
    with pytest.raises(ValueError, match="num_sequences = 100000 is not allowed; allowed is at"):
        sweep_answers(model_of("implicit"), stream, parameters.replace(num_sequences=100_000))
    with pytest.raises(ValueError, match="length = 3 is not allowed: the 6 sequences"):
        sweep_answers(model_of("implicit"), stream, parameters.replace(length=3))


def test_metrics_are_plain(data: Streams, tmp_path: Path) -> None:
    import json

    for name in ("implicit", "lstm"):
        json.dumps(evaluated(name, data, num_stories=24).metrics(), allow_nan=False)


def test_a_perplexity_beyond_all_numbers_is_none(data: Streams) -> None:
    found = evaluated("lstm", data, all_tokens=True, num_stories=24)
    nll = found.reading.nll
    expected = float(np.exp(nll.mean()))
    assert found.metrics()["perplexity"] == pytest.approx(expected, rel=1e-12)
    for each in (1e4, np.inf, np.nan):
        exploded = dataclasses.replace(found.reading, nll=np.full_like(nll, each))
        assert dataclasses.replace(found, reading=exploded).metrics()["perplexity"] is None
