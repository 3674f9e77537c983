"""A diagnosis is compared with what predictions, searches and plain loops over pairs say."""

import csv
import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from implicit_models.equilibrium.phase import SearchSettings
from implicit_models.evaluation.contraction import token_radii
from implicit_models.evaluation.prediction import predict
from implicit_models.families.building import build
from implicit_models.families.family import initial_memory
from implicit_models.language_models.forward import forward
from implicit_models.language_models.serialisation import save_model
from implicit_models.language_models.source_names import SourceError
from implicit_models.parameters import ParameterError
from implicit_models.parameters.composition import compose
from implicit_models.problems.word_problem import diagnose as command_line
from implicit_models.problems.word_problem.data.groups import multiplication_table
from implicit_models.problems.word_problem.data.sequences import merging_sequences, prefix_products
from implicit_models.problems.word_problem.data.writing import write_splits
from implicit_models.problems.word_problem.evaluation.diagnosis import (
    PER_POSITION,
    diagnose,
    separation,
)
from implicit_models.problems.word_problem.evaluation.interface import evaluate
from implicit_models.problems.word_problem.evaluation.pasts import past_distance
from implicit_models.problems.word_problem.parameters import (
    SplitParameters,
    TestParameters,
    WordProblemEvaluationParameters,
    WordProblemParameters,
)
from tests.language_models.models import (
    EXPLICIT,
    EXPLICIT_LLAMA,
    IMPLICIT,
    IMPLICIT_SLIDING,
    LSTM,
    VOCABULARY,
    small_model,
)
from tests.repositories import ROOT

SEARCH = SearchSettings(tolerance=1e-6, max_steps=200, window=4, patience=3)
OF_A_SEARCH = {"accuracy_in_window", "self_iterations", "residual", "share_converged"}


def _sequences(num_sequences=24, length=7):
    table = multiplication_table(f"Z{VOCABULARY}")
    generator = np.random.default_rng(3)
    inputs = generator.integers(0, len(table), (num_sequences, length), dtype=np.uint8)
    return inputs, prefix_products(table, inputs)


@pytest.mark.parametrize("parameters", [IMPLICIT, IMPLICIT_SLIDING], ids=["mamba2", "sliding"])
def test_an_implicit_model_is_read_as_in_the_sequential_mode(parameters):
    model = small_model(parameters)
    inputs, labels = _sequences()
    found = diagnose(model, inputs, labels, SEARCH, num_radius_sequences=2)
    through = predict(model, inputs, phase=SEARCH.phase(), batch_size=24)
    assert found.accuracy_in_window == pytest.approx((through.labels == labels).mean(0))
    one_by_one = SearchSettings(tolerance=1e-6, max_steps=200, window=1, patience=3).phase()
    expected = predict(model, inputs, phase=one_by_one, batch_size=24)
    assert found.accuracy == pytest.approx((expected.labels == labels).mean(0))
    # There the output takes one evaluation of all tokens, and the last token need not settle for
    # what follows it: it ends at the first residual below the tolerance.
    in_all = found.self_iterations.sum() - (inputs.shape[1] - 1) - (SEARCH.patience - 1)
    assert in_all == pytest.approx(expected.search.self_iterations.mean())
    assert found.share_converged.tolist() == [1.0] * inputs.shape[1]
    residual = expected.search.residual.reshape(inputs.shape)[:, :-1]
    assert found.residual[:-1] == pytest.approx(residual.mean(0), rel=1e-6)
    radii = token_radii(model, inputs[:2], phase=SEARCH.phase(), batch_size=2)
    assert found.spectral_radius == pytest.approx(radii[0].mean(0))


def test_what_a_loose_window_loses_shows_beside_what_single_tokens_keep():
    model = small_model(IMPLICIT)
    inputs, labels = _sequences(256)
    loose = SearchSettings(tolerance=0.9, max_steps=200, window=4, patience=1)
    found = diagnose(model, inputs, labels, loose)
    through = predict(model, inputs, phase=loose.phase(), batch_size=64)
    assert found.accuracy_in_window == pytest.approx((through.labels == labels).mean(0))
    assert found.accuracy_in_window != pytest.approx(found.accuracy)
    whole = SearchSettings(tolerance=1e-6, max_steps=200)
    assert np.isnan(diagnose(model, inputs, labels, whole).accuracy_in_window).all()


