"""Folders to ask stages in: parameters that all of them accept, and a preset with its report."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from implicit_models.parameters.composition import compose
from tests.fuzz import parameter_cases
from tests.fuzz.answers import ask_reader
from tests.repositories import ROOT
from tests.stages.in_process import run_stages, work_in
from tests.stages.tiny import shrink, write_tasks, write_text


def write_accepted(folder: Path, parameters: Mapping[str, Any]) -> None:
    """Write parameters and the files that they name; every stage reads them, in its own modules."""
    write_text(folder / "text", num_sentences=400)
    write_tasks(folder / "tasks")
    (folder / "params.yaml").write_text(yaml.safe_dump(parameters, sort_keys=False))
    for stage, name in parameter_cases.stages_of(parameters):
        answer = ask_reader(stage, name)
        assert answer.kind == "done", (stage, name, answer.said)


def make_project(folder: Path, preset: str, patch: pytest.MonkeyPatch) -> None:
    """Run all stages of a preset, without the hub, in a folder of a project."""
    folder.mkdir()
    work_in(folder, patch)
    write_text(folder / "text")
    write_tasks(folder / "tasks")
    parameters = shrink(yaml.safe_load(compose(ROOT, [f"preset={preset}"])))
    for corpus in parameters["corpora"].values():
        if corpus["tokenizer"] != "bytes":
            command = [sys.executable, ROOT / "scripts" / "train_tokenizer.py", corpus["source"]]
            subprocess.run(
                [*command, corpus["tokenizer"], "--vocabulary-size=300"],
                check=True,
                stdout=subprocess.DEVNULL,
            )
    (folder / "params.yaml").write_text(yaml.safe_dump(parameters, sort_keys=False))
    run_stages(folder)
