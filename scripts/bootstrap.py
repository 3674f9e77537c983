#!/usr/bin/env python3
"""Create or refresh `.venv` from `requirements.lock`; return at once when nothing has changed.

Needs nothing but Python, and parses on any Python 3.6 or later, so that a machine with too old a
one gets an explanation instead of a syntax error. `--lock` compiles `requirements.lock` from
`pyproject.toml`; what follows it goes to uv (`--lock --upgrade`).

uv installs. It does not read pip's settings (environment and pip.conf), so they are handed on to
it; its own `UV_*` variables win. `TORCH_BACKEND` (cpu, auto, cu130, ...) chooses torch's build.
"""

import ast
import contextlib
import fcntl
import glob
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

OLDEST_PYTHON = (3, 11)
UV = "uv==0.13.8"
ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = ROOT / ".venv"
PYTHON = ENVIRONMENT / "bin" / "python"
LOCK = ROOT / "requirements.lock"
STAMP = ENVIRONMENT / "installed.json"
UNFINISHED = ENVIRONMENT / "unfinished.json"  # in its place while an installation is under way
# pip's name of a setting -> uv's variable and what separates several values there
SETTINGS = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "no-index": ("UV_NO_INDEX", " "),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "proxy": ("ALL_PROXY", " "),
    "cert": ("SSL_CERT_FILE", " "),
    "timeout": ("UV_HTTP_TIMEOUT", " "),
    "default-timeout": ("UV_HTTP_TIMEOUT", " "),
}
NEXT = """\
Installed. What to do next:
  source .venv/bin/activate
  implicit-models run quick      a first look: the whole chain on S3, in a minute or two
  implicit-models presets        what else there is
  make repro                     every result of the README"""
LOCK_HEADER = """\
# Compiled from pyproject.toml by `make lock`.
# torch has no local version: the CPU wheel and every CUDA build satisfy it.
"""


def main() -> None:
    """Bring `.venv` up to date; with `--lock`, compile the lock first from what is installed."""
    if {"-h", "--help"} & set(sys.argv[1:2]):
        print(__doc__)
        return
    go_on_in_newer_python()
    with one_at_a_time():
        install()
        if sys.argv[1:2] == ["--lock"]:
            compile_lock(sys.argv[2:])
            install()


@contextlib.contextmanager
def one_at_a_time():
    """Make the second of two at once wait, which then finds all done; not where nobody can lock."""
    try:
        lock = LOCK.open("r+b")  # NFS locks alone what is open for writing
    except OSError:
        lock = LOCK.open("rb")
    with lock:
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def go_on_in_newer_python() -> None:
    """Hand over to a newer Python of this machine where this one is too old."""
    if sys.version_info[:2] >= OLDEST_PYTHON:
        return
    for minor in range(14, OLDEST_PYTHON[1] - 1, -1):
        newer = shutil.which("python3.%d" % minor)
        if newer and subprocess.call([newer, "-c", ""], stderr=subprocess.DEVNULL) == 0:
            os.execv(newer, [newer] + sys.argv)
    major, minor = sys.version_info[:2]
    fail(
        f"Python {major}.{minor} is too old, 3.11 or later is needed. Install one (Debian and "
        "Ubuntu: apt install python3.11 python3.11-venv) or name it: make "
        "PYTHON=/path/to/python3.11 ..."
    )


def install() -> None:
    """Install the lock, unless the stamp says that exactly this is there already."""
    found = read_stamp(STAMP) or read_stamp(UNFINISHED)
    lock = hashlib.sha256(LOCK.read_bytes()).hexdigest()
    backend = os.environ.get("UV_TORCH_BACKEND", found.get("backend"))
    backend = os.environ.get("TORCH_BACKEND", backend)
    wanted = {"environment": str(ENVIRONMENT), "lock": lock, "backend": backend}
    wanted["project"] = project_digest()
    if found == wanted:
        return
    if not found or not can_install():
        create_environment()
        found = {}
    settings = uv_settings()
    if backend is None:
        backend = wanted["backend"] = default_backend(settings.get("UV_FIND_LINKS", ""))
    command = [ENVIRONMENT / "bin" / "uv", "pip", "install", "--python", PYTHON]
    command += [] if sys.stderr.isatty() else ["--quiet"]
    command += ["--torch-backend", backend] if backend else []
    # Otherwise every stage would compile torch and transformers anew, which takes it 3 s.
    command += ["--compile-bytecode"] if sys.dont_write_bytecode else []
    before = found.get("backend", backend)
    has_other_torch = found.get("has_other_torch", False) or before != backend
    command += ["--reinstall-package", "torch"] if has_other_torch else []
    mark_unfinished(before, has_other_torch)
    say("installing requirements.lock (torch's build: %s)" % (backend or "the one that is found"))
    run(
        command + ["--requirements", LOCK, "--editable", ROOT],
        settings,
        "Choose torch's build with TORCH_BACKEND=cpu|auto|cu130|..., "
        "or name a directory of wheels in PIP_FIND_LINKS.",
    )
    write_whole(STAMP, wanted)
    UNFINISHED.unlink()
    print(NEXT, flush=True)


def mark_unfinished(backend: str, has_other_torch: bool) -> None:
    """Write in the stamp's place what `.venv` is, which the next run goes on with if this fails."""
    mark = {"environment": str(ENVIRONMENT), "backend": backend}
    write_whole(UNFINISHED, dict(mark, has_other_torch=has_other_torch))
    if STAMP.exists():
        STAMP.unlink()


def can_install() -> bool:
    """Return whether the uv of `.venv` works."""
    command = [str(ENVIRONMENT / "bin" / "uv"), "--version"]
    try:
        return subprocess.call(command, stdout=subprocess.DEVNULL) == 0
    except OSError:
        return False


