"""Every preset passes every strict reader."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from implicit_models.cost.flops import configuration_flops
from implicit_models.families.building import configuration
from implicit_models.families.sizes import SIZES, VOCABULARY, count_parameters, from_size
from implicit_models.parameters import read_names, read_section
from implicit_models.parameters.composition import compose as compose_parameters
from implicit_models.problems import table as problems
from implicit_models.problems.problem import parameters_of
from implicit_models.reporting.parameters import ReportParameters
from implicit_models.training.curriculum import bounded_segment, free_segment
from scripts import pile_presets
from stages.checked_entries import read_baseline, read_monitoring, read_run
from stages.code_dependencies import own_settings, roots
from stages.common import (
    TABLES,
    find_table,
    read_data,
    read_dataset,
    read_entries,
    read_tests,
    run_table,
)
from tests.repositories import presets

ROOT = Path(__file__).parents[2]
PRESETS = presets()
TABLED = {*problems.TESTED_APART, *problems.TABLES, *TABLES}
SECTIONS = TABLED | {"evaluation", "monitoring", "report", "sweep"}


@pytest.fixture
def compose(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf").symlink_to(ROOT / "conf")

    def composed(preset: str, *overrides: str) -> Path:
        path = tmp_path / "params.yaml"
        path.write_text(compose_parameters(ROOT, [f"preset={preset}", *overrides]))
        return path

    return composed


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
    for table in problems.TABLES:
        for name in read_entries(table):
            read_data(table, name)
    for table, kind in problems.TESTED_APART.items():
        for name in read_entries(table):
            read_section(f"{table}.{name}", parameters_of(kind).ENTRIES[table])


def check_tests(section: str, table: str, name: str) -> None:
    data = read_dataset(table, name)
    problem = parameters_of(data.kind)
    check = {"evaluation": problem.check_evaluation, "sweep": problem.check_sweep}[section]
    check(data.key, data.parameters, read_tests(section, table, name, data))


def test_laptop_is_the_committed_file(compose):
    message = "params.yaml is not conf/preset/laptop.yaml: run `python scripts/compose.py laptop`"
    if subprocess.check_output(["git", "ls-files", "dvc.lock"], cwd=ROOT):
        pytest.skip("params.yaml is that of a run that its user has committed")
    in_git = subprocess.check_output(["git", "show", ":params.yaml"], cwd=ROOT)  # staged, or HEAD's
    # `dvc exp run -S preset=...` leaves another one in the working tree.
    assert compose("laptop").read_bytes() in (in_git, (ROOT / "params.yaml").read_bytes()), message


FIRST = {
    "laptop": "a5_implicit_mamba2",
    "quick": "s3_implicit_mamba2",
    "text_small": "text_implicit_mamba2",
    "text_miniature": "mini_mamba2_24_4",
    "word_problem_paper": "a5_m_p50_implicit_mamba2",
    "mixtures_paper": "a5_m_p50_implicit_mamba2",
    "layers_paper": "s5_implicit_mamba2",
    "bounded_share_paper": "pile_implicit_mamba2_130m",
    "pile_130m_mamba2": "pile_implicit_mamba2_130m",
}


@pytest.mark.parametrize("preset", FIRST)
def test_all_models_follow_the_run_that_they_are_compared_with(preset, compose):
    run = f"runs.{FIRST[preset]}"
    changes = {"model.d_model": 128, "model.num_layers": 3, "optimisation.learning_rate": 0.0007}
    before = yaml.safe_load(compose(preset).read_text())
    after = yaml.safe_load(
        compose(preset, *(f"{run}.{key}={value}" for key, value in changes.items())).read_text()
    )
    family = before["runs"][FIRST[preset]]["model"]["family"]
    for table in TABLES:
        for entry in after[table].values():
            assert entry["optimisation"]["learning_rate"] == 0.0007
            if entry["model"]["family"] == family:
                assert entry["model"]["d_model"] == 128
            if table == "matched" and entry["match"]["run"] == FIRST[preset]:
                assert entry["model"]["num_layers"] == 3


def test_a_baseline_is_changed_alone(compose):
    before = yaml.safe_load(compose("text_small").read_text())
    settings = ("optimisation.learning_rate=0.5", "model.d_model=64")
    after = yaml.safe_load(
        compose("text_small", *(f"baselines.text_mamba2.{each}" for each in settings)).read_text()
    )
    assert after["baselines"]["text_mamba2"]["optimisation"]["learning_rate"] == 0.5
    assert after["baselines"]["text_mamba2"]["model"]["d_model"] == 64
    before.pop("baselines"), after.pop("baselines")
    assert after == before


def test_ten_seeds_differ_in_the_seed_alone(compose):
    compose("ten_seeds", "runs.a5_implicit_mamba2.free.max_steps=9")
    first, *others = (read_run("runs", name) for name in read_names("runs"))
    assert [run.seed for run in (first, *others)] == list(range(10))
    for run in others:
        assert (run.model, run.optimisation, run.bounded) == (
            first.model,
            first.optimisation,
            first.bounded,
        )
        assert run.dataset == first.dataset
        assert run.free == first.free
        assert run.free.max_steps == 9


@pytest.mark.parametrize("preset", ["word_problem_paper", "mixtures_paper", "layers_paper"])
def test_word_problems_have_the_papers_sizes(preset, compose):
    compose(preset)
    for name in read_names("runs"):
        run = read_run("runs", name)
        assert run.bounded.num_training_steps + run.free.num_training_steps == 16384
        optimisation = run.optimisation
        assert (optimisation.batch_size, optimisation.learning_rate) == (512, 1e-3)
        assert (optimisation.beta2, optimisation.weight_decay) == (0.95, 0.0)
        free = run.free
        fewer = re.search(r"_(\d+)_steps$", name)  # the paper's other numbers of iterations
        assert free.max_steps == (int(fewer[1]) if fewer else 32)
        assert (free.tolerance, free.phantom_steps) == (0.05, 4)
        assert (run.model.num_layers, run.model.d_model) == (1, 256)
        if run.model.family == "mamba2":
            assert (run.model.d_state, run.model.expand, run.model.head_dim) == (128, 4, 64)
            assert run.bounded.num_training_steps == 4000
            assert (run.bounded.num_self_iterations, run.bounded.phantom_steps) == (4, None)
    for name in read_names("baselines"):
        assert read_baseline("baselines", name).training.num_training_steps == 16384


@pytest.mark.parametrize("preset", ["word_problem_paper", "mixtures_paper"])
def test_mixtures_are_searched_as_far_as_in_the_paper(preset, compose):
    compose(preset)
    for name in read_names("runs"):
        data = read_dataset("runs", name)
        evaluation, sweep = (
            read_tests(section, "runs", name, data) for section in ("evaluation", "sweep")
        )
        assert (evaluation.max_steps, sweep.max_steps, max(sweep.self_iterations)) == (2048,) * 3
        assert (evaluation.lengths, evaluation.num_sequences) == ((256, 1024), 4096)


def test_mixtures_are_the_papers_seven(compose):
    compose("mixtures_paper")
    found = {name: read_dataset("runs", name).parameters for name in read_names("runs")}
    easy = sorted({data.identity_probability for data in found.values()})
    assert easy == [0, 0.5, 0.75, 0.9, 0.95, 0.98, 1]
    fewer = {name for name in found if name.endswith("_steps")}
    assert fewer == {f"a5_m_p90_implicit_mamba2_{steps}_steps" for steps in (2, 4, 8, 16)}
    assert len(found) == len(easy) + len(fewer)
    for name, data in found.items():
        assert data.train.model_dump() == {"num_sequences": 8388608, "length": 256}
        assert (data.test.num_sequences, data.test.lengths) == (4096, (256, 1024))
        assert data.tested_probabilities == (0.5, 0.9)
        assert f"_p{round(100 * data.identity_probability):02}_" in name


def test_layers_are_of_both_families_and_learn_32_tokens(compose):
    compose("layers_paper")
    data = read_dataset("runs", "s5_implicit_mamba2").parameters
    assert (data.group, data.train.length, max(data.test.lengths)) == ("S5", 32, 128)
    runs = [read_run("runs", name) for name in read_names("runs")]
    assert [(run.model.family, run.model.num_layers) for run in runs] == [
        ("mamba2", 1),
        ("llama", 1),
    ]
    models = [read_baseline("baselines", name).model for name in read_names("baselines")]
    assert {(model.family, model.num_layers) for model in models} == {
        (family, layers) for family in ("mamba2", "llama") for layers in (1, 2, 4, 8, 16)
    }


def test_shares_of_the_bounded_phase_are_the_papers_and_differ_in_nothing_else(compose):
    compose("bounded_share_paper")
    names = [name for name in read_names("runs") if not name.endswith("_4_1")]
    runs = [read_run("runs", name) for name in names]
    assert sorted(run.bounded.share for run in runs) == [0.7, 0.8, 0.9]
    alike = {run.model_copy(update={"bounded": None}).model_dump_json() for run in runs}
    assert len(alike) == 1
    bounded = {run.bounded.model_copy(update={"share": 0}).model_dump_json() for run in runs}
    assert len(bounded) == 1


PILE = [preset for preset in PRESETS if preset.startswith("pile_")]
PAPERS = [preset for preset in PILE if "-".join(reversed(preset.split("_")[1:])) in SIZES]
PEAK_RATES = {"130m": 3e-3, "350m": 1.5e-3, "760m": 1.25e-3, "1.3b": 1e-3}
SEARCHES = {"mamba2": 24, "llama": 32}


@pytest.mark.parametrize("preset", PAPERS)
def test_pile_presets_are_the_papers(preset, compose):
    compose(preset)
    _, size, family = preset.split("_")
    run, four_and_one = (read_run("runs", name) for name in read_names("runs"))
    (baseline,) = (read_baseline("baselines", name) for name in read_names("baselines"))
    (matched,) = (read_baseline("matched", name) for name in read_names("matched"))
    for entry in (run, four_and_one, baseline, matched):
        expected = from_size(
            f"{family}-{size}",
            implicit=entry.model.implicit,
            weight_normalisation=entry.model.implicit,
        )
        found = configuration(entry.model, VOCABULARY, "next_token")
        assert count_parameters(found) == count_parameters(expected)
        assert configuration_flops(found) == configuration_flops(expected)
        if family == "llama":
            assert found.rope_parameters["rope_theta"] == expected.default_theta

        optimisation = entry.optimisation
        assert optimisation.learning_rate == PEAK_RATES[size]
        assert optimisation.sequences_a_step(2048) == 512
        assert (optimisation.beta1, optimisation.beta2) == (0.9, 0.95)
        assert (optimisation.weight_decay, optimisation.final_learning_rate) == (0.1, 1e-5)
        assert optimisation.precision == "bfloat16"
        data = read_dataset("runs", read_names("runs")[0]).parameters
        assert (data.sequence_length, data.test.share) == (2048, 0.001)

    steps = run.bounded.steps + run.free_steps
    assert (
        steps
        == baseline.training.num_training_steps
        == four_and_one.bounded.steps + (four_and_one.free_steps)
    )
    assert abs(steps * 2**20 - 207e9) < 2**20  # nearer than one step
    assert run.bounded.share == 0.8
    assert matched.match.run == read_names("runs")[0] and matched.match.vary == "steps"

    bounded = (run.bounded.num_self_iterations, run.bounded.phantom_steps)
    assert bounded == (4, 1) and run.bounded == four_and_one.bounded
    assert (run.free.max_steps, run.free.phantom_steps) == (SEARCHES[family], 4)
    assert run.free.tolerance == 0.05
    # Both phases of the other run do the same thing.
    phases = [bounded_segment(four_and_one.bounded), free_segment(four_and_one.free, 0, 1)]
    first, second = (segment.phase for segment in phases)
    assert first.gradient == second.gradient and first.solver == second.solver
    assert first.stopping.max_steps == second.stopping.max_steps
    assert second.stopping.tolerance < 1e-9
    # Tests search whole pieces, to four times a training step's evaluations.
    own = [each.evaluation["max_steps"] for each in (run, four_and_one)]
    assert own == [4 * SEARCHES[family], 16]
    content = yaml.safe_load(Path("params.yaml").read_text())
    assert content["evaluation"]["text"]["window"] == "whole"
    benchmarks = content["benchmarks"].values()
    assert [each.get("max_steps") for each in benchmarks][:2] == own
    assert {each["window"] for each in benchmarks} == {"whole"}


@pytest.mark.parametrize("share", [0.7, 0.9])
def test_another_share_of_a_pile_presets_steps_is_bounded(share, compose):
    name = "pile_implicit_mamba2_130m"
    compose("pile_130m_mamba2", f"runs.{name}.bounded.share={share}")
    run = read_run("runs", name)
    steps = run.bounded.steps + run.free_steps
    assert run.bounded.steps == round(share * steps)
    assert steps * run.optimisation.batch_tokens == pytest.approx(207e9, rel=1e-5)


def test_there_is_a_pile_preset_of_every_size():
    assert {"-".join(reversed(preset.split("_")[1:])) for preset in PAPERS} == set(SIZES)


def test_pile_presets_are_what_their_script_writes():
    conf = ROOT / "conf"
    files = [*conf.glob("preset/pile_*"), *conf.glob("shared/pile_models_*")]
    found = {file.relative_to(conf).as_posix(): file.read_text() for file in files}
    message = "edit conf/templates instead, and run `python scripts/pile_presets.py`"
    assert found == pile_presets.contents(), message


def test_parameters_are_of_all_sizes_and_trained_in_the_papers_three_ways(compose):
    compose("parameters_paper")
    entries = [read_run("runs", name) for name in read_names("runs")]
    entries += [read_baseline("baselines", name) for name in read_names("baselines")]
    found = {
        (count_parameters(configuration(each.model, VOCABULARY, "next_token")), each.iteration_cap)
        for each in entries
    }
    assert len(found) == len(entries)
    assert found == {
        (
            count_parameters(
                from_size(size, implicit=is_implicit, weight_normalisation=is_implicit)
            ),
            cap,
        )
        for size in SIZES
        for is_implicit, cap in (
            (False, None),
            (True, 4 + 1),
            (True, SEARCHES[size.split("-")[0]] + 4),
        )
    }


@pytest.mark.parametrize(
    ("preset", "models", "steps"),
    [
        ("downstream_compute", ["text_implicit_mamba2"], [1, 2, 4, 8, 16, 32]),
        (
            "test_time_compute_paper",
            ["pile_implicit_mamba2_1_3b", "pile_implicit_mamba2_1_3b_4_1"],
            [4, 8, 16, 24, 48, 4 * SEARCHES["mamba2"]],
        ),
    ],
)
def test_downstream_tasks_are_searched_in_ways_that_differ_in_the_steps_alone(
    preset, models, steps, compose
):
    found = yaml.safe_load(compose(preset).read_text())["benchmarks"].values()
    for model in models:
        whole = [
            each
            for each in found
            if each["model"] == f"models/{model}/final" and each["window"] == "whole"
        ]
        assert sorted(each["max_steps"] for each in whole) == steps
        alike = {tuple(sorted((each | {"max_steps": 0}).items(), key=str)) for each in whole}
        assert len(alike) == 1


SHARING = {
    "parameters_paper": PAPERS,
    "test_time_compute_paper": ["pile_1.3b_mamba2"],
    "bounded_share_paper": ["pile_130m_mamba2"],
    "mixtures_paper": ["word_problem_paper"],
}


@pytest.mark.parametrize(("preset", "other"), [(a, b) for a, of in SHARING.items() for b in of])
def test_what_another_preset_has_trained_is_not_trained_again(preset, other):
    """All that DVC compares of a training: its data, its parameters, and which code it runs."""
    first, second = (
        yaml.safe_load(compose_parameters(ROOT, [f"preset={name}"])) for name in (preset, other)
    )
    assert first["monitoring"] == second["monitoring"]
    shared = [(table, name) for table in TABLES for name in second[table] if name in first[table]]
    assert {name for table, name in shared if table in ("runs", "baselines")} == {
        *second["runs"],
        *second["baselines"],
    }
    for table, name in shared:
        assert first[table][name] == second[table][name]
    for table in problems.TABLES:
        for name in second[table]:
            if table != "hub_tasks":
                assert first[table][name] == second[table][name]
    for _, name in shared:
        path = Path("train", name)
        assert roots(first)[path] == roots(second)[path]
        assert own_settings(first).get(path) == own_settings(second).get(path)


def test_a_line_of_the_table_adds_a_size(tmp_path):
    shutil.copytree(ROOT / "conf", tmp_path / "conf")
    with (tmp_path / "conf" / "templates" / "pile_sizes.yaml").open("a") as table:
        llama = "{num_layers: 32, d_model: 2560, num_heads: 32, d_feed_forward: 6848}"
        mamba2 = "{num_layers: 64, d_model: 2560}"
        table.write(f"  2.7b: {{learning_rate: 0.0008, llama: {llama}, mamba2: {mamba2}}}\n")
    pile_presets.write(tmp_path / "conf")
    for family, num_layers in (("llama", 32), ("mamba2", 64)):
        made = yaml.safe_load(compose_parameters(tmp_path, [f"preset=pile_2.7b_{family}"]))
        models = [entry["model"] for table in TABLES for entry in made[table].values()]
        assert {(model["family"], model["num_layers"]) for model in models} == {
            (family, num_layers)
        }
        assert len(models) == 4
        assert f"pile_implicit_{family}_2_7b_4_1" in made["runs"]
