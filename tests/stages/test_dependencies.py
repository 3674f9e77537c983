"""Each stage of dvc.yaml depends on the code that can change its results, and on no other."""

import json
import shutil
from pathlib import Path

import grimp
import pytest
import yaml

from implicit_models import code_digest, code_imports
from implicit_models.code_imports import UnreadableCodeError
from implicit_models.parameters import TABLES, read_content
from implicit_models.problems import table as problems
from stages import code_dependencies
from stages.check_entries import SECTIONS
from stages.code_dependencies import REPORT, digests, roots
from tests.repositories import presets

ROOT = Path(__file__).parents[2]
STAGES = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
ROLES = {"prepare": "prepare", "train": "train", "evaluate": "evaluate", "sweep": "sweep"}


@pytest.fixture(scope="module")
def imports():
    return grimp.build_graph(
        "implicit_models", "stages", cache_dir=None, exclude_type_checking_imports=True
    )


def definition(stage: str) -> dict:
    return STAGES[stage].get("do", STAGES[stage])


def module_file(module: str) -> str:
    path = ROOT.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return file.relative_to(ROOT).as_posix()


@pytest.fixture(scope="module")
def content():
    """Return a params.yaml with every table in use and every kind of problem."""
    run = {"dataset": "group", "model": {"family": "mamba2"}}
    text = {"dataset": "corpus", "model": {"family": "llama"}}
    return {
        "datasets": {"group": {"kind": "word_problem"}},
        "corpora": {"corpus": {}},
        "tasks": {"tasks": {}},
        "runs": {"run": run, "text_run": text},
        "baselines": {"baseline": run, "wrong": {"dataset": "nowhere"}},
        "upcycled": {"upcycled": text},
        "matched": {"matched": run},
        "benchmarks": {"benchmark": {}},
        "readings": {"reading": {}},
    }


def test_what_counts_is_what_is_imported(imports, content):
    """Against grimp's graph, which follows no further what is told from the results."""
    excluded = code_dependencies._OF_NO_RESULT
    for path, modules in roots(content).items():
        if path == REPORT:
            continue
        found, waiting = set(), list(modules)
        while waiting:
            module = waiting.pop()
            if module in found or module_file(module).startswith(excluded):
                continue
            found.add(module)
            waiting += imports.find_modules_directly_imported_by(module)
            waiting += [module.rpartition(".")[0]] if "." in module else []
        counted = {each for each in digests(modules) if each.endswith(".py")}
        assert counted == {module_file(each) for each in found}, path


def test_no_result_depends_on_another_kind_of_problem(content):
    for path, modules in roots(content).items():
        if path == REPORT or path.name == "wrong":
            continue
        kinds = {
            file.split("/")[2]
            for file in digests(modules)
            if file.startswith("implicit_models/problems/") and file.count("/") > 2
        }
        text = path.name in ("corpus", "text_run", "upcycled", "reading")
        tasks = path.name in ("tasks", "benchmark")
        assert kinds == {"downstream" if tasks else "text" if text else "word_problem"}, path