@pytest.mark.parametrize("parameters", [EXPLICIT, LSTM], ids=["mamba2", "lstm"])
def test_a_model_without_a_search_has_the_rest(parameters):
    model = small_model(parameters)
    inputs, labels = _sequences()
    found = diagnose(model, inputs, labels, None, num_radius_sequences=2)
    expected = predict(model, inputs, phase=None, batch_size=24)
    assert found.accuracy == pytest.approx((expected.labels == labels).mean(0))
    rows = found.rows()
    assert [row["position"] for row in rows] == [1, 2, 3, 4, 5, 6, 7]
    unknown = OF_A_SEARCH | {"spectral_radius"}
    assert all((row[name] is None) == (name in unknown) for row in rows for name in PER_POSITION)


@pytest.mark.parametrize("parameters", [IMPLICIT, LSTM], ids=["mamba2", "lstm"])
def test_with_all_of_the_carry_zeroed_every_token_is_a_first_one(parameters):
    model = small_model(parameters)
    inputs, labels = _sequences()
    search = SEARCH if parameters is IMPLICIT else None
    names = list(initial_memory(model, 1).tensors())
    found = diagnose(model, inputs, labels, search, zeroed=names)
    alone = predict(model, inputs.reshape(-1, 1), phase=search and search.phase(), batch_size=512)
    right = alone.labels.reshape(labels.shape) == labels
    assert found.accuracy == pytest.approx(right.mean(0))
    assert found.carry_norm.max() == 0.0
    assert np.isnan(found.accuracy_in_window).all()


def test_a_tensor_that_the_carry_has_not_is_refused():
    with pytest.raises(ValueError, match=r"no tensor of the carry is 0\.stat; allowed are 0\."):
        diagnose(small_model(IMPLICIT), *_sequences(), SEARCH, zeroed=["0.stat"])


def test_the_carry_of_an_lstm_is_torchs():
    model = small_model(LSTM)
    inputs, labels = _sequences()
    found = diagnose(model, inputs, labels, None)
    embedded = model.get_input_embeddings()(torch.from_numpy(inputs.astype(np.int64)))
    lstm = next(part for part in model.modules() if isinstance(part, torch.nn.LSTM))
    _, (hidden, cell) = lstm(embedded)
    carries = torch.cat((hidden.transpose(0, 1), cell.transpose(0, 1)), dim=-1).flatten(1)
    norm = torch.linalg.vector_norm(carries, dim=1).mean().item()
    assert found.carry_norm[-1] == pytest.approx(norm)


def test_separation_is_that_of_loops_over_all_pairs():
    draw = np.random.default_rng(0)
    carries, products = draw.normal(size=(14, 5)), draw.integers(0, 4, 14)
    found = separation(torch.from_numpy(carries), torch.from_numpy(products))
    distances = {
        (i, j): float(np.linalg.norm(carries[i] - carries[j]))
        for i, j in itertools.permutations(range(14), 2)
    }
    equal = [d for (i, j), d in distances.items() if products[i] == products[j]]
    unequal = [d for (i, j), d in distances.items() if products[i] != products[j]]
    nearest = {
        i: min((d, j) for (one, j), d in distances.items() if one == i)[1] for i in range(14)
    }
    shared = [i for i in range(14) if (products == products[i]).sum() > 1]
    assert found["distance_equal"] == pytest.approx(np.mean(equal))
    assert found["distance_unequal"] == pytest.approx(np.mean(unequal))
    assert found["nearest_equal"] == np.mean([products[nearest[i]] == products[i] for i in shared])
    assert found["carry_norm"] == pytest.approx(np.linalg.norm(carries, axis=1).mean())


