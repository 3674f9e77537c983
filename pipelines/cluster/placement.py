"""Where stages run: ``placement.yaml``, which git does not track, for it is about machines.

    pools:
      gpu-nodes: {kind: prefect}
      slurm: {kind: slurm, slurm: {partition: gpu, time: 720}}
    stages:                              # the first pattern that a stage's name fits counts
      "train_*@big_*": {pool: slurm, nodes: 2, gpus: 8}
      "train_*": {pool: gpu-nodes, gpus: 1}

A stage that no pattern fits runs here, and so do all where there is no such file.
"""

import dataclasses
import difflib
import fnmatch
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml

FILE = "placement.yaml"
HERE = "here"
NAMES = "check_names"  # the stage that all others wait for

_LEAST_MINUTES = 5

T = TypeVar("T")


class PlacementError(ValueError):
    """placement.yaml says something that cannot be; the message names file and key."""


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Machines that take stages.

    Attributes
    ----------
    kind
        ``prefect``: workers of a work pool of Prefect, processes or containers; ``slurm``: jobs.
    deployment
        Of a work pool: the deployment that runs a stage there; ``run-stage/NAME`` where not given.
    remote
        Name of the DVC remote through which data travels; DVC's default where not given.
    heartbeat_seconds
        How often a node says that it is there, and how often its state is looked at.
    lost_after_seconds
        Of silence, after which a node counts as lost and its stage is given to another.
    start_within_seconds
        From when a worker takes a stage until its first heartbeat; a container may have to be
        pulled. Waiting for a free worker is not among it.
    checkpoint_seconds
        How often a node looks for checkpoints to copy into the remote.
    clone
        Of Slurm: the repository on a disk that the nodes see; this one where not given.
    max_requeues
        Of Slurm: how often a job that was preempted, or ran out of time, is queued again.
    slurm
        Of Slurm: options of ``sbatch`` with their values, as submitit names them (``partition``,
        ``time`` in minutes, ``mem``, ``account``, ``additional_parameters``).
    """

    kind: Literal["prefect", "slurm"]
    deployment: str | None = None
    remote: str | None = None
    heartbeat_seconds: float = 10.0
    lost_after_seconds: float = 120.0
    start_within_seconds: float = 900.0
    checkpoint_seconds: float = 30.0
    clone: str | None = None
    max_requeues: int = 10
    slurm: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = ("heartbeat_seconds", "lost_after_seconds", "start_within_seconds")
        for name in (*names, "checkpoint_seconds"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} = {getattr(self, name)}; allowed is above 0")
        if self.lost_after_seconds < 3 * self.heartbeat_seconds:
            raise ValueError(
                f"lost_after_seconds = {self.lost_after_seconds}; allowed is at least three times "
                f"heartbeat_seconds, {3 * self.heartbeat_seconds}"
            )
        if self.kind == "slurm" and "time" not in self.slurm:
            raise ValueError("slurm.time is missing; allowed is a number of minutes")
        minutes = self.slurm.get("time")
        if isinstance(minutes, int) and minutes < _LEAST_MINUTES:
            raise ValueError(
                f"slurm.time = {minutes}; allowed is at least {_LEAST_MINUTES} (minutes): a job is "
                "warned two to four before its end"
            )
        if self.max_requeues < 0:
            raise ValueError(f"max_requeues = {self.max_requeues}; allowed is at least 0")


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where stages of a pattern run, and what they get there.

    Attributes
    ----------
    pool
        Name of a pool; ``here`` is this machine.
    gpus
        That the stage gets on each node, by ``CUDA_VISIBLE_DEVICES``; 0 leaves that variable alone.
    nodes
        More than one in a pool of Slurm alone.
    torchrun
        torchrun's options; where not given they follow from `gpus` and `nodes`.
    environment
        What the stage's environment has on top of that of the machine.
    """

    pool: str = HERE
    gpus: int = 0
    nodes: int = 1
    torchrun: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.gpus < 0:
            raise ValueError(f"gpus = {self.gpus}; allowed is at least 0")
        if self.nodes < 1:
            raise ValueError(f"nodes = {self.nodes}; allowed is at least 1")


@dataclass(frozen=True)
class Placement:
    """What placement.yaml says.

    Attributes
    ----------
    pools
        By name.
    places
        By pattern of the names of stages, in the file's order.
    """

    pools: Mapping[str, Pool] = field(default_factory=dict)
    places: Mapping[str, Place] = field(default_factory=dict)

    def place(self, name: str) -> Place:
        """Look up where a stage runs: by the first pattern that its name fits.

        What only looks at params.yaml waits in no queue.
        """
        if name == NAMES:
            return Place()
        for pattern, place in self.places.items():
            if fnmatch.fnmatchcase(name, pattern):
                return place
        return Place()

    def everything_in(self, pool: str) -> "Placement":
        """Have all stages run in one pool, with the GPUs and the environment that they have.

        Raises
        ------
        PlacementError
            Where there is no such pool.
        """
        _check_pool(pool, self.pools, "--pool")
        moved = {
            pattern: dataclasses.replace(place, pool=pool) for pattern, place in self.places.items()
        }
        return dataclasses.replace(self, places={**moved, "*": moved.get("*", Place(pool=pool))})


