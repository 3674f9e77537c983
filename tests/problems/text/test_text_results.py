import json
import re
from pathlib import Path

import numpy as np
import pytest
import yaml

from implicit_models.checksums import SUFFIX
from implicit_models.problems.downstream.report.benchmarks import BenchmarkResults
from implicit_models.problems.problem import results_of
from implicit_models.reporting.files import MissingResultError
from implicit_models.reporting.history import CostToLoss, Series, cost_to_loss, final_loss
from implicit_models.reporting.paper import perplexity_column
from implicit_models.reporting.results import read_results
from tests.reporting import synthetic_text
from tests.reporting.synthetic import seal, tables
from tests.reporting.synthetic_text import (
    BENCHMARKS,
    EXPLICIT,
    IMPLICIT,
    LENGTHS,
    MATCHED,
    text_benchmarks,
    text_parameters,
    write_text_results,
)

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("synthetic")
    write_text_results(root)
    return root / "results" / "runs"


@pytest.fixture(scope="module")
def runs(folder):
    return read_results(folder, tables(text_parameters()), results_of)


def test_all_tables_are_read_in_their_order(runs):
    assert [run.name for run in runs] == [*IMPLICIT, *EXPLICIT, *MATCHED]
    assert [run.kind for run in runs] == ["implicit", "implicit", "explicit", "explicit"]
    assert {run.problem for run in runs} == {"text"}
    assert runs[0].lengths == list(LENGTHS)
    assert runs[-1].test_time_compute is None


def test_perplexity_by_position_holds_the_ranges_of_each_length(runs):
    curve = runs[0].perplexity_by_position[512]
    assert curve.positions.tolist() == [1, 4, 16, 64, 256, 512]
    expected = synthetic_text.perplexity(IMPLICIT[0], curve.positions)
    np.testing.assert_allclose(curve.perplexity, expected)


def test_shown_tokens_keep_line_ends_and_quotes(runs):
    text = "".join(token.text for token in runs[0].shown_tokens)
    assert text.count("\n") == text.count("\r") == 3
    assert '"the worst"' in text
    assert np.isfinite([token.self_iterations for token in runs[0].shown_tokens]).all()
    assert np.isnan([token.self_iterations for token in runs[-1].shown_tokens]).all()


def test_costs_are_those_of_all_phases(runs):
    first = runs[0]
    assert first.training_flops == 1e15
    assert first.num_training_tokens == 30 * 20_480
    assert first.peak_memory_bytes == 900 * 2**20
    assert first.energy_joules == 5000.0
    first.training["train_free"]["energy_joules"] = None
    assert first.energy_joules is None
    first.training["train_free"]["energy_joules"] = 2500.0


def test_the_cost_to_a_loss_is_that_at_its_first_validation_in_all_phases(runs):
    history = runs[0].history
    losses = history["validation_loss"]
    assert final_loss(history) == losses.values[-1]
    for index, step, flops in ((1, 100, 1e14), (-2, 250, 6e14), (-1, 300, 1e15)):
        found = cost_to_loss(history, losses.values[index])
        assert (found.step, found.tokens) == (step, 2048 * step)
        assert found.flops == pytest.approx(flops)
        assert found.seconds == pytest.approx(0.2 * step)  # on from where the free phase began
    assert found.seconds == pytest.approx(runs[0].train_seconds)
    assert cost_to_loss(history, 0.9 * losses.values[-1]) is None
    assert cost_to_loss({}, 9.0) is None
    assert cost_to_loss({"validation_loss": losses}, 9.0) == CostToLoss(
        step=50, tokens=None, flops=None, seconds=None
    )
    unknown = Series(steps=np.array([1.0]), values=np.array([np.nan]))
    assert final_loss({"validation_loss": unknown}) is None


def upcycled(source: str, **model) -> dict:
    """Return parameters in which the second run's training begins from another model's weights."""
    content = text_parameters()
    entry = content["runs"].pop(IMPLICIT[1])
    content["upcycled"] = {
        IMPLICIT[1]: entry
        | {"model": {"family": "upcycled", "implicit": True, "source": source, **model}}
    }
    return content


