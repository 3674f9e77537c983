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


def places(modules: set[str]) -> dict[str, set[str]]:
    """Files of stages and sub-packages of the library, and the files of these that are imported."""
    found: dict[str, set[str]] = {}
    for module in modules:
        parts = module.split(".")
        if len(parts) > 1:  # the packages' own __init__ are empty
            place = "/".join(parts[:2])
            place += "" if (ROOT / place).is_dir() else ".py"
            found.setdefault(place, set()).add("/".join(parts) + ".py")
    return found


@pytest.mark.parametrize("stage", STAGES)
def test_dependencies_are_the_imports(stage, imports):
    """A sub-package as a whole, or exactly those of its files that are imported."""
    module = definition(stage)["cmd"].split()[2]
    expected = places(imports.find_upstream_modules(module) | {module})
    deps = definition(stage)["deps"]
    assert deps == sorted(deps)
    code = {each for each in deps if each.startswith(("implicit_models", "stages"))}
    for place, files in expected.items():
        found = {each for each in code if each == place or each.startswith(f"{place}/")}
        assert found == {place} or (found == files and len(files) < 3), place
        code -= found
    assert not code


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
