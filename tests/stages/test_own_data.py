"""Evaluations on a model's own data: what they say they cost, against torch's counter."""

from pathlib import Path
from typing import Any

import pytest

from implicit_models.language_models.serialisation import save_model
from implicit_models.problems.answers import Evaluated
from implicit_models.problems.problem import evaluation_of
from implicit_models.problems.text.data.corpus_writing import write_corpus
from implicit_models.problems.text.data.tokenisation import load_tokenizer
from implicit_models.problems.text.parameters import (
    CorpusParameters,
    HeldOutParameters,
    TextEvaluationParameters,
)
from implicit_models.problems.word_problem.data.writing import write_splits
from implicit_models.problems.word_problem.parameters import (
    SplitParameters,
    TestParameters,
    WordProblemEvaluationParameters,
    WordProblemParameters,
)
from tests.cost.counting import count
from tests.language_models.kinds import model_of

KINDS = ("llama-explicit", "mamba2-implicit")
SEARCH: dict[str, Any] = {
    "window": 32,
    "patience": 2,
    "tolerance": 3e-2,
    "max_steps": 60,
    "damping": 1.0,
}


def model_in(folder: Path, kind: str, vocabulary_size: int) -> Path:
    save_model(model_of(kind, vocab_size=vocabulary_size), folder)
    return folder


def evaluate(kind: str, model: Path, data: Path, parameters: Any) -> Evaluated:
    return evaluation_of(kind).evaluate(model, data, parameters)


def assert_costs(metrics: dict[str, Any], flops: int, num_tokens: int) -> None:
    cost = metrics["cost"]
    assert cost["flops"] == flops
    assert cost["flops_per_token"] == flops / num_tokens
    assert cost["tokens_per_second"] == num_tokens / cost["seconds"]
    assert cost["peak_memory_bytes"] > 0 and "energy_joules" in cost and len(cost) == 6


@pytest.mark.parametrize("kind", KINDS)
def test_costs_on_a_corpus_and_after_an_interruption(kind: str, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    source, data, folder = Path("texts"), Path("data", "texts"), Path("model")
    source.mkdir()
    for number, length in enumerate((150, 7, 61)):
        (source / f"{number}.txt").write_text("once upon a time ".replace("n", str(number)) * 9)
        (source / f"held_{number}.txt").write_text("abcdefg"[number:] * length)
    write_corpus(
        CorpusParameters(
            source=str(source),
            sequence_length=8,
            test=HeldOutParameters(files=("held*",)),
            seed=0,
        ),
        data,
    )
    model_in(folder, kind, 257)
    load_tokenizer("bytes").save(folder)
    parameters = TextEvaluationParameters(
        context_length=100,
        stride=80,
        batch_size=4,
        piece_length=70,
        max_tokens=500,
        lengths=(40, 120),
        num_sequences=2,
        bootstrap_samples=2,
        num_shown_tokens=0,
        **SEARCH,
    )
    found: list[Any] = []
    flops = count(lambda: found.append(evaluate("text", folder, data, parameters)))
    metrics = found[0].metrics
    perplexity = metrics["perplexity"]["perplexity"]
    assert found[0].score == ("perplexity", perplexity, False)
    kept_files = [each for each in Path("checkpoints").rglob("*") if each.is_file()]
    lengths = metrics["length_extrapolation"].values()
    num_read = round(flops / metrics["cost"]["flops_per_token"])
    # Windows overlap: more tokens are read than are scored.
    assert num_read > sum(each["num_tokens"] for each in (metrics["perplexity"], *lengths))
    assert_costs(metrics, flops, num_read)
    # What was kept is not read again, and yet costs what it did.
    assert count(lambda: found.append(evaluate("text", folder, data, parameters))) == 0
    kept = {
        name: found[1].metrics["cost"][name] for name in ("flops", "seconds", "flops_per_token")
    }
    assert kept == {name: metrics["cost"][name] for name in kept}
    found[0].discard()
    assert kept_files and not any(each.exists() for each in kept_files)


@pytest.mark.parametrize("kind", KINDS)
def test_costs_on_a_word_problem(kind: str, tmp_path) -> None:
    data, some = tmp_path / "data", SplitParameters(num_sequences=10, length=6)
    write_splits(
        WordProblemParameters(
            kind="word_problem",
            group="S3",
            seed=0,
            train=some,
            validation=some,
            test=TestParameters(num_sequences=5, lengths=(20, 70)),
        ),
        data,
    )
    parameters = WordProblemEvaluationParameters(
        lengths=(20, 70),
        num_sequences=5,
        batch_size=3,
        num_mode_sequences=0,
        num_past_sequences=0,
        **SEARCH,
    )
    folder, found = model_in(tmp_path / "model", kind, 6), []
    flops = count(
        lambda: found.append(evaluation_of("word_problem").evaluate(folder, data, parameters))
    )
    assert_costs(found[0].metrics, flops, 5 * (20 + 70))
