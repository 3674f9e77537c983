"""The flow of Prefect that runs the points of a sweep: a task each, some at once."""

import contextlib
import contextvars
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from prefect import flow, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.futures import wait
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed, Failed
from prefect.task_runners import ThreadPoolTaskRunner
from prefect.utilities.annotations import quote

from pipelines.cluster.gpus import held_gpus
from pipelines.cluster.local_gpus import stage_environment
from pipelines.cluster.placement import Place
from pipelines.publishing import publish
from pipelines.running import (
    InfrastructureError,
    Log,
    StageFailedError,
    StoppedError,
    allow_all,
    stopping,
)
from pipelines.server.open_runs import untagged_tasks
from pipelines.stopping import stopped_from_outside
from pipelines.sweeps.comparison import Row, Sweep
from pipelines.sweeps.points import Point, changed_keys
from pipelines.sweeps.slots import held_slot
from pipelines.sweeps.workspaces import Workspace, cache_folder, is_done, run_point, run_shared

WORKSPACES = Path(".dvc") / "tmp" / "sweeps"


#: The points are no parameters of the flow: Prefect would store params.yaml once for each.
SWEEP: contextvars.ContextVar[Sweep] = contextvars.ContextVar("sweep")


@task(cache_policy=NO_CACHE, persist_result=False)
def point_task(sweep: Sweep, cache: Path, point: Point) -> State:
    """Run a point, unless its experiment is there already."""
    logger = get_run_logger()
    try:
        if is_done(sweep.root, sweep.origin, point):
            ran = False
        else:
            with _workspace(sweep, point.name, logger.info) as workspace:
                ran = run_point(workspace, cache, point, logger.info)
    except StoppedError as error:
        sweep.rows.append(Row(point, "stopped"))
        return Cancelled(message=str(error))
    except (StageFailedError, InfrastructureError, OSError) as error:
        logger.error("%s failed: %s", point.label, error)
        sweep.rows.append(Row(point, "failed", reason=str(error)))
        return Failed(message="its log has the reason")
    except Exception as error:
        logger.exception("%s failed by a fault of the flow itself", point.label)
        sweep.rows.append(Row(point, "failed", reason=f"{type(error).__name__}: {error}"))
        return Failed(message="its log has the reason")
    sweep.rows.append(Row(point, "done" if ran else "already there"))
    if ran:
        return Completed(message=f"experiment {point.name}")
    logger.info("%s is there already", point.name)
    return Completed(name="Cached", message=f"experiment {point.name}")


@task(name="shared stages", cache_policy=NO_CACHE, persist_result=False)
def shared_task(sweep: Sweep, cache: Path, missing: Sequence[Point]) -> State:
    """Run once, before the points, what all of them would run at the same time."""
    logger = get_run_logger()
    try:
        with _workspace(sweep, f"{sweep.name}-shared", logger.info) as workspace:
            run_shared(workspace, cache, missing[0], changed_keys(missing), logger.info)
    except StoppedError as error:
        return Cancelled(message=str(error))
    except (StageFailedError, InfrastructureError, OSError) as error:
        # Each point comes upon it again, and says so in its own name.
        logger.error("%s", error)
        return Failed(message="its log has the reason")
    except Exception:
        logger.exception("a fault of the flow itself")
        return Failed(message="its log has the reason")
    return Completed()


@contextlib.contextmanager
def _workspace(sweep: Sweep, name: str, log: Log) -> Iterator[Workspace]:
    """Hold what a part of a sweep needs of the machine: a slot, GPUs, and a folder to work in."""
    with held_slot(sweep.limit, log), held_gpus(sweep.gpus, log) as gpus:
        place = stage_environment(Place(gpus=sweep.gpus), gpus.names)
        folder = sweep.root / WORKSPACES / name
        yield Workspace(sweep.root, folder, sweep.origin, {**sweep.share, **place}, gpus.locks)


def _run_name() -> str:
    return " ".join([SWEEP.get().name, *(dict(flow_run.parameters or {}).get("overrides") or ())])


@flow(name="sweep", flow_run_name=_run_name, persist_result=False)
def sweep(overrides: list[str], preset: str | None, jobs: int) -> State:
    """Run the points of `SWEEP` and compare them; a failed point does not stop the others."""
    running = SWEEP.get()
    logger = get_run_logger()
    root, points = running.root, running.points
    allow_all()
    with stopped_from_outside(running.outcomes), untagged_tasks():
        cache = cache_folder(root)
        missing = [point for point in points if not is_done(root, running.origin, point)]
        if jobs > 1 and len(missing) > 1:
            named = shared_task.with_options(task_run_name="shared stages")
            named(running, cache, missing, return_state=True)
        # Quoted, as in the other flow: the points write to it while Prefect would look into it.
        futures = [_named(point).submit(quote(running), cache, point) for point in points]
        wait(futures)
        page = running.compare()
        logger.info("the comparison is in %s", page.relative_to(root))
    publish(page.read_text(), f"sweep-{_key(running.name)}", "the points", running.outcomes)
    states = [row.state for row in running.rows]
    message = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    if stopping():
        return Cancelled(message=message)
    return Failed(message=message) if "failed" in states else Completed(message=message)


def _named(point: Point) -> Any:
    # A text would be formatted, and values may have braces.
    return point_task.with_options(name="point", task_run_name=lambda: point.label)


def _key(name: str) -> str:
    """Return a name as Prefect allows it in the key of an artifact."""
    return name.lower().replace("_", "-")


def run_sweep(running: Sweep, overrides: Sequence[str], preset: str | None, jobs: int) -> State:
    """Run the flow, so many points at once; what came of it is in the sweep.

    Returns
    -------
    State
        With the error by which the flow itself has ended, if any.
    """
    SWEEP.set(running)
    runner = ThreadPoolTaskRunner(max_workers=jobs)
    here = sweep.with_options(task_runner=runner)  # type: ignore[arg-type]
    return here(overrides=list(overrides), preset=preset, jobs=jobs, return_state=True)