def write_whole(path: Path, content: dict) -> None:
    """Write a file that appears whole or not at all."""
    path.with_suffix(".new").write_text(json.dumps(content))
    path.with_suffix(".new").rename(path)


def project_digest() -> str:
    """Digest what is installed of pyproject.toml: dependencies and commands, no tool's settings."""
    installed = (ROOT / "pyproject.toml").read_text(encoding="utf-8").partition("\n[tool.")[0]
    return hashlib.sha256(installed.encode("utf-8")).hexdigest()


def read_stamp(path: Path) -> dict:
    """Return what a file says of `.venv`, or {} if that is absent, moved or without its Python."""
    try:
        found = json.loads(path.read_text())
        minor = subprocess.check_output(
            [str(PYTHON), "-I", "-S", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
            stderr=subprocess.DEVNULL,
        )
    except (OSError, ValueError, subprocess.CalledProcessError):
        return {}
    packages = ENVIRONMENT / "lib" / ("python" + minor.decode().strip()) / "site-packages"
    return found if packages.is_dir() and found.get("environment") == str(ENVIRONMENT) else {}


def create_environment() -> None:
    """Make `.venv` afresh, with the pinned uv in it."""
    can_create = [sys.executable, "-c", "import ensurepip, venv"]
    if subprocess.call(can_create, stderr=subprocess.DEVNULL) != 0:
        major, minor = sys.version_info[:2]
        fail(
            f"{sys.executable} cannot create virtual environments. Debian and Ubuntu: apt install "
            f"python3-venv (or python{major}.{minor}-venv where this is not the system's own "
            "Python)."
        )
    if ENVIRONMENT.is_symlink():
        fail(
            f"{ENVIRONMENT} is a link to {ENVIRONMENT.resolve()}, an environment made for "
            "something else, which would be emptied. Remove the link, and run this again."
        )
    if not (STAMP.exists() or UNFINISHED.exists() or is_bare()):
        fail(
            f"{ENVIRONMENT} is an environment made for something else, which would be emptied. "
            "Move it away or remove it, and run this again."
        )
    say("creating .venv with Python %d.%d.%d" % sys.version_info[:3])
    run([sys.executable, "-m", "venv", "--clear", ENVIRONMENT])
    run([PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", UV])


def is_bare() -> bool:
    """Return whether `.venv` has no packages but those with which one is made."""
    found = ENVIRONMENT.glob("lib/python*/site-packages/*.dist-info")
    return {path.name.split("-")[0] for path in found} <= {"pip", "setuptools", "uv"}


def uv_settings() -> dict:
    """Return pip's settings as uv's environment variables, without those that are set already."""
    listing = subprocess.check_output([str(PYTHON), "-m", "pip", "config", "list"]).decode()
    return {name: value for name, value in translate(listing).items() if name not in os.environ}


def translate(listing: str) -> dict:
    """Translate what `pip config list` prints into uv's variables."""
    found = {}
    for section in ("global", "install", ":env:"):  # the later wins, as in pip
        for name, value in re.findall(r"(?m)^%s\.([a-z-]+)=(.*)$" % section, listing):
            found[name] = ast.literal_eval(value).split()
    settings = {}
    for name, (variable, separator) in SETTINGS.items():
        if name in found:
            settings[variable] = separator.join(found[name])
    if "UV_INDEX" in settings:  # pip takes the best version over all indexes
        settings["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    return settings


def default_backend(find_links: str) -> str:
    """Choose torch's build: that of find-links, or `auto` beside an NVIDIA driver, or `cpu`."""
    wheel = "torch-*-cp%d%d-*.whl" % sys.version_info[:2]
    for place in filter(None, os.environ.get("UV_FIND_LINKS", find_links).split(",")):
        if "://" in place or glob.glob(os.path.join(os.path.expanduser(place), wheel)):
            return ""
    has_driver = os.path.exists("/proc/driver/nvidia/version") or shutil.which("nvidia-smi")
    return "auto" if has_driver else "cpu"


def compile_lock(switches: list) -> None:
    """Write the lock for the oldest Python and a CPU, keeping the versions that still fit."""
    settings = uv_settings()
    draft = ENVIRONMENT / "requirements.draft"
    draft.write_text(
        re.sub(r"(?m)^(#|torch==).*\n", "", LOCK.read_text())
    )  # the CPU's torch, afresh
    command = [ENVIRONMENT / "bin" / "uv", "pip", "compile", "--python", PYTHON]
    command += ["--quiet", "--no-header", "--no-annotate", "--no-strip-markers"]
    command += [
        "--extra",
        "pipeline",
        "--group",
        "dev",
        "--python-version",
        "%d.%d" % OLDEST_PYTHON,
    ]
    command += ["--output-file", draft]
    if default_backend(settings.get("UV_FIND_LINKS", "")):
        command += ["--torch-backend", "cpu"]
    run(command + switches + [ROOT / "pyproject.toml"], settings)
    LOCK.write_text(LOCK_HEADER + re.sub(r"(?m)^(torch==[^+\s]+)\+\w+", r"\1", draft.read_text()))


def run(command: list, settings=None, advice: str = "Mend that, and run this again.") -> None:
    """Run a command of which a failure ends this program."""
    environment = dict(os.environ, **(settings or {}))
    if subprocess.call([str(word) for word in command], env=environment) != 0:
        fail(f"{' '.join(map(str, command[:3]))} failed. {advice}")


def say(message: str) -> None:
    """Print what takes time."""
    print("bootstrap: " + message, flush=True)


def fail(message: str) -> None:
    """End with a message and without a traceback."""
    sys.exit("bootstrap: error: " + message)


if __name__ == "__main__":
    main()
