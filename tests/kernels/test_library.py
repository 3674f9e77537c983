"""Compiling the kernels in C: once, for whoever comes; and where it cannot be done."""

import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

from implicit_models.kernels import dispatch
from implicit_models.kernels.native import library as native
from implicit_models.kernels.native.library import library

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
CACHED = (
    native.padding,
    native.norm_rows,
    native._temporary_folder,
    library,
    dispatch.native_kernels,
    dispatch._chosen,
)
COMPILER = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")
LOAD = """
import torch
from implicit_models.kernels.native.library import library
loaded = library()
loaded.norm_forward, loaded.scan_backward
print(loaded._name)
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of the test's own; nothing that it decides is remembered."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv(dispatch.VARIABLE, raising=False)
    for each in CACHED:
        each.cache_clear()
    yield tmp_path / "cache" / "implicit_models"
    for each in CACHED:
        each.cache_clear()


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler in no mood to optimise, which notes each call in the file that is given."""
    notes = tmp_path / "calls"
    notes.touch()
    compiler(tmp_path, monkeypatch, f'echo "$@" >> {notes}; exec {COMPILER} "$@" -O0')
    return notes


def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, does: str) -> Path:
    """Set CC to a script, and return its path."""
    script = tmp_path / "compiler"
    script.write_text(f"#!/bin/sh\n{does}\n")
    script.chmod(0o755)
    monkeypatch.setenv("CC", str(script))
    return script


def started() -> subprocess.Popen[str]:
    """Start a process that loads the library."""
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen([sys.executable, "-c", LOAD], cwd=ROOT, text=True, **pipes)


def ended(process: subprocess.Popen[str]) -> Path:
    """Return the path of the library that a process has loaded."""
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    return Path(output.splitlines()[-1])


def forbidden(*_: Any, **__: Any) -> NoReturn:
    raise AssertionError("compiled once more")


def assert_falls_back(caplog: pytest.LogCaptureFixture, *reasons: str) -> None:
    """Expect the reference, a line that says why, and no second attempt."""
    with caplog.at_level(logging.INFO, dispatch.__name__):
        kernels = dispatch.kernels_for(CPU)
        assert dispatch.kernels_for(CPU) is kernels
    assert kernels.name == "reference"
    (message,) = caplog.messages
    assert all(reason in message for reason in ("cpu", "reference", *reasons)), message


@needs_compiler
def test_compiles_once(cache: Path, calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = library()
    assert library() is first
    (path,) = cache.glob("*.so")
    assert first._name == str(path)
    assert len(calls.read_text().splitlines()) == 2  # compile, link
    library.cache_clear()
    monkeypatch.setattr(subprocess, "run", forbidden)
    assert library()._name == str(path)


@needs_compiler
def test_another_source_is_compiled_anew(
    cache: Path, calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = library()._name
    changed = tmp_path / "kernels.c"
    changed.write_text(native._SOURCE.read_text() + "\n/* changed */\n")
    monkeypatch.setattr(native, "_SOURCE", changed)
    library.cache_clear()
    assert library()._name != first
    assert len(list(cache.glob("*.so"))) == 2


@needs_compiler
@pytest.mark.slow
def test_processes_share_what_one_has_compiled(cache: Path, calls: Path) -> None:
    at_once = [started(), started()]
    paths = {ended(process) for process in at_once}
    assert {*cache.glob("*.so")} == paths
    assert len(paths) == 1
    before = calls.read_text()
    assert ended(started()) in paths
    assert calls.read_text() == before


@needs_compiler
@pytest.mark.parametrize("kept", [0.0, 0.5, 0.97])
def test_a_broken_file_in_the_cache_is_compiled_anew(cache: Path, calls: Path, kept: float) -> None:
    """In a process of its own: half a library would take this one with it."""
    path = native._compiled(native._compiler(), (*native._COMMON, *native._CHOICES[0]))
    whole = path.read_bytes()
    path.write_bytes(whole[: int(kept * len(whole))])
    assert ended(started()) == path
    assert len(path.read_bytes()) == len(whole)


@needs_compiler
def test_a_compiler_that_is_missing_ends_in_the_reference(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert_falls_back(caplog, "there is no C compiler", "CC")


@pytest.mark.parametrize("named", ["/nowhere/cc", "cc-of-which-there-is-none -m64", " ", '"'])
def test_a_compiler_that_is_misnamed_ends_in_the_reference(
    named: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CC", named)
    assert_falls_back(caplog, *named.split()[:1] if named != '"' else ["CC"])


def test_a_compiler_that_fails_ends_in_the_reference(
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    compiler(tmp_path, monkeypatch, "echo 'licence expired' >&2; exit 1")
    assert_falls_back(caplog, "licence expired")
    assert not list(cache.iterdir())


@pytest.mark.parametrize(
    "does", ["exit 0", 'while [ "$1" != -o ]; do shift; done; echo nonsense > "$2"']
)
def test_a_compiler_that_makes_nonsense_ends_in_the_reference(
    does: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    compiler(tmp_path, monkeypatch, does)
    assert_falls_back(caplog)


@needs_compiler
def test_switches_that_a_compiler_does_not_know_are_left_out(
    calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuses = 'case "$*" in *=native*|*-fopenmp*) echo "what?" >&2; exit 1;; esac'
    compiler(tmp_path, monkeypatch, f'{refuses}; exec {COMPILER} "$@" -O0')
    assert Path(library()._name).exists()


@needs_compiler
def test_no_compiler_is_needed_for_kernels_that_were_asked_for_by_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv(dispatch.VARIABLE, "reference")
    assert dispatch.kernels_for(CPU).name == "reference"
    dispatch._chosen.cache_clear()
    monkeypatch.setenv(dispatch.VARIABLE, "native")
    with pytest.raises(ValueError, match=f"{dispatch.VARIABLE} is 'native', but .*no C compiler"):
        dispatch.kernels_for(CPU)


@needs_compiler
def test_a_cache_that_cannot_be_made_is_done_without(
    calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    occupied = tmp_path / "occupied"
    occupied.touch()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(occupied))
    monkeypatch.setattr(tempfile, "tempdir", str(elsewhere))
    assert elsewhere in Path(library()._name).parents


@needs_compiler
@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_cache_is_done_without(calls: Path, cache: Path) -> None:
    cache.mkdir(parents=True)
    cache.chmod(0o555)
    assert Path(library()._name).parent != cache


@needs_compiler
def test_a_read_only_cache_is_read(
    calls: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in an image in which the kernels were compiled beforehand."""
    path = library()._name
    library.cache_clear()
    before, writable = calls.read_text(), os.access

    def access(place: Any, mode: int) -> bool:
        return writable(place, mode) and not (mode & os.W_OK and cache in (place, *place.parents))

    monkeypatch.setattr(os, "access", access)
    assert library()._name == path
    assert calls.read_text() == before


@needs_compiler
def test_a_user_without_a_home_is_served(
    calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under a user number that the container knows nothing of."""

    def homeless(self: Path) -> NoReturn:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "expanduser", homeless)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert tmp_path in Path(library()._name).parents
