"""The check of a whole preset: what it refuses, and that everything that ships passes it."""

import json
import shutil
import subprocess
import sys
import time

import pytest
import yaml

from implicit_models.parameters.composition import CompositionError, compose
from implicit_models.problems.text import checks as text_checks
from stages.check import check, check_text, main, refuse
from stages.check_memory import main_memory
from stages.common import RefusedError
from tests.repositories import ROOT, presets
from tests.stages.changed_presets import changed, composed
from tests.stages.mistaken_presets import LSTM, MISTAKES, QUICK, RUN, TEXT, WIDE
from tests.stages.tiny import write_stories, write_tasks, write_text


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A repository's folder with conf/, a text, tasks and a model of the hub's downloads."""
    path = tmp_path_factory.mktemp("repository")
    (path / "conf").symlink_to(ROOT / "conf")
    write_text(path / "short")
    write_text(path / "text")
    for file in (path / "text").rglob("*.txt"):
        file.write_text(100 * file.read_text())
    (path / "text" / "broken.json").write_text("{")
    write_tasks(path / "tasks")
    write_stories(path / "en-valid-10k", 40)  # enough for the batches of catbabi_paper
    (path / "gpt2").mkdir()
    (path / "gpt2" / "config.json").write_text(json.dumps(WIDE))
    return path


@pytest.fixture(autouse=True)
def working(folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.delenv("HF_DATASETS_OFFLINE", raising=False)


@pytest.mark.parametrize(("preset", "changes", "words"), MISTAKES)
def test_a_mistake_is_a_line_with_key_and_way_out(preset, changes, words):
    lines = [f.line for f in check_text(changed(preset, changes), "mine") if f.stops]
    assert any(all(word in line for word in words) for line in lines), lines
    assert all("\n" not in line and line.startswith("mine: ") for line in lines)
    assert len(lines) == len(set(lines)) < 12


def test_there_are_forty():
    assert len(MISTAKES) >= 40


@pytest.mark.parametrize("preset", presets())
def test_presets_that_ship_are_right(preset):
    """But for the tokenizer of one, which its own line says how to make, and a disk's room."""
    findings = check(preset)
    assert not [finding.line for finding in findings if finding.level == "error"]
    missing = [finding.line for finding in findings if finding.level == "missing"]
    missing = [line for line in missing if "the disk has" not in line]
    if preset == "text_miniature":
        assert len(missing) == 1 and "train_tokenizer.py" in missing.pop()
    assert not missing


def test_all_mistakes_are_told_at_once():
    wrong = {
        f"{RUN}.free.tolerance": 2,
        f"{RUN}.bounded.num_self_iterations": 0,
        f"{RUN}.seed": "abc",
        f"{LSTM}.dataset": "s4",
        "datasets.s3.group": "A4Z5",
        "evaluation.word_problem.num_mode_sequences": -1,
        "sweep.word_problem.length": "long",
    }
    lines = [finding.line for finding in check_text(changed(QUICK, wrong), "mine")]
    for key in wrong:
        assert any(f"{key} = " in line for line in lines), (key, lines)
    with pytest.raises(RefusedError) as error:
        refuse(check_text(changed(QUICK, wrong), "mine"))
    assert error.value.lines == lines


def test_what_must_fit_together_is_told_at_once():
    wrong = {
        f"{RUN}.bounded.num_training_steps": 2,
        f"{RUN}.free.num_training_steps": 3,
        f"{LSTM}.training.num_training_steps": 4,
    }
    lines = [finding.line for finding in check_text(changed(QUICK, wrong), "mine")]
    for key, name, steps in (
        (f"{RUN}.bounded", "lengths.growth_steps", 2),
        (f"{RUN}.free", "lengths.growth_steps", 3),
        (f"{RUN}.free", "decay_steps", 3),
        (f"{LSTM}.training", "lengths.growth_steps", 4),
        (f"{LSTM}.training", "decay_steps", 4),
    ):
        (line,) = (each for each in lines if f"{key}.{name} is" in each)
        assert f"it must be at most num_training_steps, {steps}: let" in line


