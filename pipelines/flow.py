"""The flow of Prefect that brings the pipeline up to date: one task for each of DVC's stages."""

import contextvars
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from prefect import allow_failure, flow
from prefect.client.schemas.objects import State
from prefect.futures import PrefectFuture
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed, Failed
from prefect.task_runners import ThreadPoolTaskRunner
from prefect.utilities.annotations import quote

from pipelines.artifacts import flow_page, git_commit
from pipelines.cluster.placement import HERE, read_placement
from pipelines.cluster.placement_notes import placement_notes
from pipelines.cluster.runners import runner_for
from pipelines.dag import Stage, dag_status
from pipelines.outcomes import Outcomes
from pipelines.presets import kept_words, parameters_for
from pipelines.publishing import publish
from pipelines.running import allow_all, stopping
from pipelines.schedule import walk
from pipelines.server.open_runs import untagged_tasks
from pipelines.stage_task import FlowContext, stage_task
from pipelines.stopping import stopped_from_outside
from pipelines.terminal import core_share

#: Whoever calls the flow may look here at what came of the stages, even where Prefect is gone.
OUTCOMES: contextvars.ContextVar[Outcomes | None] = contextvars.ContextVar("outcomes", default=None)

_TRACKING_PATIENCE = 15.0  # seconds that the last stages' runs may take to be in MLflow


def _run_name() -> str:
    given: dict[str, Any] = dict(flow_run.parameters or {})
    parts = [given.get("preset"), *(given.get("targets") or ["everything"])]
    seeds = given.get("seeds")
    if seeds:
        parts.append(f"seeds {','.join(map(str, seeds))}")
    return " ".join(part for part in parts if part)


@flow(
    name="reproduce",
    flow_run_name=_run_name,
    task_runner=ThreadPoolTaskRunner(),  # type: ignore[arg-type]
    persist_result=False,
)
def reproduce(
    targets: list[str] | None = None,
    preset: str | None = None,
    seeds: list[int] | None = None,
    jobs: int = 1,
    pool: str | None = None,
) -> State:
    """Bring stages up to date as `dvc repro` does, in the repository that is the working directory.

    Parameters
    ----------
    targets
        Stages, or groups of stages; none is everything.
    preset
        Of conf/preset, from which params.yaml is written anew before.
    seeds
        Every model of params.yaml is there under each of them.
    jobs
        How many stages run at once on this machine.
    pool
        Of placement.yaml, in which all stages run.
    """
    root = Path.cwd()
    logger = get_run_logger()
    given = OUTCOMES.get()
    outcomes = given or Outcomes()
    outcomes.started = time.monotonic()
    placement = read_placement(root)
    if pool is not None:
        placement = placement.everything_in(pool)
    # Who gives outcomes has written them, and keeps others from it.
    written = parameters_for(root, preset, seeds or ()) if given is None else nullcontext()
    allow_all()
    with (
        written as kept,
        stopped_from_outside(outcomes),
        untagged_tasks(),
    ):
        if kept is not None:
            logger.warning(kept_words(root, kept))
        seen = dag_status(root, targets or ())
        outcomes.stages, outcomes.are_stages_known = seen.stages, True
        context = FlowContext(
            root,
            seen.unchanged,
            partial(runner_for, placement=placement, root=root, share=core_share(jobs)),
            outcomes,
            git_commit(root),
        )
        logger.info("%s, %d of them unchanged", outcomes.num_stages(), len(seen.unchanged))
        waiting = [name for name in seen.stages if name not in seen.unchanged]
        whole = None if targets else seen.stages
        for note in placement_notes(placement, whole, waiting, jobs):
            logger.warning(note)
        futures: dict[str, PrefectFuture[Any]] = {}

        def begin(stage: Stage, done: Callable[[], None]) -> None:
            # A cancelled parent would crash the task; that one's failed parent stands for it.
            causes = {outcomes.cause(name) for name in stage.parents}
            parents: Any = [allow_failure(futures[name]) for name in causes]
            named: Any = stage_task.with_options(name=stage.kind, task_run_name=stage.name)
            # Prefect would look for futures in what the other tasks write to meanwhile.
            future = named.submit(stage, quote(context), wait_for=parents)
            futures[stage.name] = future
            future.add_done_callback(lambda _: done())

        def needs_slot(stage: Stage) -> bool:
            is_work = stage.name not in seen.unchanged and outcomes.blocking(stage) is None
            return is_work and placement.place(stage.name).pool == HERE

        walk(seen.stages, jobs, begin, needs_slot=needs_slot, stopping=_told_once(logger.warning))
        context.late_pages.close(_TRACKING_PATIENCE, stopping)
        publish(flow_page(outcomes, context.commit), "stages", "what came of the stages", outcomes)
    return _final_state(outcomes)


def _final_state(outcomes: Outcomes) -> State:
    summary = outcomes.summary()
    failed = outcomes.failed()
    if stopping():
        return Cancelled(message=f"stopped: {summary}")
    if failed:
        return Failed(message=f"{', '.join(failed)} failed: {summary}")
    return Completed(message=summary)


def _told_once(tell: Callable[[str], None]) -> Callable[[], bool]:
    """Return what tells whether the flow is stopped, and logs that the first time."""
    told = False

    def look_and_tell() -> bool:
        nonlocal told
        if stopping() and not told:
            told = True
            tell("stops: the running stages keep what they have (once more: they are killed)")
        return stopping()

    return look_and_tell
