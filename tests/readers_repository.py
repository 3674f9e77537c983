"""A repository as a reader of the documentation has it: with the presets and files it tells of."""

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import yaml
from transformers import GPT2Config

from implicit_models.parameters.composition import compose
from tests.markdown import Block, all_blocks
from tests.repositories import ROOT
from tests.stages.tiny import write_stories, write_tasks

PACKAGE = "# @package _global_\n"
# Presets of what has to be written first: their name, and the test that writes it.
ELSEWHERE = {"majority": "tests/problems/test_new_problem.py"}


def preset_blocks() -> dict[str, Block]:
    """Return the blocks that are whole presets, by the names that the pages give them."""
    return {_name(block): block for block in all_blocks("yaml") if block.text.startswith(PACKAGE)}


def _name(block: Block) -> str:
    """Return the one in the block, or else the last one in front of it."""
    pattern = r"conf/preset/(\w+)\.yaml"
    named = re.findall(pattern, block.text) or re.findall(pattern, block.before)[-1:]
    assert named, f"{block.page} does not say what this preset is called:\n{block.text}"
    return named[0]


def make_repository(folder: Path) -> Path:
    """Make one, in which every text, data set and model that the pages name is there."""
    for name in ("conf", "scripts", "notebooks"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "dvc.yaml", folder)
    subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
    for name, block in preset_blocks().items():
        if name not in ELSEWHERE:
            (folder / "conf" / "preset" / f"{name}.yaml").write_text(block.text)
    (folder / "params.yaml").write_text(compose(folder, ["preset=laptop"]))
    for part in ("train", "validation", "test"):
        (folder / "text" / part).mkdir(parents=True)
        (folder / "text" / part / "a.txt").write_text(5000 * "It was a dark night.\n")
    write_stories(folder / "en-valid-10k", 4)
    write_tasks(folder / "tasks")
    gpt2 = folder / "downloads" / "gpt2"
    gpt2.mkdir(parents=True)
    (gpt2 / "config.json").write_text(GPT2Config().to_json_string())
    return folder


@cache
def entries() -> set[str]:
    """Return the names of all entries of presets, of those that ship and of those in the pages."""
    texts = [path.read_text() for path in (ROOT / "conf" / "preset").glob("*.yaml")]
    contents = [yaml.safe_load(text) for text in texts]
    contents += [yaml.safe_load(block.text) for block in all_blocks("yaml")]
    tables = [table for content in contents for table in content.values()]
    return {name for table in tables if isinstance(table, dict) for name in table}