def test_what_entries_take_over_from_another_is_told_once():
    entries = [f"runs.a5_implicit_mamba2{seed}" for seed in ("", "_seed_1", "_seed_2")]
    wrong = {f"{entry}.free.phantom_steps": -1 for entry in entries}
    wrong |= {f"{entries[0]}.seed": -2, f"{entries[1]}.seed": -3}  # not the same
    findings = check_text(changed("laptop", wrong), "a=1 b=2")  # as a sweep calls its points
    lines = sorted(each.line.removeprefix("a=1 b=2: ") for each in findings)
    assert [line.split(";")[0] for line in lines] == [
        f"{entries[0]}.free.phantom_steps = -1 is not allowed",
        f"{entries[0]}.seed = -2 is not allowed",
        f"{entries[1]}.seed = -3 is not allowed",
    ]
    assert lines[0].endswith(f"; the same in {entries[1]}, {entries[2]}")
    assert "the same" not in lines[1] + lines[2]
    content = composed("laptop")
    copied = content["runs"]["a5_implicit_mamba2"]
    copied = copied | {"free": copied["free"] | {"phantom_steps": -1}}
    many = content["runs"] | {f"copy_{number}": copied for number in range(12)}
    text = yaml.safe_dump(content | {"runs": many}, sort_keys=False)
    (line,) = (each.line for each in check_text(text, "mine"))
    assert line.endswith(", runs.copy_8, 3 more")


def test_few_stories_of_ones_own_make_few_streams(tmp_path):
    for split, count in (("train", 90), ("valid", 90), ("test", 3)):
        text = "1 Ann went to the hall.\n2 Where is Ann? \thall\t1\n" * count
        (tmp_path / f"qa1_{split}.txt").write_text(text)
    run = "runs.stories_implicit_mamba2"
    own = {"kind": "catbabi", "source": str(tmp_path), "tasks": [1], "sequence_length": 100}
    changes = {"corpora.own": own | {"objective": "answers", "seed": 0}, f"{run}.dataset": "own"}
    changes["monitoring.validation_sequences"] = 8
    lines = [each.line for each in check_text(changed("catbabi_quick", changes), "mine")]
    assert any(
        "evaluation.catbabi.num_streams = 32 is not allowed; allowed is at most the test stories "
        "of corpora.own, 3" in line
        for line in lines
    ), lines


def test_a_preset_is_named_in_either_way_and_once(capsys):
    assert main(["preset=quick", f"{RUN}.seed=1"]) == 0
    assert capsys.readouterr().out.startswith("quick: all is well")
    assert main(["laptop", "preset=quick"]) == 2
    assert "laptop and quick are named" in capsys.readouterr().err
    assert main(["quick.yaml", "preset='quick'"]) == 0
    assert capsys.readouterr().out.startswith("quick: all is well")
    for given, said in (
        ([""], "the name of the preset is empty"),
        (["quick", "laptop"], "'laptop' is no setting (KEY=VALUE, +KEY=VALUE or ~KEY)"),
        (["preset=null"], "there is no preset null"),
        (["quick", "=3"], "'=3' is no setting"),
        (
            ["quick", "a.b=[1,", "2,", "3]", "c.d=4"],
            "'2,' is no setting; the shell splits at spaces: write 'a.b=[1, 2, 3]'\n",
        ),
        (["quick", "a.b=[1,", "2"], "the shell splits at spaces: put a.b=[1,... in quotes\n"),
        (["quick", "quick.yaml"], "'quick.yaml' is no setting (KEY=VALUE, +KEY=VALUE or ~KEY)"),
        (["quick", "runs.x.seed", "=", "1"], "is no setting; write runs.x.seed=VALUE, without sp"),
    ):
        assert main(given) == 2
        assert said in capsys.readouterr().err


