"""Every preset passes every strict reader."""

import subprocess
import sys
from pathlib import Path

import pytest

from implicit_models.data.parameters import CorpusParameters, TaskFilesParameters
from implicit_models.evaluation.parameters import BenchmarkParameters, ReadingParameters
from implicit_models.parameters import read_names, read_section
from implicit_models.reporting.parameters import ReportParameters
from stages.common import TABLES, find_table, read_dataset, read_entries, run_table
from stages.entries import read_baseline, read_monitoring, read_run
from stages.evaluation_stage import check_test_splits, read_part

ROOT = Path(__file__).parents[2]
PRESETS = sorted(path.stem for path in (ROOT / "conf" / "preset").glob("*.yaml"))
TABLED = {"benchmarks", "corpora", "datasets", "hub_tasks", "readings", "tasks", *TABLES}
SECTIONS = TABLED | {"evaluation", "monitoring", "report", "sweep"}


@pytest.fixture
def compose(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf").symlink_to(ROOT / "conf")

    def compose(preset: str, *overrides: str) -> Path:
        command = [sys.executable, "scripts/compose.py", preset, *overrides]
        path = tmp_path / "params.yaml"
        subprocess.run([*command, "--output", path], cwd=ROOT, check=True)
        return path

    return compose


@pytest.mark.parametrize("preset", PRESETS)
def test_preset_is_valid(preset, compose):
    path = compose(preset)
    found = {line.split(":")[0] for line in path.read_text().splitlines() if line[0].isalpha()}
    assert found == SECTIONS
    read_section("report", ReportParameters)
    names = {table: list(read_entries(table)) for table in TABLES}
    for table in ("baselines", "matched"):
        for name in names[table]:
            read_baseline(table, name)
            Path("models", name, "final").mkdir(parents=True)  # what an upcycled run starts from
    for name in names["runs"] + names["upcycled"]:
        table = run_table(name)
        read_run(table, name)
        check_tests("sweep", table, name)
    for table in TABLES:
        for name in names[table]:
            assert find_table(name, TABLES) == table
            read_monitoring(table, name)
            check_tests("evaluation", table, name)
    for table in ("tasks", "hub_tasks"):
        for name in read_entries(table):
            read_section(f"{table}.{name}", TaskFilesParameters)
    for name in read_entries("benchmarks"):
        read_section(f"benchmarks.{name}", BenchmarkParameters)
    for name in read_entries("readings"):
        read_section(f"readings.{name}", ReadingParameters)


def check_tests(section: str, table: str, name: str) -> None:
    dataset, data = read_dataset(table, name)
    part = read_part(section, data)
    if not isinstance(data, CorpusParameters):
        lengths = part.lengths if section == "evaluation" else [part.length]
        check_test_splits(section, lengths, part.num_sequences, dataset, data)


def test_laptop_is_the_committed_file(compose):
    message = "params.yaml is not conf/preset/laptop.yaml: run `python scripts/compose.py laptop`"
    assert compose("laptop").read_bytes() == (ROOT / "params.yaml").read_bytes(), message


def test_three_seeds_differ_in_the_seed_alone(compose):
    compose("three_seeds", "runs.a5_implicit_mamba2.free.max_steps=9")
    first, *others = (read_run("runs", name) for name in read_names("runs"))
    assert [run.seed for run in (first, *others)] == [0, 1, 2]
    for run in others:
        assert (run.model, run.optimisation, run.bounded) == (
            first.model,
            first.optimisation,
            first.bounded,
        )
        assert run.dataset == first.dataset
        assert run.free == first.free
        assert run.free.max_steps == 9


def test_paper_preset_has_the_papers_sizes(compose):
    compose("word_problem_paper")
    run = read_run("runs", "a5_m_p50_implicit_mamba2")
    assert run.bounded.num_training_steps + run.free.num_training_steps == 16384
    assert (run.model.d_model, run.model.d_state, run.model.expand, run.model.head_dim) == (
        256,
        128,
        4,
        64,
    )
