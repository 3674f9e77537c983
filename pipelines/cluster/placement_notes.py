"""What placement.yaml leaves to chance, told when a flow begins: nothing of it is an error."""

import fnmatch
from collections.abc import Collection, Sequence

from pipelines.cluster.gpus import offered_gpus
from pipelines.cluster.placement import HERE, Placement
from pipelines.running import InfrastructureError

_TRAINING = "train_*"
_NAMED = 3


def placement_notes(
    placement: Placement, names: Collection[str] | None, waiting: Collection[str], jobs: int
) -> list[str]:
    """Return a line for each thing that is likely not meant.

    Parameters
    ----------
    names
        Of all stages of the repository; None where only some are known.
    waiting
        Names of those that have to run.
    jobs
        How many run at once on this machine.
    """
    notes = []
    for pattern in placement.stages if names is not None else ():
        if not fnmatch.filter(names or (), pattern):
            notes.append(f"placement.yaml: no stage fits the pattern {pattern}")
    trained = {name: placement.place(name) for name in fnmatch.filter(waiting, _TRAINING)}
    bare = [name for name, place in trained.items() if place.pool != HERE and not place.gpus]
    if bare:
        pool = trained[bare[0]].pool
        notes.append(
            f"{_listed(bare)} have no GPU in the pool {pool}: placement.yaml gives a stage as many "
            'as it says (stages: {"train_*": {pool: ' + pool + ", gpus: 1}})"
        )
    here = [name for name, place in trained.items() if place.pool == HERE and not place.gpus]
    if jobs > 1 and len(here) > 1 and (offered := _offered()) > 1:
        notes.append(
            f"stages that run at once share one of the {offered} GPUs of this machine: "
            'placement.yaml hands them out (stages: {"train_*": {gpus: 1}})'
        )
    return notes


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_NAMED])
    return f"{shown} and {len(names) - _NAMED} more" if len(names) > _NAMED else shown


def _offered() -> int:
    try:
        return len(offered_gpus())
    except InfrastructureError:
        return 0