def test_what_is_missing_is_no_mistake(capsys):
    nowhere = "corpora.text.source=nowhere"
    assert main(["text_small", nowhere]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("1 missing on this machine; nothing")
    assert main(["text_small", nowhere, "runs.text_implicit_mamba2.seed=-1"]) == 2
    assert "1 mistake, 1 missing on" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        (f"{RUN}.max_steps", f"{RUN}.free.max_steps"),
        (f"{RUN}.num_layers", f"{RUN}.model.num_layers"),
        ("runs.s3_lstm.seed", "baselines.s3_lstm.seed"),
        ("datasets.s3.lengths", "datasets.s3.test.lengths"),
        ("evaluation.lengths", "evaluation.word_problem.lengths"),
        ("evalution.word_problem.lengths", "evaluation.word_problem.lengths"),
        (f"{RUN}.free.max_stepz", f"{RUN}.free.max_steps"),
        ("free.max_steps", f"{RUN}.free.max_steps"),
    ],
)
def test_the_key_that_was_meant(key, meant):
    with pytest.raises(CompositionError, match=f"the closest valid key is {meant} "):
        compose(ROOT, ["preset=quick", f"{key}=1"])


def test_what_cannot_be_composed_is_one_line(capsys):
    assert main(["quik"]) == 2
    assert "there is no preset quik; the closest is quick" in capsys.readouterr().err
    for override, words in (
        (f"{RUN}.free.tolerence=1", f"the closest valid key is {RUN}.free.tolerance"),
        (f"{RUN}.evaluation.lengths=[4]", "none is like it (what docs/parameters.md has"),
        (f"{RUN[:-1]}.free.max_stepz=1", f"the closest valid key is {RUN}.free.max_steps "),
        ("free.max_steps=1", f"the closest valid key is {RUN}.free.max_steps "),
        (f"{RUN}.free.tolerance=[1", "cannot be composed"),
        (f"{RUN}.free.tolerance=[1", "a list is written KEY=[1,2]"),
        ("notes=1", "is added by +notes=VALUE)"),
        (f"{RUN}.seed=${{nope}}", "Interpolation key 'nope' not found"),
    ):
        assert main(["quick", override]) == 2
        said = capsys.readouterr().err.splitlines()
        assert words in said[0] and said[1].startswith("1 mistake;") and len(said) == 2
    with pytest.raises(CompositionError):
        compose(ROOT, ["preset=quick", "nothing"])


def test_a_section_that_is_anothers_is_set_there(capsys):
    run, lstm = "runs.stories_implicit_mamba2", "baselines.stories_lstm"
    assert main(["catbabi_quick", f"{lstm}.optimisation.beta2=0.9"]) == 2
    assert (
        f"{lstm}.optimisation.beta2 is not allowed: {lstm}.optimisation is "
        f"${{{run}.optimisation}}; set {run}.optimisation.beta2, which both have"
    ) in capsys.readouterr().err
    assert main(["catbabi_quick", f"{run}.optimisation.beta2=0.9"]) == 0


def test_by_hand(capsys, folder):
    assert main(["quick"]) == 0
    assert capsys.readouterr().out == (
        "quick: all is well; nothing that can be known before a run speaks against it\n"
    )
    (folder / "params.yaml").write_text(changed(QUICK, {}))
    assert main([]) == 0
    assert main([f"{RUN}.seed=abc"]) == 2
    assert f"error: params.yaml: {RUN}.seed = 'abc' is not allowed" in capsys.readouterr().err
    (folder / "params.yaml").unlink()
    assert main([]) == 2
    assert "go to the repository's folder" in capsys.readouterr().err