def test_no_weight_depends_on_evaluation_tracking_reporting_and_device_tables(content):
    found = roots(content)
    trained = {each for path in found if path.parts[0] == "train" for each in digests(found[path])}
    nowhere = ("evaluation", "reporting", "planning", "tracking", "cost/devices.py")
    for place in (*nowhere, "bars.py", "display.py", "threads.py"):
        assert not any(each.startswith(f"implicit_models/{place}") for each in trained), place
    assert "stages/common.py" in trained and "stages/order.py" not in trained
    assert not any(each.startswith("stages/evaluation") for each in trained)
    tested = {
        each for path in found if path.parts[0] == "evaluate" for each in digests(found[path])
    }
    readers = {each for each in tested if each.endswith("reader.py")}
    assert {Path(each).parent.name for each in readers} == {"families", "lstm", "huggingface"}
    assert not readers & trained
    of_identity = code_digest.code_digests(without=code_digest.only_of_scores())
    assert not {f"implicit_models/{each}" for each in of_identity} & readers


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """Return a function that edits a copy of our code and says which results that changes."""
    for folder in ("implicit_models", "stages"):
        shutil.copytree(
            ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__")
        )
    monkeypatch.setattr(code_dependencies, "ROOT", tmp_path)
    monkeypatch.setattr(code_imports, "ROOT", tmp_path)
    monkeypatch.setattr(code_digest, "_CACHE", tmp_path / "cache.json")

    def all_digests(content):
        forget()
        return {path: digests(found, of_report=path == REPORT) for path, found in content.items()}

    def changed(content, file: str, edit):
        before = all_digests(roots(content))
        text = (tmp_path / file).read_text()
        (tmp_path / file).write_text(edit(text))
        after = all_digests(roots(content))
        (tmp_path / file).write_text(text)
        return {path.as_posix() for path in before if before[path] != after[path]}

    yield changed
    forget()


def forget() -> None:
    """Forget what the files of our code were."""
    for remembered in (
        code_imports._imports,
        code_imports._source_file,
        code_dependencies._digests_in,
    ):
        remembered.cache_clear()


def test_an_edit_changes_the_results_that_it_can_change(copied, content):
    def add(text):
        return text + "\n\nADDED = 1\n"

    library = "implicit_models"
    problem = f"{library}/problems/text/evaluation/perplexity.py"
    assert copied(content, problem, add) == {
        *("evaluate/text_run", "evaluate/upcycled", "evaluate/reading", "evaluate/wrong"),
        *("sweep/text_run", "sweep/upcycled"),
    }
    groups = copied(content, f"{library}/problems/word_problem/data/groups.py", add)
    assert {"prepare/group", "train/run", "train/baseline", "evaluate/matched"} <= groups
    assert not groups & {"prepare/corpus", "train/text_run", "evaluate/reading"}
    trainer = copied(content, f"{library}/training/trainer.py", add)
    assert trainer == {f"train/{name}" for t in TABLES[-6:-2] for name in content.get(t, {})} or {
        each.partition("/")[0] for each in trainer
    } == {"train"}
    for file in ("cost/devices.py", "tracking/courier.py", "planning/plans.py"):
        if (ROOT / library / file).exists():
            assert copied(content, f"{library}/{file}", add) <= {"report"}, file
    assert copied(content, f"{library}/problems/table.py", add) <= {"report"}
    for file in ("__init__.py", "equilibrium/__init__.py", "lazy_names.py"):  # names for users
        assert copied(content, f"{library}/{file}", add) <= {"report"}, file


@pytest.mark.parametrize("wrong", [None, 5, [], {}, "nothing", ["group"]])
def test_an_entry_that_is_none_depends_on_everything(wrong, content):
    """Its own stages say what is wrong with it, and all others go on."""
    right = digests(roots(content)[Path("train", "run")])
    content["runs"]["odd"] = {"dataset": wrong, "model": {"family": wrong}}
    content["runs"]["odder"] = wrong
    content["datasets"]["odd"] = {"kind": wrong}
    found = {path: set(digests(modules)) for path, modules in roots(content).items()}
    for path in (Path("train", "odd"), Path("train", "odder"), Path("prepare", "odd")):
        places = {file.split("/")[2] for file in found[path] if "/problems/" in file}
        assert set(problems.KINDS) <= places
    assert found[Path("train", "run")] == set(right)


def test_comments_docstrings_and_layout_change_nothing(copied, content):
    def reworded(text):
        return '"""Another docstring."""\n\n# and a comment\n' + text.partition('"""\n')[2]

    assert copied(content, "implicit_models/training/trainer.py", reworded) == set()
    assert copied(content, "stages/common.py", reworded) == set()


