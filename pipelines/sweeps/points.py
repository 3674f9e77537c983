"""The points of a sweep: the product of the values of overrides, each composed by Hydra.

Overrides are Hydra's own: ``key=1,2,3``, ``key=range(1,4)``, ``key=choice(a,b)``, ``preset=a,b``.
"""

import hashlib
import itertools
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from implicit_models.parameters import ParameterError, composition
from implicit_models.parameters.composition import CONFIGURATION
from implicit_models.parameters.dotted import dotted
from pipelines.checking import check_parameters
from pipelines.git import git
from pipelines.sweeps.own_files import leads_out, named, own_content

_TAKEN = (CONFIGURATION, "implicit_models", "stages")  # what git has not got there counts as well


class SweepError(ValueError):
    """A sweep that cannot be had; the message says what to do."""


@dataclass(frozen=True)
class Origin:
    """The code from which all points of a sweep start, whatever its author goes on to do.

    Attributes
    ----------
    commit
        Of git.
    changes
        How the files differed from it, as a patch.
    """

    commit: str
    changes: bytes = b""


@dataclass(frozen=True)
class Point:
    """One combination of values.

    Attributes
    ----------
    name
        Of the experiment in DVC: the sweep's, and a digest of all that decides the result.
    label
        The values that differ between the points, for people.
    overrides
        All of them, as Hydra and `dvc exp run -S` take them.
    parameters
        The composed content of params.yaml.
    own
        What the files are that it names and git has not got; see `own_content`.
    """

    name: str
    label: str
    overrides: tuple[str, ...]
    parameters: Mapping[str, Any]
    own: Mapping[str, str] = field(default_factory=dict)

    @property
    def values(self) -> dict[str, str]:
        """The overrides as keys and values."""
        return dict(override.split("=", 1) for override in self.overrides)


def plan(
    root: Path,
    origin: Origin,
    name: str,
    overrides: Sequence[str],
    preset: str | None = None,
) -> list[Point]:
    """Compose every point; a mistake is told before anything runs.

    Raises
    ------
    SweepError
        An override is malformed, or names a key that there is not; a path leads out of the
        repository.
    ParameterError
        The check finds mistakes in points.
    """
    axes = [[f"preset={preset}"]] if preset is not None else []
    axes += [_axis(override) for override in overrides]
    keys = [axis[0].partition("=")[0].lstrip("+~") for axis in axes]
    for key in keys:
        if keys.count(key) > 1:
            raise SweepError(f"{key} is given twice; give all its values at once: {key}=A,B")
    varied = {i for i, axis in enumerate(axes) if len(axis) > 1}
    products = list(itertools.product(*axes))
    composed = [compose(root, values) for values in products]
    try:
        contents = own_content(root, composed)
    except OSError as error:
        raise SweepError(
            f"what entries name cannot be read: {error}; make it readable, or name another"
        ) from error
    points = []
    for values, parameters, own in zip(products, composed, contents, strict=True):
        content = origin.changes + repr(parameters).encode()
        content += repr(own).encode() if own else b""
        digest = hashlib.sha256(content).hexdigest()[:8]
        label = " ".join(value for i, value in enumerate(values) if i in varied)
        points.append(Point(f"{name}-{digest}", label or " ".join(values), values, parameters, own))
    # Overrides may differ and yet compose to the same.
    distinct = list({point.name: point for point in reversed(points)}.values())[::-1]
    _check(root, distinct)
    check_places(root, distinct)
    return distinct


def check_places(root: Path, points: Sequence[Point]) -> None:
    """Check that what entries name is found from a clone as well.

    Raises
    ------
    SweepError
        Naming the key that leads out of the repository, and what is allowed.
    """
    for key, value in (each for point in points for each in named(point.parameters)):
        if leads_out(value):
            place = os.path.normpath(root.resolve() / value)
            raise SweepError(
                f"{key} = {value!r} leads out of the repository, and each point runs in a clone; "
                f"allowed is a path in the repository, or a whole one: {place}"
            )


def _check(root: Path, points: Sequence[Point]) -> None:
    import yaml

    contents = {
        point.label or point.name: yaml.safe_dump(dict(point.parameters), sort_keys=False)
        for point in points
    }
    check_parameters(root, contents)


