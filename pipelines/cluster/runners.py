"""The runner of a stage: what brings it up to date where placement.yaml says that it runs."""

from collections.abc import Mapping
from pathlib import Path

from pipelines.cluster.placement import HERE, Placement
from pipelines.dag import Stage
from pipelines.running import Runner


def runner_for(
    stage: Stage, placement: Placement, root: Path, share: Mapping[str, str] | None = None
) -> Runner:
    """Return what brings a stage up to date where it belongs.

    Parameters
    ----------
    share
        The environment of stages of this machine, which share its cores; other machines have
        their own.
    """
    place = placement.place(stage.name)
    if place.pool == HERE:
        from pipelines.cluster.local_gpus import LocalGpuRunner

        return LocalGpuRunner(root, place, share or {})
    pool = placement.pools[place.pool]
    if pool.kind == "slurm":
        from pipelines.cluster.slurm import SlurmRunner

        return SlurmRunner(root, place.pool, pool, place)
    from pipelines.cluster.pools import PoolRunner

    return PoolRunner(root, place.pool, pool, place)
