"""A preset made tiny that has come to its report, in this process."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from implicit_models.parameters.composition import compose
from tests.repositories import ROOT
from tests.stages.in_process import run_stages, work_in
from tests.stages.tiny import shrink, write_tasks, write_text


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
