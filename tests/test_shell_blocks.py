"""Commands in the documentation: those that only look are run, others have to be understood.

Of programs that are not ours only the files that they name are looked at, and of commands in
sentences those that begin as ours do.
"""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from implicit_models.parameters.composition import compose
from tests.documented_commands import PROGRAMS, WrongCommandError, attempt, refusal
from tests.markdown import (
    PAGES,
    Block,
    all_blocks,
    blocks,
    command_lines,
    commands,
    inline_code,
    without_variables,
)
from tests.readers_repository import ELSEWHERE, make_repository
from tests.repositories import ROOT

SHELL = ("", "bash", "sh", "console")
OTHER_LANGUAGES = ("python", "yaml")
# How blocks begin that are no commands.
TEXTS = (
    "params.yaml  ",
    '"majority": ',
    '"implicit_models.problems.majority"',
    "problems/NAME/",
    "flow, in the clone",
    "accuracy last 10",
    "bounded: step",
    "z* = f(z*, x)",
    "Prefect: http",
    "error: ",  # what a command says, in the block before
)
# Programs that are not ours, of which only the files are looked at that they name.
OTHERS = (
    *("cd", "cp", "sed", "source", "export", "git", "curl", "uv", ".venv/bin/ruff"),
    *("docker", "kubectl", "srun", "createdb", "prefect", "mlflow"),
)
FOLDERS = ("deploy/", "scripts/", "tests/")
# What is looked at where it stands in a sentence. A name alone is asked for its help.
INLINE = ("implicit-models", "python ", "make ", "pytest ", "dvc repro ", "dvc exp run -S ")
BARE = re.compile(r"implicit-models( [a-z]+)?|python (-m )?[\w./]+")


def shell_blocks() -> list[Block]:
    found = [block for language in SHELL for block in all_blocks(language)]
    return [block for block in found if not block.text.strip().startswith(TEXTS)]


def words_of(line: str) -> Iterator[tuple[dict[str, str], tuple[str, ...]]]:
    for each in commands(line):
        variables, words = without_variables(each)
        yield variables, tuple(words)


def in_blocks() -> Iterator[tuple[dict[str, str], tuple[str, ...]]]:
    for block in shell_blocks():
        for line in command_lines(block.text):
            yield from words_of(line)


def in_sentences() -> Iterator[tuple[str, ...]]:
    for code in inline_code():
        if code.startswith(INLINE) and "[" not in code and "..." not in code:
            for _, words in words_of(code):
                yield (*words, "--help") if BARE.fullmatch(" ".join(words)) else words


@cache
def refused() -> dict[tuple[str, ...], str]:
    """Return the commands that the documentation shows an error of, and the error."""
    found = {}
    for block in shell_blocks():
        *_, (_, words) = words_of(command_lines(block.text)[-1])
        prompted = re.findall(r"^\$ [^\n]*\n(.*)", block.text, re.DOTALL)
        for said in (block.output, *prompted):
            if said.startswith("error: "):
                found[words] = said
    return found


def tried() -> list[tuple[str, ...]]:
    """Return every command of ours once, without those of a preset that another test writes."""
    found = [*(words for _, words in in_blocks()), *in_sentences()]
    return [
        words
        for words in dict.fromkeys(found)
        if words and words[0] in PROGRAMS and not {*words} & {*ELSEWHERE} and words not in refused()
    ]


@pytest.fixture(scope="module")
def repository(tmp_path_factory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        folder = make_repository(tmp_path_factory.mktemp("reader"))
        patch.chdir(folder)
        yield folder


@pytest.fixture
def laptop(repository) -> Path:
    """Return the repository with the params.yaml that a clone has."""
    (repository / "params.yaml").write_text(_laptop())
    return repository


@cache
def _laptop() -> str:
    return compose(ROOT, ["preset=laptop"])


def test_every_block_is_of_commands_or_known_to_be_none():
    for page in PAGES:
        assert {block.language for block in blocks(page)} <= {*SHELL, *OTHER_LANGUAGES}, page.name
    for begin in TEXTS:
        assert any(block.text.strip().startswith(begin) for block in all_blocks("")), begin
    programs = {words[0] for _, words in in_blocks() if words}
    assert programs - {*PROGRAMS} == {*OTHERS}


def test_variables_have_their_page_and_files_are_there():
    page = (ROOT / "docs" / "environment.md").read_text()
    for variables, words in in_blocks():
        for each in (*variables, *words):
            for name in re.findall(r"^IMPLICIT_MODELS_\w+", each):
                assert f"`{name}`" in page, name
            assert not each.startswith(FOLDERS) or (ROOT / each).exists(), each


@pytest.mark.parametrize("words", tried(), ids=" ".join)
def test_commands_are_understood(laptop, words):
    attempt(words)


@pytest.mark.parametrize("words", refused(), ids=" ".join)
def test_commands_are_refused_in_these_words(laptop, words):
    assert refusal([*words]).strip() == refused()[words].strip()


def test_all_kinds_of_commands_are_found():
    assert {words[0] for words in tried()} == PROGRAMS.keys()
    assert len(tried()) > 100 and len(refused()) > 2


@pytest.mark.parametrize(
    "line",
    [
        "implicit-models check mine runs.s3_implicit_mamba2.sed=1",
        "implicit-models run mine runs.s3_implicit_mamba2.sed=1",
        "implicit-models run mien",
        "implicit-models runs mine",
        "implicit-models run mine --job 2",
        "implicit-models plan mine gpu=2",
        "implicit-models compare s3_lstm s3_ltsm",
        "implicit-models sweep runs.s3_implicit_mamba2.sed=1,2 --preset quick",
        "dvc exp run -S runs.a5_implicit_mamba2.sed=1",
        "dvc exp run -S preset=mien",
        "dvc exp run -s preset=mine",
        "dvc repro train_fre@a5_implicit_mamba2",
        "dvc repro train_free@a5_implicit_mamba3",
        "python -m pipelines.reproduce --preset mien",
        "python -m pipelines.reproduce train_fre",
        "python -m pipelines.sweep runs.a5_implicit_mamba2.sed=1,2",
        "python -m stages.training.train_free",
        "python -m stages.plans",
        "python scripts/compose.py mien",
        "python scripts/train_tokenizer.py text/train",
        "make figures ONLY=lengths",
        "make bench FAST=1",
        "make all",
        "torchrun --standalone -m stages.training.train_bound NAME",
        "pytest tests/kernel",
    ],
)
def test_what_is_wrong_is_seen(laptop, line):
    with pytest.raises(WrongCommandError):
        attempt(line.split())
