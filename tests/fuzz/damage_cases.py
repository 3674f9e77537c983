"""Every damage to every file that a stage reads, in a project that has come to its report."""

import hashlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from pipelines.dag import Stage, read_dag
from tests.crash.leftovers import content_of
from tests.fuzz.answers import MOST_SECONDS, Answer, ask
from tests.stages.in_process import COMMANDS

Damage = Callable[[bytes], bytes]


def _flipped(content: bytes, place: float) -> bytes:
    """Flip a bit, but not of white space, which in JSON means nothing."""
    position = int(place * (len(content) - 1))
    while position and content[position : position + 1].isspace():
        position -= 1
    return content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :]


DAMAGES: dict[str, Damage] = {
    "emptied": lambda content: b"",
    "cut in half": lambda content: content[: len(content) // 2],
    "without its last byte": lambda content: content.rstrip()[:-1],
    "a bit flipped at the beginning": lambda content: _flipped(content, 0.02),
    "a bit flipped in the middle": lambda content: _flipped(content, 0.5),
    "a bit flipped near the end": lambda content: _flipped(content, 0.93),
    "not UTF-8": lambda content: content[:10] + b"\xff\xfe\x80" + content[13:],
    "zeros": lambda content: bytes(len(content)),
    "something else": lambda content: b'{"x": [1, null]}\n',
}
SWAPPED = "swapped with another"
REMOVED = "removed"

# What a stage reads beside its dependencies in dvc.yaml: what the stage before it has left for the
# tracking, what it has kept of itself, and DVC's record of what is done.
_BESIDE = {"train_free": ("train_bounded",), "train_upcycled_free": ("train_bounded",)}


class Case(NamedTuple):
    """A stage, a file that it reads, and what becomes of that."""

    stage: Stage
    file: str
    damage: str


def cases(project: Path) -> Iterator[Case]:
    """Yield a case for each kind of stage, each file that it reads and each damage."""
    kinds = {stage.kind: stage for stage in reversed(read_dag(project).values())}
    for stage in kinds.values():
        for file in files_read(project, stage):
            for damage in (*DAMAGES, SWAPPED, REMOVED):
                yield Case(stage, file, damage)


def files_read(project: Path, stage: Stage) -> list[str]:
    """Return the files that a stage reads; of code, none, and of a user's own, those alone."""
    found: set[Path] = set()
    for dependency in stage.deps:
        path = project / dependency
        if path.parts[len(project.parts)] not in ("code", "implicit_models", "stages"):
            found |= {path} if path.is_file() else set(path.rglob("*"))
    for before in _BESIDE.get(stage.kind, ()):
        found |= set((project / "results" / "runs" / stage.entry).glob(f"{before}*"))
    if stage.entry:
        found |= set((project / "checkpoints" / stage.entry).rglob("*"))
        found |= set((project / ".tracking").glob(f"*{stage.entry}*"))
        found |= {project / "dvc.lock"}
    return sorted(str(path.relative_to(project)) for path in found if path.is_file())


def answer(project: Path, case: Case, fresh: Path) -> tuple[Answer, list[str]]:
    """Damage a file in a copy of a project, run the stage, and return what is otherwise then.

    Parameters
    ----------
    fresh
        Where the copy is made; the current folder.
    """
    restore(project, fresh)
    damage(project, fresh, case)
    module = COMMANDS[case.stage.kind].split()[2].removeprefix("stages.")
    found = ask(module, case.stage.entry)
    if found.kind != "done" or case.file == "params.yaml":  # other parameters, other results
        return found, []
    expected, now = outputs(project, case.stage), outputs(fresh, case.stage)
    return found, sorted(path for path in expected if now.get(path) != expected[path])


def judged(project: Path, case: Case, fresh: Path) -> tuple[str, str]:
    """Return what an answer is, and in a line what is wrong with it, if anything."""
    found, changed = answer(project, case, fresh)
    if found.kind == "refused" and found.seconds > MOST_SECONDS:  # the first imports its libraries
        found, changed = answer(project, case, fresh)
    place = f"{case.stage.name}, {case.file} {case.damage}"
    if found.kind == "failed":
        return "failed", f"failed: {place}: {found.said.strip().splitlines()[-1]}"
    if changed:
        return "silent", f"silent: {place}: another {', '.join(changed)}"
    names = (case.file, Path(case.file).name, str(Path(case.file).parent))
    if found.kind == "refused" and not any(name in found.said for name in names):
        return "unnamed", f"unnamed: {place}: {found.said}"
    if found.kind == "refused" and found.seconds > MOST_SECONDS:
        return "slow", f"slow: {place}: {found.seconds:.1f} s"
    return ("refused" if found.kind == "refused" else "done all the same"), ""


def damage(project: Path, fresh: Path, case: Case) -> None:
    """Put a damaged file in the place of a file."""
    path = fresh / case.file
    content = path.read_bytes()
    path.unlink()
    if case.damage == SWAPPED:
        others = (
            each for each in sorted((project / case.file).parents[1].rglob(f"*{path.suffix}"))
        )
        contents = (each.read_bytes() for each in others if each.is_file())
        path.write_bytes(next((each for each in contents if each != content), b"other"))
    elif case.damage != REMOVED:
        path.write_bytes(DAMAGES[case.damage](content))


def restore(project: Path, fresh: Path) -> None:
    """Make a folder what a project is."""
    for path in fresh.iterdir():
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    shutil.copytree(project, fresh, symlinks=True, dirs_exist_ok=True)


def outputs(project: Path, stage: Stage) -> Mapping[str, str]:
    """Digest the outputs of a stage, as far as they must always be the same."""
    found = {}
    for out in stage.outs:
        path = project / out
        files = [path] if path.is_file() else sorted(path.rglob("*"))
        for file in files:
            if file.is_file():
                name = str(file.relative_to(project))
                content = content_of(file, timeless=name.startswith("results"))
                if content is not None:
                    found[name] = hashlib.sha256(content).hexdigest()
    return found
