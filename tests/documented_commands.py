"""Commands of the documentation: asked whether they could be run, or run, in this process.

Options are read by the command's own parser; what would come after that is left out. Commands that
only look, and take a second at most, are run to their end.
"""

import argparse
import contextlib
import io
import logging
import re
import runpy
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import typer
from dvc.cli import DvcParserError, parse_args
from torch.distributed.run import get_args_parser

from implicit_models.parameters import ParameterError
from implicit_models.parameters.composition import compose, preset_and_settings, presets
from pipelines import cli, terminal_process
from pipelines.sweeps.points import Origin, SweepError, plan
from tests.readers_repository import entries
from tests.repositories import ROOT

LOOKING = ("stages.check", "stages.plan", "implicit_models.families.sizes", "scripts/compose.py")
LOOKING_BY_NAME = ("check", "plan", "presets", "groups", "models")
_COPIES = re.compile(r"_seed_\d+$")  # of entries, which --seeds makes


class WrongCommandError(Exception):
    """A command that the documentation has and that would be refused; the message says why."""


class _Read(BaseException):
    """A parser has read the options, with which this ends the command."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options


def attempt(words: Sequence[str]) -> None:
    """Try a command.

    Raises
    ------
    WrongCommandError
        Where its program would refuse it.
    """
    program, *arguments = words
    try:
        PROGRAMS[program](arguments)
    except (ParameterError, SweepError, DvcParserError) as error:
        raise WrongCommandError(f"error: {error}") from error


def refusal(words: Sequence[str]) -> str:
    """Return what a command prints that the documentation says is refused, run to its end."""
    if words[:2] == ["implicit-models", "sweep"]:  # it would start a server first
        with pytest.raises(WrongCommandError) as refused:
            attempt(words)
        return str(refused.value)
    if words[0] == "implicit-models":
        status, said = _ran(partial(cli.app, words[1:], prog_name="implicit-models"))
    else:
        program, _, module, *arguments = words
        assert program == "python"
        status, said = _ran(partial(_run, module, arguments))
    assert status == 2, said
    return said


def is_left_open(text: str) -> bool:
    """Return whether it stands for a text of the reader's, as NAME does."""
    return re.fullmatch(r"[A-Z]+", text) is not None


def _python(arguments: list[str]) -> None:
    is_module = arguments[0] == "-m"
    name, *rest = arguments[is_module:]
    if name == "pytest":
        _pytest(rest)
        return
    if is_left_open(name.rpartition(".")[2]):
        return
    if is_module and (ROOT / name.replace(".", "/") / "__main__.py").is_file():
        name = f"{name}.__main__"
    file = f"{name.replace('.', '/')}.py" if is_module else name
    if not (ROOT / file).is_file():
        raise WrongCommandError(f"there is no {file}")
    if (name in LOOKING or "--list" in rest) and not any(map(is_left_open, rest)):
        _look(partial(_run, name, rest))
    elif name not in LOOKING and (options := _read(name, rest)) is not None:
        _check_values(name, options)


def _check_values(name: str, options: argparse.Namespace) -> None:
    """Check what parsers take for a text: presets, settings, stages."""
    preset = getattr(options, "preset", None)
    _check_preset(preset)
    if name == "pipelines.reproduce":
        _check_targets(options.targets)
    if name == "pipelines.sweep" and not is_left_open(preset or ""):
        first = [re.sub(r"^([^=]+=[^,\[(]+),.*", r"\1", each) for each in options.override]
        plan(Path(), Origin(""), options.name, first, preset)


def _implicit_models(arguments: list[str]) -> None:
    group = typer.main.get_command(cli.app)
    if arguments[:1] == ["--help"]:
        return
    name, *rest = arguments
    command = group.commands.get(name)
    if command is None:
        raise WrongCommandError(f"there is no implicit-models {name}")
    if name in LOOKING_BY_NAME and not any(map(is_left_open, rest)):
        _look(partial(cli.app, [name, *rest], prog_name="implicit-models"))
        return
    try:
        given = command.make_context(name, [*rest]).params
    except typer.Exit:  # --help
        return
    except Exception as error:  # click's, of which typer has a copy
        raise WrongCommandError(f"{type(error).__name__}: {error}") from error
    if name == "run":
        _check_settings(*preset_and_settings([given["preset"], *(given["overrides"] or ())]))
    if name in ("compare", "evaluate", "generate", "serve"):
        _check_entries(given.get("runs") or [given["model"]])
    if name == "sweep":
        options = argparse.Namespace(**given, override=given["values"])
        _check_values("pipelines.sweep", options)


def _check_preset(name: str | None) -> None:
    if name is not None and not is_left_open(name) and name not in presets(Path()):
        raise WrongCommandError(f"there is no preset {name}")


def _check_settings(preset: str | None, settings: Sequence[str]) -> None:
    """Check that there is a preset (of which other tests try all), with the keys that are set."""
    _check_preset(preset)
    if settings:
        compose(Path(), [f"preset={preset or 'laptop'}", *settings])