def read_placement(root: Path) -> Placement:
    """Read a repository's placement.yaml; where there is none everything runs here.

    Raises
    ------
    PlacementError
        Naming the key, what was found and what is allowed.
    """
    path = root / FILE
    if not path.exists():
        return Placement()
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise PlacementError(f"{FILE}: cannot be read as YAML: {error}") from None
    except OSError as error:
        raise PlacementError(f"{FILE}: cannot be read: {error.strerror}") from None
    try:
        tables = _mapping(content or {}, "the file")
        _check_keys(tables, ("pools", "stages"), "")
        pools = {
            str(name): _build(Pool, section, f"pools.{name}")
            for name, section in _mapping(tables.get("pools") or {}, "pools").items()
        }
        places = {
            str(pattern): _build(Place, section, f"stages.{pattern}")
            for pattern, section in _mapping(tables.get("stages") or {}, "stages").items()
        }
        if HERE in pools:
            raise PlacementError(f"pools.{HERE}: this name means this machine; choose another")
        for pattern, place in places.items():
            _check_place(place, pools, f"stages.{pattern}")
    except PlacementError as error:
        raise PlacementError(f"{FILE}: {error}") from None
    return Placement(pools, places)


def _check_place(place: Place, pools: Mapping[str, Pool], key: str) -> None:
    _check_pool(place.pool, pools, f"{key}.pool")
    pool = pools.get(place.pool)
    if place.nodes > 1 and (pool is None or pool.kind != "slurm"):
        raise PlacementError(
            f"{key}.nodes = {place.nodes} is allowed in a pool of the kind slurm alone, which "
            f"gives a stage several nodes at once; {place.pool} is none"
        )


def _check_pool(name: str, pools: Iterable[str], key: str) -> None:
    known = [HERE, *pools]
    if name not in known:
        raise PlacementError(f"{key} = {name!r} is not known; {_closest(name, known)}")


def _mapping(value: Any, key: str) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise PlacementError(f"{key} = {value!r} is not a section; allowed is a mapping")
    return value


def _check_keys(section: Mapping[Any, Any], allowed: Iterable[str], prefix: str) -> None:
    allowed = list(allowed)
    for name in section:
        if name not in allowed:
            closest = _closest(str(name), allowed)
            raise PlacementError(f"{prefix}{name} is not a known setting; {closest}")


def _closest(name: str, allowed: list[str]) -> str:
    closest = difflib.get_close_matches(name, allowed, n=1, cutoff=0.0)[0]
    return f"the closest is {closest} (allowed: {', '.join(allowed)})"


def _build(schema: type[T], section: Any, key: str) -> T:
    section = _mapping(section, key)
    hints = typing.get_type_hints(schema)
    _check_keys(section, hints, f"{key}.")
    for required in dataclasses.fields(schema):  # type: ignore[arg-type]
        has_none = required.default is required.default_factory is dataclasses.MISSING
        if has_none and required.name not in section:
            allowed = _words(hints[required.name])
            raise PlacementError(f"{key}.{required.name} is missing; allowed is {allowed}")
    values = {name: _typed(hints[name], value, f"{key}.{name}") for name, value in section.items()}
    try:
        return schema(**values)
    except ValueError as error:
        raise PlacementError(f"{key}.{error}") from None


def _typed(hint: Any, value: Any, key: str) -> Any:
    """Check a value against its type; a whole number may stand for a float, nothing else."""
    if typing.get_origin(hint) is types.UnionType:
        if value is None:
            return None
        hint = next(each for each in typing.get_args(hint) if each is not types.NoneType)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        fits = value in arguments
    elif origin is not None:
        fits = isinstance(value, Mapping) and all(isinstance(name, str) for name in value)
        fits = fits and (arguments[1] is Any or all(isinstance(v, str) for v in value.values()))
    elif hint is float:
        fits = isinstance(value, int | float) and not isinstance(value, bool)
    else:
        fits = type(value) is hint
    if not fits:
        raise PlacementError(f"{key} = {value!r} is not allowed; allowed is {_words(hint)}")
    return value


def _words(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return "one of " + ", ".join(map(repr, arguments))
    if origin is not None:
        inner = "a value" if arguments[1] is Any else "a text in quotes"
        return f"a mapping of names, each to {inner}"
    return {str: "a text", int: "a whole number", float: "a number"}[hint]
