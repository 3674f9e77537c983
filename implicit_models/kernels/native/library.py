"""Compiling and loading `kernels.c`, and what it includes.

The C has no dependency, so any C compiler does, in a few seconds, once for each machine and
version; the library lies in the user's cache. It is linked without an OpenMP library of its own:
it takes the one that torch has loaded, and shares torch's threads.
"""

import atexit
import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from ctypes import POINTER, c_float, c_int, c_int64, c_void_p
from pathlib import Path

_FOLDER = Path(__file__).parent
_SOURCE = _FOLDER / "kernels.c"
_INCLUDED = tuple(_FOLDER / name for name in ("attention.c", "cross_entropy.c"))
_COMMON = ("-O3", "-std=gnu11", "-fPIC", "-fno-math-errno", "-fno-trapping-math")
# From the best to the most widely understood; the first that compiles and loads is taken.
_CHOICES = (("-march=native", "-fopenmp"), ("-march=native",), ("-mcpu=native",), ())


class Convolution(ctypes.Structure):
    """`convolution_t`."""

    _fields_ = [(name, c_int64) for name in ("B", "L", "C", "K", "bf16", "row", "batch")] + [
        (name, c_void_p) for name in ("inputs", "tail", "weight", "bias")
    ]


class Scan(ctypes.Structure):
    """`scan_t`."""

    _fields_ = [
        (name, c_int64)
        for name in ("B", "L", "H", "P", "G", "N", "T", "blocks", "bf16")
        + ("row", "batch", "step_row", "step_batch")
    ] + [
        (name, c_void_p)
        for name in ("activated", "time_step", "bias", "rate", "skip", "state", "counts")
    ]


class Attention(ctypes.Structure):
    """`attention_t`."""

    _fields_ = [
        *((name, c_int64) for name in ("B", "L", "H", "G", "P")),
        *((name, c_void_p) for name in ("queries", "keys", "values", "cosine", "sine")),
        ("scale", c_float),
    ]


class Norm(ctypes.Structure):
    """`norm_t`."""

    _fields_ = [
        *((name, c_int64) for name in ("rows", "D", "groups", "bf16", "gate_row")),
        *((name, c_void_p) for name in ("inputs", "gate", "weight")),
        ("epsilon", c_float),
    ]


_SIGNATURES = {
    "convolution_forward": (POINTER(Convolution), c_void_p),
    "convolution_backward": (
        *(POINTER(Convolution), c_void_p, c_void_p),
        *(c_int64, c_int64, c_void_p, c_void_p),
    ),
    "scan_forward": (POINTER(Scan), *[c_void_p] * 3),
    "scan_step": (POINTER(Scan), *[c_void_p] * 2),
    "scan_backward": (POINTER(Scan), *[c_void_p] * 6, *[c_int64] * 2, *[c_void_p] * 2),
    "norm_forward": (POINTER(Norm), c_void_p),
    "norm_backward": (POINTER(Norm), *[c_void_p] * 3, c_int64, c_void_p),
    "attention_forward": (POINTER(Attention), *[c_void_p] * 2),
    "attention_backward": (POINTER(Attention), *[c_void_p] * 6),
    "swiglu_forward": (c_int64, *[c_void_p] * 3),
    "swiglu_backward": (c_int64, *[c_void_p] * 5),
    "cross_entropy": (*[c_int64] * 3, *[c_void_p] * 2, c_int, c_float, *[c_void_p] * 2),
    "update": (POINTER(Norm), c_void_p, c_float, *[c_void_p] * 2),
}


@functools.cache
def library() -> ctypes.CDLL:
    """Return the compiled kernels.

    Raises
    ------
    OSError
        Where there is no C compiler, or what it makes does not load.
    """
    compiler = _compiler()
    problems = []
    for switches in _CHOICES:
        try:
            loaded = ctypes.CDLL(str(_compiled(compiler, (*_COMMON, *switches))))
        except OSError as error:
            problems.append(f"with {' '.join(switches) or 'no more switches'}: {error}")
            continue
        for name, arguments in _SIGNATURES.items():
            getattr(loaded, name).argtypes = arguments
            getattr(loaded, name).restype = None
        return loaded
    raise OSError(f"{shlex.join(compiler)} makes no kernels that run here, {problems[-1]}")


@functools.cache
def padding() -> int:
    """Return the multiple to which sizes of states in memory are rounded up."""
    return c_int64.in_dll(library(), "padding").value


@functools.cache
def norm_rows() -> int:
    """Return the rows of a norm whose gradients of the weight are one part."""
    return c_int64.in_dll(library(), "norm_rows").value


def _compiler() -> list[str]:
    asked = os.environ.get("CC")
    if asked:
        try:
            return shlex.split(asked)
        except ValueError as error:
            raise OSError(f"CC is {asked!r}: {error}") from None
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name):
            return [name]
    raise OSError("there is no C compiler (cc, gcc, clang, or one that CC names)")


def _compiled(compiler: list[str], switches: tuple[str, ...]) -> Path:
    """Return the path of the library, compiling it where it is not there yet."""
    key = hashlib.sha256(b"".join(file.read_bytes() for file in (_SOURCE, *_INCLUDED)))
    key.update(repr((compiler, switches, platform.machine(), _processor())).encode())
    name = f"kernels-{key.hexdigest()[:24]}.so"
    path = _cache() / name
    if _is_whole(path):
        return path
    if not os.access(path.parent, os.W_OK):
        path = _temporary_folder() / name
        if _is_whole(path):
            return path
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        compiled, linked = Path(folder, "kernels.o"), Path(folder, "kernels.so")
        _call([*compiler, *switches, f"-I{_FOLDER}", "-c", str(_SOURCE), "-o", str(compiled)])
        _call([*compiler, "-shared", str(compiled), "-o", str(linked), "-lm"])
        check = Path(folder, "check")
        check.write_text(_checksum(linked))
        linked.replace(path)  # others that compile at the same time make the same file
        check.replace(path.with_suffix(".sha256"))
    return path


def _is_whole(path: Path) -> bool:
    """Return whether a library is there as it was made: loading part of one kills the process."""
    check = path.with_suffix(".sha256")
    return path.exists() and check.exists() and check.read_text() == _checksum(path)


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _call(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{shlex.join(command)} failed: {done.stderr.strip()[-500:]}")


def _cache() -> Path:
    """Return a folder of the user's."""
    try:
        home = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
        folder = Path(home, "implicit_models")
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # no such place, or no home at all
        return _temporary_folder()
    return folder


@functools.cache
def _temporary_folder() -> Path:
    """Make a folder that goes with the process."""
    folder = tempfile.TemporaryDirectory(prefix="implicit_models_")
    atexit.register(folder.cleanup)
    return Path(folder.name)


def _processor() -> str:
    """Return what tells processors apart for which a compiler makes different code."""
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return platform.processor()
    telling = ("model name", "flags", "Features")
    lines = cpuinfo.read_text().splitlines()
    return "".join(dict.fromkeys(line for line in lines if line.startswith(telling)))