def test_what_is_half_written_is_named_and_an_editors_lock_is_nothing(copied, content, tmp_path):
    kernels = tmp_path / "implicit_models" / "kernels"
    for suffix in (".py", ".c"):  # as Emacs has them
        (kernels / f".#file{suffix}").symlink_to("me@here.1234:5678")
    assert copied(content, "stages/common.py", str) == set()
    with pytest.raises(UnreadableCodeError, match="stages/common.py is no Python: .*line 1"):
        copied(content, "stages/common.py", lambda text: "def f(:\n" + text)


@pytest.mark.parametrize("stage", STAGES)
def test_stages_of_entries_wait_for_the_code_and_the_names(stage):
    deps, found = definition(stage)["deps"], json.dumps(STAGES[stage])
    assert "$" not in definition(stage)["cmd"]  # no shell reads a name
    assert deps == sorted(deps)
    if stage == "code":
        assert deps == ["implicit_models", "stages"]
        return
    # DVC empties the outputs of a stage before it runs it, and after those that it depends on.
    role = next((role for name, role in ROLES.items() if stage.startswith(name)), "report")
    expected = "code/report" if role == "report" else f"code/{role}/${{key}}"
    assert [each for each in deps if each.startswith("code/")] == [expected]
    assert not any(each.startswith(("implicit_models", "stages")) for each in deps)
    assert ("${key}" in found) == (role != "report")


@pytest.mark.parametrize("preset", presets())
def test_every_entry_of_every_preset_has_its_files(preset, tmp_path, monkeypatch):
    from implicit_models.parameters.composition import compose

    path = tmp_path / "params.yaml"
    path.write_text(compose(ROOT, [f"preset={preset}"]))
    content = read_content(path)
    found = {each.as_posix() for each in roots(content)}
    for stage in STAGES:
        table = STAGES[stage].get("foreach", "").strip("${}")
        for name in content.get(table) or ():
            role = next(role for prefix, role in ROLES.items() if stage.startswith(prefix))
            assert f"{role}/{name}" in found
    assert set(problems.KINDS) == {path.name for path in _folders("problems")}


def _folders(place: str) -> list[Path]:
    folder = ROOT / "implicit_models" / place
    return [each for each in folder.iterdir() if (each / "parameters.py").exists()]


def test_all_tables_have_their_names_checked():
    assert sorted(STAGES["code"]["params"]) == sorted(SECTIONS)  # all that the check reads
    iterated = {STAGES[stage]["foreach"] for stage in STAGES if "foreach" in STAGES[stage]}
    assert iterated == {f"${{{table}}}" for table in TABLES}


@pytest.mark.parametrize("stage", STAGES)
def test_some_output_is_in_the_cache(stage):
    outputs = [*definition(stage).get("outs", []), *definition(stage).get("plots", [])]
    settings = [next(iter(o.values())) if isinstance(o, dict) else {} for o in outputs]
    assert any(each.get("cache", True) for each in settings)


@pytest.mark.parametrize("key", ["objective", "sequence_length"])
def test_a_training_depends_on_how_its_data_are_learned_from(content, key):
    """The files of train and validation, on which stages depend, are the same with any."""
    stories = {"kind": "catbabi", "objective": "answers", "sequence_length": 100}
    run = {"dataset": "stories", "model": {"family": "mamba2"}}
    content = content | {"datasets": content["datasets"] | {"stories": stories}}
    content = content | {"runs": content["runs"] | {"told": run}, "baselines": {"told_too": run}}
    before = code_dependencies.own_settings(content)
    changed = {"objective": "all", "sequence_length": 200}[key]
    stories = stories | {key: changed}
    after = code_dependencies.own_settings(
        content | {"datasets": content["datasets"] | {"stories": stories}}
    )
    trained = {Path("train", "told"), Path("train", "told_too")}
    assert {path for path in after if after[path] != before.get(path)} == trained
    assert set(after) == set(before)