def test_torch_is_not_imported():
    code = (
        "import sys; from stages.check import check; assert not check('laptop');"
        "slow = {'torch', 'transformers', 'mlflow', 'pyarrow', 'prefect'} & set(sys.modules);"
        "assert not slow, slow"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_many_points_take_a_moment():
    contents = [changed(QUICK, {f"{RUN}.seed": seed}) for seed in range(5)]
    started = time.process_time()
    assert not [finding for text in contents for finding in check_text(text, "mine")]
    assert time.process_time() - started < 5 * 2.0


def test_a_text_is_counted_once_for_all_models_of_it(monkeypatch):
    counted = []
    count = text_checks.tokens_at_most

    def noted(data):
        counted.append(data)
        return count(data)

    monkeypatch.setattr(text_checks, "tokens_at_most", noted)
    assert len(composed(TEXT)["runs"]) + len(composed(TEXT)["baselines"]) > 1
    assert not [finding for finding in check(TEXT) if finding.stops]
    assert len(counted) == 1


def test_the_disk_is_refused_before_it_is_full(monkeypatch):
    usage = shutil.disk_usage(".")._replace(free=10**9)
    monkeypatch.setattr("stages.check_machine.shutil.disk_usage", lambda _: usage)
    (finding,) = (each for each in check("word_problem_paper") if each.stops)
    assert finding.level == "missing"
    assert "and the disk has 1.0 GB free; make room" in finding.line


def test_what_is_trained_already_needs_no_more_room(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf").symlink_to(ROOT / "conf")
    usage = shutil.disk_usage(".")._replace(free=10**9)
    monkeypatch.setattr("stages.check_machine.shutil.disk_usage", lambda _: usage)
    names = [
        name
        for table in ("runs", "baselines", "matched")
        for name in composed("pile_130m_mamba2")[table]
    ]
    assert any(finding.stops for finding in check("pile_130m_mamba2"))
    for name in names:
        (tmp_path / "models" / name / "final").mkdir(parents=True)
    assert not [finding.line for finding in check("pile_130m_mamba2") if finding.stops]


PAPER = "word_problem_paper"
DEEP = "baselines.a5_m_p50_mamba2_16_layers"


@pytest.fixture
def memory(monkeypatch):
    """Return a function that sets this machine's memory; no other variable counts."""
    for name in ("MICRO_BATCH", "CHECKPOINTING", "TORCHRUN"):
        monkeypatch.delenv(f"IMPLICIT_MODELS_{name}", raising=False)
    monkeypatch.setenv("IMPLICIT_MODELS_DEVICE", "cpu")

    def has(num_bytes: float) -> None:
        for module in ("check_machine", "check_memory"):
            monkeypatch.setattr(f"stages.{module}.main_memory", lambda: int(num_bytes))

    return has


def said_of_memory(preset: str) -> list[str]:
    return [found.line for found in check(preset) if "this machine has" in found.line]


def test_a_step_that_is_too_large_for_the_memory_is_a_warning_with_the_batch_that_fits(
    memory, monkeypatch
):
    memory(25e9)
    (finding,) = check(PAPER)
    assert finding.level == "warning" and not finding.stops
    assert (
        f"{DEEP}: a step of 512 sequences of 256 tokens at once (explicit) takes 60.0 GB at least, "
        "52.0 GB of them kept for the backward pass, and this machine has 25.0 GB; "
        "IMPLICIT_MODELS_MICRO_BATCH=128 makes it fit; "
    ) in finding.line
    monkeypatch.setenv("IMPLICIT_MODELS_MICRO_BATCH", "128")
    assert not check(PAPER)
    monkeypatch.delenv("IMPLICIT_MODELS_MICRO_BATCH")
    memory(100e9)
    assert not check(PAPER)


def test_what_nothing_makes_fit_is_said_and_other_entries_are_counted(memory):
    memory(10e9)
    (line,) = said_of_memory("pile_1.3b_mamba2")
    assert "nothing makes it fit here: `python -m stages.plan` says on how many" in line
    assert "(3 other entries do not fit either)" in line


def test_of_several_processes_the_shares_are_not_known(memory, monkeypatch):
    monkeypatch.setenv("IMPLICIT_MODELS_TORCHRUN", "--nproc-per-node=8")
    memory(25e9)
    assert not said_of_memory("pile_350m_mamba2")
    memory(3e9)
    (line,) = said_of_memory("pile_350m_mamba2")
    assert "weights, gradients and moments of " in line


def test_a_device_that_is_not_here_is_missing(memory, monkeypatch):
    memory(25e9)
    monkeypatch.setenv("IMPLICIT_MODELS_DEVICE", "abacus")
    (finding,) = check(PAPER)
    assert finding.level == "missing" and "IMPLICIT_MODELS_DEVICE is 'abacus'" in finding.line


def test_a_container_has_the_memory_that_it_may_have(monkeypatch, tmp_path):
    limit = tmp_path / "memory.max"
    monkeypatch.setattr("stages.check_memory._LIMIT", limit)
    whole = main_memory()
    limit.write_text("max\n")
    assert main_memory() == whole
    limit.write_text("1000000\n")
    assert main_memory() == 1_000_000


@pytest.mark.parametrize(
    ("file", "line", "words"),
    [
        ("qa1_train.txt", "7 Ann is in the hall.", "qa1_train.txt:1: has the id 7; allowed is 1"),
        ("qa1_valid.txt", "1 Where is Ann? \t\t", "qa1_valid.txt:1: has no answer; allowed is one"),
        ("qa1_test.txt", "1 Where is Ann? \thall\t3", "qa1_test.txt:1: names the supporting fact"),
    ],
)
def test_a_story_that_is_none_is_told_before_the_preparation(tmp_path, file, line, words):
    for split in ("train", "valid", "test"):
        text = "1 Ann went to the hall.\n2 Where is Ann? \thall\t1\n"
        (tmp_path / f"qa1_{split}.txt").write_text(text)
    stories = {"kind": "catbabi", "source": str(tmp_path), "tasks": [1], "sequence_length": 100}
    content = changed("catbabi_quick", {"corpora.mine": stories | {"seed": 0}})
    assert not [each for each in check_text(content, "mine") if each.stops]
    (tmp_path / file).write_text(line + "\n")
    (found,) = (each for each in check_text(content, "mine") if each.stops)
    assert found.level == "missing" and words in found.line
    assert found.line.startswith("mine: corpora.mine.source: ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "defaults: [quick, _self_]\nruns: {s3_implicit_mamba2: {seed: 1}}\n",
            "conf/preset/mine.yaml: its first line must be '# @package _global_'",
        ),
        (
            "# My own.\n# @package _global_\ndefaults: [quick, _self_]\nruns: {}\n",
            "conf/preset/mine.yaml: its first line must be '# @package _global_'",
        ),
        (
            "# @package _global_\ndefaults: [qiuck, _self_]\n",
            "conf/preset/mine.yaml: defaults: there is no preset qiuck; the closest is quick",
        ),
        (
            "# @package _global_\ndefaults: [/shared/word_problems, _self_]\n",
            "conf/preset/mine.yaml: defaults: there is no /shared/word_problems; "
            "the closest is /shared/word_problem (valid: /shared/",
        ),
        (
            "# @package _global_\ndefaults: [quick, _self_]\nruns:\n\ta: 1\n",
            "conf/preset/mine.yaml: line 4, column 1: a tab is not allowed; use spaces",
        ),
    ],
)
def test_a_mistake_in_the_form_of_a_preset_says_where_it_is(tmp_path, text, message):
    shutil.copytree(ROOT / "conf", tmp_path / "conf")
    (tmp_path / "conf" / "preset" / "mine.yaml").write_text(text)
    for name in ("mine", "mine.yaml", "'mine'"):
        with pytest.raises(CompositionError) as raised:
            compose(tmp_path, [f"preset={name}"])
        assert str(raised.value).startswith(message)
    (tmp_path / "conf" / "preset" / "other.yml").write_text(text)
    with pytest.raises(CompositionError, match="other; rename conf/preset/other.yml to other.yaml"):
        compose(tmp_path, ["preset=other"])
    with pytest.raises(CompositionError, match="no preset conf/preset/quick.yaml; .* is quick "):
        compose(tmp_path, ["preset=conf/preset/quick.yaml"])
