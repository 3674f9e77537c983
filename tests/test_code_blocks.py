"""Python in the documentation: every block is run, each page's from top to bottom."""

import contextlib
import io
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
import pytest
import torch
import yaml
from mlflow import MlflowClient

from implicit_models.equilibrium.solution import Result
from implicit_models.equilibrium.stopping import relative_residual
from tests.language_models.models import IMPLICIT, our_model
from tests.language_models.models import tokens as drawn_tokens
from tests.markdown import python_blocks
from tests.reporting.synthetic import parameters, write_results
from tests.repositories import ROOT
from tests.stages.tiny import write_stories

# Page and a line: read from the page there, and run with what it needs around it.
ELSEWHERE = {
    "commands": ("from pipelines import run_experiment", "tests/pipelines/test_experiment.py"),
    "equilibrium": ("class Equilibrium(nn.Module):", "tests/equilibrium/test_own_network.py"),
}
Names = dict[str, Any]


def blocks(page: Path) -> list[str]:
    line, _ = ELSEWHERE.get(page.stem, (None, None))
    return [block for block in python_blocks(page) if line not in block.splitlines()]


PAGES = {page.stem: found for page in (ROOT / "docs").glob("*.md") if (found := blocks(page))}


def run(page: str, names: Names, **smaller: str) -> str:
    """Run a page's blocks, some words replaced, and return what they print."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), torch.random.fork_rng():
        for block in PAGES[page]:
            for word, other in smaller.items():
                block = block.replace(word, other)
            exec(compile(block, f"{page}.md", "exec"), names)
    return said.getvalue()


def catbabi() -> None:
    write_stories(Path("en-valid-10k"))
    names: Names = {}
    run("catbabi", names, **{"9000": "90", "1000": "10"})
    assert len(names["numbers"]) > 0
    assert [len(names[name]) for name in ("training", "test")] == [90, 10]


def commands() -> None:
    names: Names = {"done": []}
    run("commands", names, **{"...": "done.append(1)"})
    assert names["done"] == [1]


def equilibrium() -> None:
    model, tokens = our_model(IMPLICIT), drawn_tokens(2, 24)
    cell, start = model.model.cell(tokens)
    names: Names = {"model": model, "tokens": tokens, "cell": cell, "start": start}
    run("equilibrium", names)
    found = names["solution"]
    assert found.result.shape == (2, 24) and (found.result == Result.CONVERGED).all()
    assert relative_residual(found.value, cell(found.value)).max() < 0.05
    assert names["output"].self_iterations.shape == (2, 24)


def figures() -> None:
    content = parameters()
    for entry in content["datasets"].values():
        entry["kind"] = "word_problem"
    Path("params.yaml").write_text(yaml.safe_dump(content))
    write_results(Path())
    run("figures", {})
    assert {path.stem for path in Path().glob("*.svg")} == content["datasets"].keys()


def models() -> None:
    tokens = torch.tensor([[0, 510, 9141]])
    names: Names = {"dataset": 8 * [{"input_ids": tokens[0], "labels": tokens[0]}]}
    run(
        "models",
        names,
        **{"num_hidden_layers=2": "num_hidden_layers=1, hidden_size=64", "200": "2", "2800": "2"},
    )
    assert names["output"].self_iterations.shape == (1, 3) and names["loss"].requires_grad
    assert {path.name for path in Path("checkpoints").iterdir()} == {"bounded", "free"}


def theorem() -> None:
    said = run("theorem", {}, **{"64": "16"})
    implicit, formula, explicit = (float(line.split()[-1]) for line in said.splitlines())
    assert implicit > 1e-9 and formula < 1e-12 and explicit == 0


def tracking() -> None:
    client, name = MlflowClient("sqlite:///mlflow.db"), "implicit-models-mamba2-a5"
    experiment = client.create_experiment("a5", Path("store").absolute().as_uri())
    run_id = client.create_run(experiment).info.run_id
    client.log_text(run_id, "{}", "final/config.json")
    client.create_registered_model(name)
    version = client.create_model_version(name, f"runs:/{run_id}/final", run_id).version
    client.set_registered_model_alias(name, "best", version)
    names: Names = {}
    run("tracking", names)
    assert Path(names["folder"], "config.json").read_text() == "{}"


LOOKS: list[Callable[[], None]] = [
    catbabi,
    commands,
    equilibrium,
    figures,
    models,
    theorem,
    tracking,
]


def test_there_is_a_look_at_every_page():
    assert {look.__name__ for look in LOOKS} == PAGES.keys()
    for page, (line, file) in ELSEWHERE.items():
        path = ROOT / "docs" / f"{page}.md"
        assert len(python_blocks(path)) == len(PAGES[page]) + 1, line
        assert "python_blocks(" in (ROOT / file).read_text()


@pytest.mark.filterwarnings("ignore:'pin_memory' argument:UserWarning")  # the Trainer's default
@pytest.mark.parametrize("look", LOOKS, ids=lambda look: look.__name__)
def test_the_blocks_of_a_page_run(look, empty_database, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(empty_database, "mlflow.db")
    uri = mlflow.get_tracking_uri()
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    try:
        look()
    finally:
        mlflow.set_tracking_uri(uri)
        os.environ.pop("MLFLOW_TRACKING_URI", None)  # which the line before may have set