def test_states_that_are_apart_and_states_that_have_merged():
    products = torch.arange(40) % 5
    apart = torch.eye(5, dtype=torch.float64)[products]
    noise = 0.01 * torch.randn(
        40, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    found = separation(apart + noise, products)
    assert found["nearest_equal"] == 1.0
    assert found["distance_equal"] < 0.1 < found["distance_unequal"]
    found = separation(noise, products)
    assert found["nearest_equal"] < 0.5
    assert found["distance_equal"] == pytest.approx(found["distance_unequal"], rel=0.2)
    alone = separation(noise[:2], torch.tensor([0, 1]))
    assert np.isnan(alone["distance_equal"]) and np.isnan(alone["nearest_equal"])


def test_pairs_merge_and_then_read_the_same():
    table = multiplication_table("A4 x M")
    draw = np.random.default_rng(0)
    first, common = draw.integers(48, size=(200, 3)), draw.integers(48, size=(200, 4))
    pairs = merging_sequences(table, first.astype(np.uint8), common.astype(np.uint8))
    assert pairs.shape[1] == 7 and len(pairs) % 2 == 0
    products = prefix_products(table, pairs)
    assert (products[0::2, 2:] == products[1::2, 2:]).all()
    assert (pairs[0::2, 3:] == pairs[1::2, 3:]).all()
    taken = {row.tobytes() for row in first.astype(np.uint8)}
    assert all(row[:3].tobytes() in taken for row in pairs)
    counts = np.bincount(prefix_products(table, first.astype(np.uint8))[:, -1], minlength=48)
    assert len(pairs) == 2 * (counts // 2).sum()
    assert len(merging_sequences(table, first[:1].astype(np.uint8), common[:1])) == 0


@pytest.mark.parametrize("parameters", [IMPLICIT, LSTM], ids=["implicit", "lstm"])
def test_distance_of_pasts_is_that_of_carries_read_in_one_go(parameters):
    model = small_model(parameters)
    table = multiplication_table(f"Z{VOCABULARY}")
    draw = np.random.default_rng(1)
    first, common = (draw.integers(VOCABULARY, size=(24, n), dtype=np.uint8) for n in (4, 3))
    pairs = merging_sequences(table, first, common)
    labels = prefix_products(table, pairs)
    search = SEARCH if parameters is IMPLICIT else None
    found = past_distance(model, pairs, labels, 3, search)
    assert found.num_pairs == len(pairs) // 2
    assert [row["common_tokens"] for row in found.rows()] == [0, 1, 2, 3]
    whole = SearchSettings(tolerance=1e-9, max_steps=500).phase() if search else None
    for count, distance in enumerate(found.distance):
        text = torch.from_numpy(pairs[:, : 4 + count].astype(np.int64))
        with torch.no_grad():
            memory = forward(model, text, whole, initial_memory(model, len(text))).memory
        carries = torch.cat([each.flatten(1) for each in memory.tensors().values()], 1).numpy()
        gaps = np.linalg.norm(carries[:, None] - carries, axis=2)
        products = labels[:, 3 + count]
        unequal = gaps[products[:, None] != products].mean()
        of_pairs = np.mean([gaps[2 * pair, 2 * pair + 1] for pair in range(len(pairs) // 2)])
        assert distance == pytest.approx(of_pairs / unequal, rel=1e-4)


def test_a_state_that_grows_with_the_sequence_is_refused():
    with pytest.raises(SourceError, match="fixed size"):
        diagnose(small_model(EXPLICIT_LLAMA), *_sequences(), None)


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    content = yaml.safe_load(compose(ROOT, ["preset=quick"]))
    Path("params.yaml").write_text(yaml.safe_dump(content))
    for name, parameters in {"s3_implicit_mamba2": IMPLICIT, "s3_lstm": LSTM}.items():
        save_model(build(parameters, 6, 0), Path("models", name, "final"))
    save_model(build(IMPLICIT, VOCABULARY, 0), Path("elsewhere"))
    return tmp_path


def test_a_damaged_model_is_a_line(project):
    weights = Path("models", "s3_lstm", "final", "model.safetensors")
    weights.write_bytes(weights.read_bytes()[:-9])
    command = [sys.executable, "-m", "implicit_models.problems.word_problem.diagnose", "s3_lstm"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert f"error: the weights in {weights.parent} cannot be read" in done.stderr


def _asked(models, dataset=None, **changes):
    asked = {"length": 6, "sequences": 8, "radii": 1, "seed": 0} | changes
    return command_line.main(models, dataset, **asked)


def test_a_table_of_each_model_and_a_picture_of_all(project):
    told = _asked(["s3_implicit_mamba2", "s3_lstm", str(project / "models/s3_lstm/final")])
    lines = told.splitlines()
    assert lines[0] == "s3_implicit_mamba2, 8 sequences"
    assert lines[1].split() == ["position", "1", "2", "3", "4", "5", "6"]
    assert {"accuracy", "spectral radius", "nearest equal"} <= {line[:15].strip() for line in lines}
    folder = project / "results" / "diagnosis"
    with (folder / "s3_lstm.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 6 and rows[0]["residual"] == "" and float(rows[5]["carry_norm"]) > 0
    assert len(list(folder.glob("*_pasts.csv"))) == 3 and len(list(folder.glob("*.csv"))) == 6
    with (folder / "s3_lstm_pasts.csv").open() as file:
        pasts = list(csv.DictReader(file))
    assert [int(row["common_tokens"]) for row in pasts] == list(range(13))  # as trained: 12
    assert "pairs of different pasts with one product" in told
    picture = (folder / "diagnosis.svg").read_text()
    assert all(
        name in picture
        for name in (
            "s3_implicit_mamba2",
            "evaluation's window",
            "norm of the carry",
            "tokens in common",
        )
    )


SHORT = {"length": 3, "sequences": 2}  # exponents take a search to 1e-11 for every token


def test_states_of_different_sizes_have_as_many_exponents_as_they_can(project):
    told = _asked(["s3_lstm", "s3_implicit_mamba2"], exponents=10_000, **SHORT)
    small, large = told.splitlines()[-4:-2]
    assert 1 < len(small.split()) < len(large.split())
    with (project / "results" / "diagnosis" / "exponents.csv").open() as file:
        first, second = csv.DictReader(file)
    assert first.keys() == second.keys() and "" in first.values() and "" not in second.values()


def test_what_is_zeroed_is_zeroed_in_all_that_is_told_and_has_files_of_its_own(project):
    changes = SHORT | {"sequences": 8}  # enough for pairs of pasts
    as_it_is = _asked(["s3_implicit_mamba2"], exponents=2, **changes)
    zeroed = [f"{layer}.{part}" for layer in (0, 1) for part in ("convolution", "state")]
    told = _asked(["s3_implicit_mamba2"], exponents=2, zeroed=zeroed, **changes)
    ending = "".join(f"_without_{name}" for name in zeroed)
    assert told.splitlines()[0] == f"s3_implicit_mamba2{ending}, 8 sequences"
    assert "exponents" in as_it_is and "exponents" not in told and "radius" not in told
    folder = project / "results" / "diagnosis"
    assert len(list(folder.glob(f"*{ending}*"))) == 3
    assert (folder / "s3_implicit_mamba2.csv").exists() and (folder / "diagnosis.svg").exists()
    with (folder / f"s3_implicit_mamba2{ending}_pasts.csv").open() as file:
        assert {row["distance"] for row in csv.DictReader(file)} == {""}  # nothing is carried
    with pytest.raises(ParameterError, match="--zeroed hidden: s3_implicit_mamba2 carries no"):
        _asked(["s3_lstm", "s3_implicit_mamba2"], zeroed=["hidden"])


def test_exponents_are_told_and_written(project):
    told = _asked(["s3_implicit_mamba2", "s3_lstm"], exponents=2, **SHORT)
    lines = told.splitlines()
    heading = lines.index("Lyapunov exponents of the carry, per token, the largest first")
    assert (
        lines[heading + 1].startswith("s3_implicit_mamba2") and len(lines[heading + 2].split()) == 3
    )
    with (project / "results" / "diagnosis" / "exponents.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["model"] for row in rows] == ["s3_implicit_mamba2", "s3_lstm"]
    assert all(float(row["1"]) >= float(row["2"]) for row in rows)


@pytest.mark.parametrize(
    ("models", "dataset", "said"),
    [
        (["s3_lsm"], None, "error: s3_lsm is no entry of params.yaml and no folder of a model; "
                           "the closest entry is s3_lstm"),
        (["s3_gpt2"], None, "error: s3_gpt2 has no model yet, models/s3_gpt2/final is not there"),
        (["elsewhere"], None, "error: --dataset is missing; elsewhere is no entry of params.yaml, "
                              "which would say it; allowed are s3"),
        (["elsewhere"], "s4", "error: s4 is no word problem of params.yaml; allowed are s3"),
        (["elsewhere"], "s3", f"error: elsewhere knows {VOCABULARY} tokens and S3 has 6 elements"),
    ],
)  # fmt: skip
def test_mistakes_are_a_line(project, models, dataset, said):
    command = [sys.executable, "-m", "implicit_models.problems.word_problem.diagnose", *models]
    command += ["--dataset", dataset] if dataset else []
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == 2 and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith(said)
    assert not (project / "results").exists()


@pytest.mark.parametrize(
    ("table", "value", "said"),
    [
        ("datasets", {"s3": "x"}, "datasets.s3 = 'x'"),
        ("baselines", {"s3_lstm": 3}, "baselines.s3_lstm = 3"),
        ("evaluation", [1], "evaluation = [1]"),
    ],
)
def test_parameters_that_are_no_sections_are_refused(project, table, value, said):
    content = yaml.safe_load(Path("params.yaml").read_text())
    Path("params.yaml").write_text(yaml.safe_dump(content | {table: value}))
    with pytest.raises(ParameterError, match=re.escape(f"{said} is not allowed")):
        _asked(["s3_lstm"])


def test_what_is_left_of_pasts_is_told_for_models_with_a_state_of_a_fixed_size(tmp_path):
    parameters = WordProblemParameters(
        kind="word_problem",
        group=f"Z{VOCABULARY}",
        seed=1,
        train=SplitParameters(num_sequences=8, length=5),
        validation=SplitParameters(num_sequences=4, length=5),
        test=TestParameters(num_sequences=8, lengths=(6,)),
    )
    write_splits(parameters, tmp_path / "data")
    asked = WordProblemEvaluationParameters(
        lengths=(6,), num_sequences=4, num_mode_sequences=0, num_past_sequences=40
    )
    for name, of, is_told in (("lstm", LSTM, True), ("llama", EXPLICIT_LLAMA, False)):
        save_model(small_model(of), tmp_path / name)
        found = evaluate(tmp_path / name, tmp_path / "data", asked).metrics["past_distance"]
        assert list(found) == [str(count) for count in range(6)] * is_told
        assert all(distance > 0 for distance in found.values())
        none = evaluate(tmp_path / name, tmp_path / "data", asked.replace(num_past_sequences=0))
        assert none.metrics["past_distance"] == {}


def test_products_that_are_all_absorbed_have_no_distance_and_can_be_written(tmp_path):
    parameters = WordProblemParameters(
        kind="word_problem",
        group="M",
        seed=1,
        train=SplitParameters(num_sequences=8, length=30),
        validation=SplitParameters(num_sequences=4, length=30),
        test=TestParameters(num_sequences=8, lengths=(6,)),
    )
    write_splits(parameters, tmp_path / "data")
    save_model(build(LSTM, 4, 0), tmp_path / "model")
    asked = WordProblemEvaluationParameters(
        lengths=(6,), num_sequences=4, num_mode_sequences=0, num_past_sequences=16
    )
    found = evaluate(tmp_path / "model", tmp_path / "data", asked).metrics
    assert found["past_distance"] == {}
    json.dumps(found, allow_nan=False)
