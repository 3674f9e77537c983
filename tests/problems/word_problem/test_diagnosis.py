"""A diagnosis is compared with what predictions, searches and plain loops over pairs say."""

import csv
import itertools
import os
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
from implicit_models.language_models.serialisation import save_model
from implicit_models.language_models.source_names import SourceError
from implicit_models.parameters.composition import compose
from implicit_models.problems.word_problem import diagnose as command_line
from implicit_models.problems.word_problem.data.groups import multiplication_table
from implicit_models.problems.word_problem.data.sequences import prefix_products
from implicit_models.problems.word_problem.evaluation.diagnosis import (
    PER_POSITION,
    diagnose,
    separation,
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
OF_A_SEARCH = {"self_iterations", "residual", "share_converged"}


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
    assert len(list(folder.glob("*.csv"))) == 3
    picture = (folder / "diagnosis.svg").read_text()
    assert all(name in picture for name in ("s3_implicit_mamba2", "norm of the carry"))


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