@pytest.mark.parametrize(
    "source", [f"models/{EXPLICIT[0]}/final", f"./models/{EXPLICIT[0]}/final/"]
)
def test_a_source_among_the_results_is_known_with_its_flops(folder, source):
    runs = read_results(folder, tables(upcycled(source)), results_of)
    assert [run.has_source for run in runs] == [False, True, False, False]
    assert runs[1].source.name == EXPLICIT[0]
    assert runs[1].source_flops == 2.5e14 and runs[0].source_flops == 0.0
    assert runs[1].training_flops == 1e15  # its own


def test_the_source_of_a_source_counts_too(folder):
    content = upcycled(f"models/{MATCHED[0]}/final")
    chained = {"family": "huggingface", "source": f"models/{EXPLICIT[0]}/final"}
    content["matched"][MATCHED[0]]["model"] = chained | {"pretrained": True}
    assert read_results(folder, tables(content), results_of)[1].source_flops == 1.02e15 + 2.5e14
    content["matched"][MATCHED[0]]["model"] = chained  # its configuration alone
    assert read_results(folder, tables(content), results_of)[1].source_flops == 1.02e15
    content["matched"][MATCHED[0]]["model"] = chained | {"pretrained": True, "source": "gpt2"}
    assert read_results(folder, tables(content), results_of)[1].source_flops is None


@pytest.mark.parametrize("source", ["gpt2", "models/elsewhere/final", "conf/models/llama_tiny"])
def test_a_source_from_elsewhere_is_not_known(folder, source):
    run = read_results(folder, tables(upcycled(source)), results_of)[1]
    assert run.has_source and run.source is None and run.source_flops is None


def test_a_benchmark_belongs_to_the_entry_whose_model_it_names(folder):
    found = BenchmarkResults.read(folder, text_benchmarks())
    assert [benchmark.name for benchmark in found] == list(BENCHMARKS)
    assert [benchmark.trained_entry for benchmark in found] == [IMPLICIT[0], None]
    assert [benchmark.label for benchmark in found] == [IMPLICIT[0], "conf/models/llama_tiny"]
    assert BenchmarkResults.read(folder, {}) == []


@pytest.mark.parametrize("name", [IMPLICIT[0], EXPLICIT[0], MATCHED[0], "downstream_llama"])
def test_a_missing_file_is_named_with_the_stage_of_dvc_that_writes_it(tmp_path, name):
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    write_text_results(tmp_path)
    content = text_parameters()
    table = next(t for t in content if t != "corpora" and name in content[t])
    directory = tmp_path / "results" / "runs"
    for path in (directory / name).iterdir():
        if path.name == "tokens.csv" or path.name.endswith(SUFFIX):
            continue
        text = path.read_bytes()
        path.unlink()
        with pytest.raises(MissingResultError, match=f"{name}/{path.name} does not exist") as error:
            read_results(directory, tables(content), results_of)
            BenchmarkResults.read(directory, text_benchmarks())
        path.write_bytes(text)
        stage = re.search(rf"`dvc repro (\w+)@{name}`$", str(error.value))
        assert stage, error.value
        assert stages[stage[1]]["foreach"] == f"${{{table}}}"


def test_an_evaluation_may_show_no_tokens(tmp_path):
    write_text_results(tmp_path)
    directory = tmp_path / "results" / "runs"
    path = directory / IMPLICIT[0] / "evaluation.json"
    evaluation = json.loads(path.read_text())
    del evaluation["tokens"]
    path.write_text(json.dumps(evaluation))
    seal(path.parent)
    first, second, *_ = read_results(directory, tables(text_parameters()), results_of)
    assert (len(first.shown_tokens), len(second.shown_tokens) > 0) == (0, True)


@pytest.mark.parametrize(
    ("corpus", "column"),
    [
        ("d_pile", "D-Pile ppl"),
        ("D-Pile", "D-Pile ppl"),
        ("pile_deduplicated", "D-Pile ppl"),
        ("the_deduplicated_pile_small", "D-Pile ppl"),
        ("dpile", "D-Pile ppl"),
        ("pile", None),
        ("compiled_dedup", None),
        ("wild_pile", None),
        ("novels", None),
    ],
)
def test_only_a_deduplicated_pile_fills_the_papers_column(corpus, column):
    assert perplexity_column(corpus) == column
