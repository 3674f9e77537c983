"""A user's mistake is one line on stderr and exit status 2, before torch is imported."""

import importlib
import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from implicit_models.parameters import read_section
from implicit_models.problems.word_problem.data.writing import write_splits
from implicit_models.problems.word_problem.parameters import WordProblemParameters
from implicit_models.tracking.tracker import NullTracker
from stages.common import run_stage
from tests.stages.commands import STAGES

ROOT = Path(__file__).parents[2]
RUN, BASELINE = "s3_implicit_mamba2", "s3_lstm"
BOUNDED, FREE, EXPLICIT = (f"training.train_{kind}" for kind in ("bounded", "free", "baseline"))
EVALUATE = "evaluation.evaluate_benchmarks"
SWEEP_COMPUTE = "evaluation.sweep_test_time_compute"
EVALUATION, SWEEP = "evaluation.word_problem", "sweep.word_problem"

# stage, entry, key to change, new value (None: delete the key), what the message must say
WRONG_PARAMETERS = [
    ("prepare", "s4", None, None, ["s4 is no entry of datasets", "the closest is s3"]),
    ("prepare", "s3", "datasets.s3.group", "S99", ["datasets.s3.group", "S99"]),
    ("prepare", "s3", "datasets.s3.lenght", 3, ["datasets.s3.lenght = 3"]),
    ("prepare", "s3", "datasets.s3.train.num_sequences", 0, ["num_sequences = 0", "at least 1"]),
    (BOUNDED, "s3_implicit", None, None, ["runs.s3_implicit ", f"runs.{RUN}"]),
    (
        BOUNDED,
        RUN,
        f"runs.{RUN}.modle",
        {},
        [f"runs.{RUN}.modle", f"runs.{RUN}.model"],
    ),
    (
        BOUNDED,
        RUN,
        f"runs.{RUN}.bounded",
        None,
        [f"runs.{RUN}.bounded is missing"],
    ),
    (BOUNDED, RUN, f"runs.{RUN}.seed", "one", [f"runs.{RUN}.seed = 'one'", "int"]),
    (BOUNDED, RUN, f"runs.{RUN}.seed", 2**64, [f"runs.{RUN}.seed = 1844", f"below {2**64}"]),
    ("prepare", "s3", "datasets.s3.seed", 2**64, ["datasets.s3.seed = 1844", f"below {2**64}"]),
    (
        BOUNDED,
        RUN,
        f"runs.{RUN}.optimisation.warmup_steps",
        10_000,
        [f"runs.{RUN}.optimisation.warmup_steps = 10000", "at most the training steps"],
    ),
    (
        EXPLICIT,
        BASELINE,
        f"baselines.{BASELINE}.optimisation.warmup_steps",
        10_000,
        [f"baselines.{BASELINE}.optimisation.warmup_steps = 10000", "at most the training steps"],
    ),
    (
        BOUNDED,
        RUN,
        f"runs.{RUN}.bounded.lengths.end",
        13,
        [f"runs.{RUN}.bounded.lengths.end = 13", "at most datasets.s3.train.length, 12"],
    ),
    (
        BOUNDED,
        RUN,
        f"runs.{RUN}.dataset",
        "s5",
        [f"runs.{RUN}.dataset = 's5'", "the closest is s3"],
    ),
    (
        BOUNDED,
        RUN,
        "monitoring.validation_sequences",
        1000,
        ["monitoring.validation_sequences = 1000", "at most", "256"],
    ),
    (
        FREE,
        RUN,
        f"runs.{RUN}.free.tolerance",
        2,
        [f"runs.{RUN}.free.tolerance = 2"],
    ),
    (
        FREE,
        RUN,
        f"runs.{RUN}.free.decay_steps",
        121,
        ["decay_steps is 121", "120"],
    ),
    (
        FREE,
        RUN,
        f"runs.{RUN}.model.implicit",
        False,
        [f"runs.{RUN}.model.implicit = False", "an entry of baselines"],
    ),
    (
        EXPLICIT,
        "s3_mamba2_1_layer",
        "baselines.s3_mamba2_1_layer.model.implicit",
        True,
        ["baselines.s3_mamba2_1_layer.model.implicit = True", "an entry of runs"],
    ),
    (
        EXPLICIT,
        BASELINE,
        f"baselines.{BASELINE}.training.lengths.end",
        99,
        [f"baselines.{BASELINE}.training.lengths.end = 99", "12"],
    ),
    (EXPLICIT, RUN, None, None, [f"{RUN} is no entry of baselines, matched"]),
    (EVALUATE, "s3_lstn", None, None, ["s3_lstn", "closest is s3_lstm"]),
    (
        EVALUATE,
        RUN,
        EVALUATION + ".max_steps",
        0,
        ["evaluation.word_problem.max_steps = 0"],
    ),
    (
        EVALUATE,
        RUN,
        EVALUATION + ".window",
        0,
        ["evaluation.word_problem.window = 0", "at least 1"],
    ),
    (
        EVALUATE,
        RUN,
        EVALUATION + ".lengths",
        [7],
        ["length 7", "[12, 24, 48]"],
    ),
    (
        EVALUATE,
        RUN,
        EVALUATION + ".num_sequences",
        65,
        ["= 65", "at most", "64"],
    ),
    (EVALUATE, RUN, f"baselines.{RUN}", {}, ["both runs and baselines"]),
    (SWEEP_COMPUTE, RUN, SWEEP + ".length", 25, ["length 25"]),
    (
        SWEEP_COMPUTE,
        RUN,
        SWEEP + ".patience",
        0,
        ["sweep.word_problem.patience = 0", "at least 1"],
    ),
    (
        SWEEP_COMPUTE,
        RUN,
        SWEEP + ".tolerance",
        0.1,
        ["sweep.word_problem.tolerance", "tolerances"],
    ),
    ("report", None, "report.threshold", 0.5, ["report.threshold", "report.success_threshold"]),
]


