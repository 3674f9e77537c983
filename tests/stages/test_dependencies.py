"""Each stage of dvc.yaml depends on exactly the code that it imports."""

from pathlib import Path

import grimp
import pytest
import yaml

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
def test_some_output_is_in_the_cache(stage):
    outputs = [*definition(stage).get("outs", []), *definition(stage).get("plots", [])]
    settings = [next(iter(o.values())) if isinstance(o, dict) else {} for o in outputs]
    assert any(each.get("cache", True) for each in settings)