def _dvc(arguments: list[str]) -> None:
    with _quiet() as said:
        try:
            options = parse_args(arguments)
        except SystemExit as end:
            if end.code:
                raise WrongCommandError(said.getvalue()) from end
            return
    named, settings = preset_and_settings(getattr(options, "set_param", None) or ())
    _check_settings(named, settings)
    _check_targets(getattr(options, "targets", None) or ())


def _check_targets(targets: Sequence[str]) -> None:
    """Check that stages exist, and the entries behind @ in some preset."""
    stages = _stages()
    for target in targets:
        stage, _, entry = target.partition("@")
        if stage not in stages and not is_left_open(stage):
            raise WrongCommandError(f"dvc.yaml has no stage {stage}")
        if entry:
            _check_entries([_COPIES.sub("", entry)])


def _check_entries(names: Sequence[str]) -> None:
    """Check that presets have entries of these names; what has a / is a folder or of the hub."""
    for name in names:
        if name not in entries() and not is_left_open(name) and "/" not in name:
            raise WrongCommandError(f"no preset has an entry {name}")


@cache
def _stages() -> set[str]:
    text = (ROOT / "dvc.yaml").read_text()
    return {*re.findall(r"^  (\w+):$", text, re.MULTILINE)}


def _make(arguments: list[str]) -> None:
    text = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^([a-z]+):", text, re.MULTILINE)
    for each in arguments:
        name, is_variable, value = each.partition("=")
        if is_variable and not re.search(rf"\$[({{](or \$\()?{name}\b|\b{name} \?=", text):
            raise WrongCommandError(f"the Makefile reads no variable {name}")
        if not is_variable and name not in targets:
            raise WrongCommandError(f"the Makefile has no target {name}")
        if name == "ONLY":
            _check_notebooks(value.split())


def _check_notebooks(names: Sequence[str]) -> None:
    for name in names:
        if not is_left_open(name) and not (ROOT / "notebooks" / f"{name}.ipynb").exists():
            raise WrongCommandError(f"there is no notebook {name}")


def _torchrun(arguments: list[str]) -> None:
    with _quiet() as said:
        try:
            options = get_args_parser().parse_args(arguments)
        except SystemExit as end:
            raise WrongCommandError(said.getvalue()) from end
    _python(["-m", options.training_script, *options.training_script_args])


def _pytest(arguments: list[str]) -> None:
    for path in arguments:
        if not (ROOT / path).exists():
            raise WrongCommandError(f"there is no {path}")


def _look(call: Callable[[], object]) -> None:
    """Run a command to its end, which has to be a good one."""
    status, said = _ran(call)
    if status:
        raise WrongCommandError(said)


def _read(name: str, arguments: Sequence[str]) -> argparse.Namespace | None:
    """Return the options that a module or script reads, or None for --help, and run no more."""
    original = argparse.ArgumentParser.parse_args

    def read(*given: Any, **named: Any) -> None:
        raise _Read(original(*given, **named))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", read)
        try:
            status, said = _ran(partial(_run, name, arguments))
        except _Read as done:
            return done.options
    if "--help" in arguments and not status:
        return None
    raise WrongCommandError(said or "it reads no options")


def _run(name: str, arguments: Sequence[str]) -> None:
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # runpy: it was imported before
        patch.setattr(sys, "argv", [name, *arguments])
        if name.endswith(".py"):  # the reader's own, which looks at the files around it
            runpy.run_path(name, run_name="__main__")
        else:
            runpy.run_module(name, run_name="__main__")


def _ran(call: Callable[[], object]) -> tuple[int, str]:
    """Return the status of a command and what it prints; what it starts is run here as well."""

    def start(command: Sequence[str], **_: Any) -> int:
        assert command[1] == "-m"
        return _status(partial(_run, command[2], command[3:]))

    with pytest.MonkeyPatch.context() as patch, _quiet() as said:
        patch.setattr(terminal_process, "run_in_terminal", start)
        status = _status(call)
    return status, said.getvalue()


def _status(call: Callable[[], object]) -> int:
    try:
        call()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


@contextlib.contextmanager
def _quiet() -> Iterator[io.StringIO]:
    """Collect what is printed in a block, which leaves signals and logging as they were."""
    said = io.StringIO()
    pipe = signal.getsignal(signal.SIGPIPE)
    loggers = [logging.getLogger(name) for name in ("implicit_models", "stages")]
    levels = [logger.level for logger in loggers]
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            yield said
    finally:
        signal.signal(signal.SIGPIPE, pipe)
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


PROGRAMS: dict[str, Callable[[list[str]], None]] = {
    "implicit-models": _implicit_models,
    "python": _python,
    "dvc": _dvc,
    "make": _make,
    "torchrun": _torchrun,
    "pytest": _pytest,
}