@pytest.fixture(scope="module")
def quick_parameters(tmp_path_factory):
    path = tmp_path_factory.mktemp("quick") / "params.yaml"
    command = [sys.executable, "scripts/compose.py", "quick", "--output", path]
    subprocess.run(command, cwd=ROOT, check=True)
    return OmegaConf.load(path)


@pytest.fixture
def refuse(tmp_path, monkeypatch, capsys, quick_parameters):
    """Run a stage on changed parameters; returns its one line about what is wrong."""
    monkeypatch.chdir(tmp_path)
    parameters = quick_parameters.copy()

    def refuse(stage, *arguments, key=None, value=None):
        if value is not None:
            OmegaConf.update(parameters, key, value, force_add=True)
        elif key is not None:
            parent, _, name = key.rpartition(".")
            del OmegaConf.select(parameters, parent)[name]
        OmegaConf.save(parameters, "params.yaml")
        monkeypatch.setattr(sys, "argv", [stage, *arguments])
        with pytest.raises(SystemExit) as stop:
            run_stage(importlib.import_module(f"stages.{stage}").main, *STAGES[stage])
        assert stop.value.code == 2
        message = capsys.readouterr().err
        assert message.startswith("error: ")
        assert message.count("\n") == 1
        return message

    return refuse


@pytest.mark.parametrize(("stage", "entry", "key", "value", "words"), WRONG_PARAMETERS)
def test_wrong_parameters(refuse, stage, entry, key, value, words):
    message = refuse(stage, *([entry] if entry else []), key=key, value=value)
    for word in words:
        assert word in message


@pytest.mark.parametrize("stage", [stage for stage in STAGES if STAGES[stage]])
def test_missing_argument(refuse, stage):
    message = refuse(stage)
    assert "required: name" in message
    assert f"python -m stages.{stage}" in message


@pytest.mark.parametrize(
    ("stage", "entry"),
    [
        (BOUNDED, RUN),
        (EXPLICIT, BASELINE),
        (EVALUATE, BASELINE),
        (SWEEP_COMPUTE, RUN),
    ],
)
def test_missing_data(refuse, stage, entry):
    assert "data/s3" in refuse(stage, entry)


def test_missing_models_and_results(refuse, quick_parameters):
    OmegaConf.save(quick_parameters, "params.yaml")
    write_splits(read_section("datasets.s3", WordProblemParameters), Path("data/s3"))
    assert f"models/{RUN}/bounded/training_state.safetensors" in refuse(FREE, RUN)
    assert f"models/{RUN}/final" in refuse(EVALUATE, RUN)
    said = refuse("report")
    assert "no entry has all its results in results/runs yet" in said
    assert f"`dvc repro sweep_test_time_compute@{RUN}`" in said


def test_only_the_first_process_of_torchrun_prints_a_mistake(
    refuse, quick_parameters, monkeypatch, capsys, tmp_path
):
    OmegaConf.save(quick_parameters, "params.yaml")
    summary = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(summary))
    monkeypatch.setenv("RANK", "0")
    message = refuse(BOUNDED, RUN)
    assert "data/s3" in message and not summary.exists()

    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(sys, "argv", [BOUNDED, RUN])
    with pytest.raises(SystemExit) as stop:
        run_stage(importlib.import_module("stages.training.train_bounded").main, "runs")
    assert (stop.value.code, capsys.readouterr().err) == (2, "")
    failure = ProcessFailure(local_rank=1, pid=1, exitcode=2, error_file=str(summary))
    assert failure.message == message.strip()
    assert not logging.getLogger("implicit_models").isEnabledFor(logging.INFO)
    assert logging.getLogger("implicit_models").isEnabledFor(logging.WARNING)


def test_diverging_training(refuse, quick_parameters, monkeypatch):
    OmegaConf.save(quick_parameters, "params.yaml")
    write_splits(read_section("datasets.s3", WordProblemParameters), Path("data/s3"))

    def diverge(*_):
        raise FloatingPointError("the loss of step 3 (bounded) is nan")

    monkeypatch.setattr("stages.training.segment.train", diverge)
    monkeypatch.setattr("stages.training.segment.open_run", lambda *_, **__: NullTracker())
    assert "the loss of step 3 (bounded) is nan" in refuse(BOUNDED, RUN)


def test_parameters_are_refused_before_torch_is_imported(tmp_path):
    """In one process for all stages, and none of them may leave torch or MLflow behind."""
    program = """
import importlib, json, sys
for stage, tables in json.loads(sys.argv[1]).items():
    main = importlib.import_module(f"stages.{stage}").main
    sys.argv[1:] = ["nothing"] if tables else []
    try:
        importlib.import_module("stages.common").run_stage(main, *tables)
    except SystemExit as stop:
        assert stop.code == 2, stage
    else:
        raise AssertionError(stage)
assert not {"torch", "mlflow", "matplotlib"} & set(sys.modules), sorted(sys.modules)
"""
    (tmp_path / "params.yaml").write_text("runs: {}\nreport: {wrong: 1}\n")
    stages = {name: tables for name, tables in STAGES.items() if name != "code"}
    subprocess.run(
        [sys.executable, "-c", program, json.dumps(stages)],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        check=True,
    )