def _axis(text: str) -> list[str]:
    """Split ``key=1,2`` into ``key=1`` and ``key=2``."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        override = OverridesParser.create().parse_override(text)
        if override.is_sweep_override():
            values = [str(value) for value in override.sweep_string_iterator()]
        else:
            values = [override.get_value_element_as_str()]
    except (HydraException, ValueError) as error:
        said = str(error).splitlines()[0]
        raise SweepError(_no_override(text, said)) from error
    key = override.get_key_element()
    if not key:
        raise SweepError(_no_override(text, "the key is missing"))
    if not values:
        raise SweepError(_no_override(text, "it has no values"))
    return [f"{key}={value}" for value in values]


def _no_override(text: str, said: str) -> str:
    return (
        f"{text} is no override ({said}); overrides are KEY=VALUE,VALUE,..., such as "
        "runs.x.seed=0,1,2"
    )


def compose(root: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """Return what `dvc exp run -S ...` would write to params.yaml.

    Raises
    ------
    SweepError
        Hydra refuses an override, or an entry's name is not allowed.
    """
    import yaml

    if not (root / CONFIGURATION).is_dir():
        raise SweepError(
            f"there is no folder {CONFIGURATION} with Hydra's configuration here; go to the "
            "repository's folder"
        )
    try:
        return yaml.safe_load(composition.compose(root, overrides))
    except ParameterError as error:
        preset = composition.preset_of(root, overrides)
        is_named = preset is None or any(each.startswith("preset=") for each in overrides)
        of = "" if is_named else f"; this is {preset}, as no other is named (--preset)"
        raise SweepError(f"{error}{of}") from error


def changed_keys(points: Sequence[Point]) -> set[str]:
    """Return the dotted keys on which the points' parameters differ."""
    flats = [dict(dotted(point.parameters)) for point in points]
    return {key for flat in flats for key in flat if any(o.get(key) != flat[key] for o in flats)}


def read_origin(root: Path) -> Origin:
    """Read the present commit, and how files differ from it, less what stages write.

    They are those that git tracks, and presets and code of one's own that it does not.

    Raises
    ------
    SweepError
        There is nothing that an experiment could start from.
    """
    if not (root / "dvc.yaml").exists():
        raise SweepError("there is no dvc.yaml here; go to the repository's folder")
    head = _git(root, "rev-parse", "--verify", "HEAD")
    if head.returncode:
        raise SweepError(
            "experiments are kept in git, and there is no commit here: `git init && git add --all "
            "&& git commit`"
        )
    if _git(root, "ls-files", "--error-unmatch", "dvc.yaml").returncode:
        raise SweepError("dvc.yaml is not in git: `git add dvc.yaml && git commit`")
    written = (":!params.yaml", ":!dvc.lock", ":!results")
    commit = head.stdout.decode().strip()
    # What a user's settings of git could make of a patch, no `git apply` would read.
    plain = ("--no-color", "--no-ext-diff", "--no-textconv", "--src-prefix=a/", "--dst-prefix=b/")
    with TemporaryDirectory() as folder:
        index = _with_new_files(root, Path(folder))
        arguments = ("diff", "--binary", *plain, commit, "--", ".", *written)
        diff = _git(root, *arguments, index=index)
    if diff.returncode:
        raise SweepError(_of_git("diff", diff))
    return Origin(commit, diff.stdout)


def _with_new_files(root: Path, folder: Path) -> Path:
    """Return an index of git's in a folder that has presets and code, too, that are new to git."""
    found = root / _git(root, "rev-parse", "--git-path", "index").stdout.decode().strip()
    index = folder / "index"
    if found.exists():
        shutil.copy(found, index)
    others = ("ls-files", "--others", "--exclude-standard", "-z", "--")
    new = _git(root, *others, *_TAKEN).stdout.decode(errors="surrogateescape").split("\0")[:-1]
    if new:
        added = _git(root, "add", "--intent-to-add", "--", *new, index=index)
        if added.returncode:
            raise SweepError(_of_git("add", added))
    return index


def _of_git(command: str, done: subprocess.CompletedProcess[bytes]) -> str:
    said = done.stderr.decode(errors="replace").strip()
    return f"git {command} failed: {said}; mend that, and start the sweep again"


def _git(
    root: Path, *arguments: str, index: Path | None = None
) -> subprocess.CompletedProcess[bytes]:
    variables: Any = {} if index is None else {"GIT_INDEX_FILE": str(index)}
    try:
        return git(root, *arguments, **variables)
    except FileNotFoundError:
        raise SweepError("git is not installed, which experiments need; install it") from None
