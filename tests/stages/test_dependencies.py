"""Each stage of dvc.yaml depends on exactly the code that it imports."""

import json
from pathlib import Path

import grimp
import pytest
import yaml

from implicit_models.parameters import TABLES

ROOT = Path(__file__).parents[2]
STAGES = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]


@pytest.fixture(scope="module")
def imports():
    return grimp.build_graph("implicit_models", "stages", cache_dir=None)


def definition(stage: str) -> dict:
    return STAGES[stage].get("do", STAGES[stage])


def dependency(module: str) -> str | None:
    """The file of a stage or the sub-package of the library, as a dependency in dvc.yaml."""
    parts = module.split(".")
    if len(parts) == 1:
        return None  # the packages' own __init__, which are empty
    if parts[0] == "stages":
        return f"stages/{parts[1]}.py"
    folder = ROOT / parts[0] / parts[1]
    return f"{parts[0]}/{parts[1]}" + ("" if folder.is_dir() else ".py")


@pytest.mark.parametrize("stage", STAGES)
def test_dependencies_are_the_imports(stage, imports):
    module = definition(stage)["cmd"].split()[2]
    modules = imports.find_upstream_modules(module) | {module}
    expected = {dependency(each) for each in modules} - {None}
    found = definition(stage)["deps"]
    assert found == sorted(found)
    assert {d for d in found if d.startswith(("implicit_models", "stages"))} == expected


@pytest.mark.parametrize("stage", STAGES)
def test_names_are_checked_first_and_read_by_no_shell(stage):
    deps, found = definition(stage)["deps"], json.dumps(STAGES[stage])
    assert "$" not in definition(stage)["cmd"]
    # DVC empties the outputs of a stage before it runs it, and after those that it depends on.
    assert "${key}" not in found or "data/names.checked" in deps


def test_all_tables_have_their_names_checked():
    assert sorted(STAGES["check_names"]["params"]) == sorted(TABLES)
    iterated = {STAGES[stage]["foreach"] for stage in STAGES if "foreach" in STAGES[stage]}
    assert iterated == {f"${{{table}}}" for table in TABLES}


@pytest.mark.parametrize("stage", STAGES)
def test_some_output_is_in_the_cache(stage):
    outputs = [*definition(stage).get("outs", []), *definition(stage).get("plots", [])]
    settings = [next(iter(o.values())) if isinstance(o, dict) else {} for o in outputs]
    assert any(each.get("cache", True) for each in settings)
