"""Where stages run: ``placement.yaml``, which git does not track, for it is about machines.

    pools:
      gpu-nodes: {kind: prefect}
      slurm: {kind: slurm, slurm: {partition: gpu, time: 720}}
    stages:                              # the first pattern that a stage's name fits counts
      "train_*@big_*": {pool: slurm, nodes: 2, gpus: 8}
      "train_*": {pool: gpu-nodes, gpus: 1}

A stage that no pattern fits runs here, and so do all where there is no such file.
"""

import fnmatch
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from implicit_models.parameters import ParameterError, Parameters, read_content
from implicit_models.parameters.errors import closest_name
from pipelines.cluster.slurm_time import minutes_of

FILE = "placement.yaml"
HERE = "here"
CODE = "code"  # the stage that all others wait for

_LEAST_MINUTES = 5
_SECRET_ENDS = ("PASSWORD", "TOKEN", "SECRET", "KEY", "AUTH_STRING")
_PASSWORD_IN_ADDRESS = re.compile(r"://[^/@\s]*:[^/@\s]+@")


class Pool(Parameters):
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
        How often a stage is given to other nodes after its own were taken away with notice, and in
        Slurm after any loss of them or the end of their time.
    slurm
        Of Slurm: options of ``sbatch`` with their values, as submitit names them (``partition``,
        ``time`` in minutes or as Slurm writes it, ``mem``, ``account``, ``additional_parameters``).
    """

    kind: Literal["prefect", "slurm"]
    deployment: str | None = None
    remote: str | None = None
    heartbeat_seconds: float = Field(default=10.0, gt=0)
    lost_after_seconds: float = Field(default=120.0, gt=0)
    start_within_seconds: float = Field(default=900.0, gt=0)
    checkpoint_seconds: float = Field(default=30.0, gt=0)
    clone: str | None = None
    max_requeues: int = Field(default=10, ge=0)
    slurm: Annotated[dict[str, Any], "of names, each to a value"] = {}

    def check(self) -> None:
        """Check the keys against each other."""
        least = 3 * self.heartbeat_seconds
        if self.lost_after_seconds < least:
            raise ParameterError(
                f"lost_after_seconds = {self.lost_after_seconds} is not allowed; allowed is at "
                f"least three times heartbeat_seconds, {least}"
            )
        if self.kind == "slurm" and "time" not in self.slurm:
            raise ParameterError("slurm.time is missing; allowed is a number of minutes")
        _check_lines("slurm", self.slurm)
        time = self.slurm.get("time", _LEAST_MINUTES)
        minutes = minutes_of(time)
        if minutes is None or minutes < _LEAST_MINUTES:
            raise ParameterError(
                f"slurm.time = {time!r} is not allowed; allowed is a number of minutes, or a text "
                f"such as '12:00:00' or '2-00' (two days), of at least {_LEAST_MINUTES} minutes: "
                "a job is warned two to four before its end"
            )


class Place(Parameters):
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
        What the stage's environment has on top of that of the machine; no passwords and no keys.
    """

    pool: str = HERE
    gpus: int = Field(default=0, ge=0)
    nodes: int = Field(default=1, ge=1)
    torchrun: str | None = None
    environment: Annotated[dict[str, str], "of names, each to a text in quotes"] = {}

    def check(self) -> None:
        """Check the names of variables."""
        for name, value in self.environment.items():
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or "\0" in value:
                raise ParameterError(
                    f"environment has {name!r}, which is not allowed; allowed are letters, digits "
                    "and _, with no digit first, and values without a null character"
                )
            if name.upper().endswith(_SECRET_ENDS) or _PASSWORD_IN_ADDRESS.search(value):
                raise ParameterError(
                    f"environment has {name}, a password or key by its name or its value, which is "
                    "not allowed: Prefect's database would keep it; allowed is to set it in the "
                    "environment of the worker, or, for stages here and in Slurm, of the flow"
                )


class Placement(Parameters):
    """What placement.yaml says.

    Attributes
    ----------
    pools
        By name.
    stages
        Places by pattern of the names of stages, in the file's order.
    """

    pools: dict[str, Pool] = {}
    stages: dict[str, Place] = {}

    def check(self) -> None:
        """Check that every place has a pool that can give what it asks for."""
        if HERE in self.pools:
            raise ParameterError(f"pools.{HERE}: this name means this machine; choose another")
        for pattern, place in self.stages.items():
            self._check_pool(place.pool, f"stages.{pattern}.pool")
            pool = self.pools.get(place.pool)
            if place.nodes > 1 and (pool is None or pool.kind != "slurm"):
                raise ParameterError(
                    f"stages.{pattern}.nodes = {place.nodes} is allowed in a pool of the kind "
                    f"slurm alone, which gives a stage several nodes at once; {place.pool} is none"
                )

    def place(self, name: str) -> Place:
        """Return where a stage runs: by the first pattern that its name fits.

        What only looks at params.yaml waits in no queue.
        """
        if name == CODE:
            return Place()
        for pattern, place in self.stages.items():
            if fnmatch.fnmatchcase(name, pattern):
                return place
        return Place()

    def everything_in(self, pool: str) -> "Placement":
        """Return the placement of all stages in one pool, with their GPUs and environment.

        Raises
        ------
        ParameterError
            Where there is no such pool.
        """
        self._check_pool(pool, "--pool")
        moved = {pattern: place.replace(pool=pool) for pattern, place in self.stages.items()}
        everything = {**moved, "*": moved.get("*", Place(pool=pool))}
        # Not checked anew: what a pool cannot give, such as several nodes, a stage goes without.
        return self.model_copy(update={"stages": everything})

    def _check_pool(self, name: str, key: str) -> None:
        known = [HERE, *self.pools]
        if name not in known:
            raise ParameterError(
                f"{key} = {name!r} is not known; the closest is {closest_name(name, known)} "
                f"(allowed: {', '.join(known)})"
            )


def _check_lines(key: str, options: Mapping[str, Any]) -> None:
    """See that no option can begin a line of its own in the script of a job."""
    for name, value in options.items():
        if isinstance(value, Mapping):
            _check_lines(f"{key}.{name}", value)
        elif not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", name) or not str(value).isprintable():
            raise ParameterError(
                f"{key} has {name!r} with {value!r}, which is not allowed; allowed is an option of "
                "sbatch with a value in one line"
            )


def _check_keys(section: Mapping[Any, Any], where: str) -> None:
    """See that all keys are texts: YAML takes 1 for a number."""
    for name, value in section.items():
        if not isinstance(name, str):
            raise ParameterError(
                f"{where} has the key {name!r}, which is not allowed; allowed is a text, in quotes "
                "where YAML would take it for something else"
            )
        if isinstance(value, Mapping):
            _check_keys(value, name if where == "the file" else f"{where}.{name}")


def read_placement(root: Path) -> Placement:
    """Read a repository's placement.yaml; where there is none everything runs here.

    Raises
    ------
    ParameterError
        Naming the key, what was found and what is allowed.
    """
    path = root / FILE
    if not path.exists():
        return Placement()
    tables = read_content(path)
    try:
        if not isinstance(tables, Mapping):
            raise ParameterError(f"the file = {tables!r} is not a section; allowed is a mapping")
        _check_keys(tables, "the file")
        return Placement(**{name: table for name, table in tables.items() if table is not None})
    except ParameterError as error:
        raise ParameterError(f"{path}: {error}") from None
