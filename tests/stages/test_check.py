"""The check of a whole preset: what it refuses, and that everything that ships passes it."""

import copy
import functools
import json
import shutil
import subprocess
import sys
import time

import pytest
import yaml
from tokenizers import Tokenizer, models

from implicit_models.parameters.composition import CompositionError, compose
from implicit_models.problems.text import checks as text_checks
from stages.check import check, check_text, main, refuse
from stages.check_memory import main_memory
from stages.common import RefusedError
from tests.repositories import ROOT, presets
from tests.stages.mistaken_presets import GONE, LSTM, MISTAKES, QUICK, RUN, TEXT, WIDE
from tests.stages.tiny import write_stories, write_tasks, write_text


@functools.cache
def composed(preset: str) -> dict:
    return yaml.safe_load(compose(ROOT, [f"preset={preset}"]))


def changed(preset: str, changes: dict) -> str:
    content = copy.deepcopy(composed(preset))
    for key, value in changes.items():
        *path, last = key.split(".")
        section = functools.reduce(lambda node, name: node[name], path, content)
        if value is GONE:
            del section[last]
        else:
            section[last] = copy.deepcopy(value)
    return yaml.safe_dump(content, sort_keys=False)


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
    write_stories(path / "en-valid-10k")
    (path / "gpt2").mkdir()
    (path / "gpt2" / "config.json").write_text(json.dumps(WIDE))
    return path


@pytest.fixture(autouse=True)
def working(folder, monkeypatch):
    monkeypatch.chdir(folder)


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


def test_what_cannot_be_composed_is_one_line(capsys):
    assert main(["quik"]) == 2
    assert "there is no preset quik; the closest is quick" in capsys.readouterr().err
    for override, words in (
        (f"{RUN}.free.tolerence=1", f"the closest valid key is {RUN}.free.tolerance"),
        (f"{RUN}.free.tolerance=[1", "cannot be composed"),
        ("notes=1", "(a new one is added by +notes=VALUE)"),
        (f"{RUN}.seed=${{nope}}", "Interpolation key 'nope' not found"),
    ):
        assert main(["quick", override]) == 2
        said = capsys.readouterr().err.splitlines()
        assert words in said[0] and said[1].startswith("1 mistake;") and len(said) == 2
    with pytest.raises(CompositionError):
        compose(ROOT, ["preset=quick", "nothing"])


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
        f"{DEEP}: a step of 512 sequences of 256 tokens at once (explicit) takes 60.1 GB at least, "
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


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """Return a function that puts a tokenizer into the hub's cache, under a name."""
    cache = tmp_path / "hub"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    refused = "the hub was asked"
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda *_, **__: pytest.fail(refused))

    def put(name: str, content: str) -> None:
        folder = cache / f"models--{name.replace('/', '--')}"
        snapshot = folder / "snapshots" / "abc"
        snapshot.mkdir(parents=True)
        (folder / "refs").mkdir()
        (folder / "refs" / "main").write_text("abc")
        (snapshot / "tokenizer.json").write_text(content)

    return put


def small_tokenizer(*tokens: str) -> str:
    return Tokenizer(models.WordLevel({each: n for n, each in enumerate(tokens)})).to_str()


def tokenized(name: str) -> list:
    return check_text(changed("text_small", {"corpora.text.tokenizer": name}), "mine")


def test_a_tokenizer_of_the_hub_is_downloaded_which_is_said(hub, monkeypatch):
    (finding,) = tokenized("somebody/words")
    assert not finding.stops and finding.line == (
        "mine: corpora.text.tokenizer = 'somebody/words' is not on this machine yet; it will be "
        "downloaded from the Hugging Face hub"
    )
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    (finding,) = tokenized("somebody/words")
    assert finding.level == "missing"
    assert "and HF_HUB_OFFLINE keeps it from being downloaded; unset that, or" in finding.line


def test_prepared_data_needs_no_tokenizer_of_the_hub(hub, monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    write_text(tmp_path / "text")
    for file in (tmp_path / "text").rglob("*.txt"):
        file.write_text(100 * file.read_text())
    assert [finding.level for finding in tokenized("somebody/words")] == ["missing"]
    (tmp_path / "data" / "text").mkdir(parents=True)
    assert not tokenized("somebody/words")


def test_a_tokenizer_in_the_cache_is_looked_at_as_a_local_one(hub):
    hub("somebody/words", small_tokenizer("a", "<|endoftext|>"))
    hub("somebody/endless", small_tokenizer("a", "b"))
    hub("somebody/broken", "{")
    assert not tokenized("somebody/words")
    for name, words in (
        ("endless", "has no end-of-text token"),
        ("broken", "is not a tokenizer's file"),
    ):
        (finding,) = tokenized(f"somebody/{name}")
        assert finding.level == "missing" and finding.line.startswith(
            "mine: corpora.text.tokenizer"
        )
        assert words in finding.line
    assert not tokenized("somebody/words@main")
    (finding,) = tokenized("somebody/words@another")
    assert "will be downloaded" in finding.line


def test_a_name_that_the_hub_cannot_have_is_told_before_the_preparation():
    (finding,) = tokenized("~/nowhere/tokenizer")
    assert finding.stops and "no such file or folder; allowed is 'bytes'" in finding.line


def test_tokenizers_of_the_hub_that_are_here_are_compared(hub):
    hub("somebody/words", small_tokenizer("a", "<|endoftext|>"))
    hub("somebody/more", small_tokenizer("a", "b", "<|endoftext|>"))
    corpus = composed("text_small")["corpora"]["text"]

    def compared(other: str) -> list[str]:
        changes = {
            "corpora.text.tokenizer": "somebody/words",
            "corpora.other": corpus | {"tokenizer": other},
            "readings": {"read": {"model": "models/text_mamba2/final", "corpus": "other"}},
        }
        found = check_text(changed("text_small", changes), "mine")
        return [each.line for each in found if "has another tokenizer" in each.line]

    assert compared("somebody/more")
    assert not compared("somebody/words") and not compared("somebody/unknown")
