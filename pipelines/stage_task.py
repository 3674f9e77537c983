"""One of DVC's stages as a task of Prefect."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.context import TaskRunContext
from prefect.logging import get_run_logger
from prefect.states import Cancelled, Completed

from implicit_models.tracking.links import waits_to_be_sent
from pipelines.artifacts import artifact_key, outcome_text, stage_page
from pipelines.dag import Stage
from pipelines.outcomes import Outcome, Outcomes
from pipelines.publishing import LatePages, publish
from pipelines.running import (
    InfrastructureError,
    Log,
    Runner,
    StageFailedError,
    StoppedError,
    pause,
)

RETRIES = 3
FIRST_DELAY = 5.0
DELAY_FACTOR = 4.0


@dataclass(frozen=True)
class FlowContext:
    """What the tasks of a flow share.

    Attributes
    ----------
    root
        The repository.
    unchanged
        Names of the stages that DVC has found up to date.
    runner_for
        Chooses where a stage is run.
    outcomes
        Where it is written down what came of it.
    commit
        The repository's commit.
    first_delay
        Seconds before a stage is tried a second time; before each further time four times longer.
    late_pages
        Pages of stages whose run is not in MLflow yet.
    """

    root: Path
    unchanged: frozenset[str]
    runner_for: Callable[[Stage], Runner]
    outcomes: Outcomes
    commit: str
    first_delay: float = FIRST_DELAY
    late_pages: LatePages = field(default_factory=LatePages)


def is_infrastructure_fault(task: Any, run: TaskRun, state: State) -> bool:
    """Return whether a failed stage may be tried again."""
    return isinstance(state.data, InfrastructureError) or isinstance(
        getattr(state.data, "result", None), InfrastructureError
    )


@task(
    retries=RETRIES,
    retry_condition_fn=is_infrastructure_fault,
    cache_policy=NO_CACHE,
    persist_result=False,
)
def stage_task(stage: Stage, context: FlowContext) -> State:
    """Bring a stage up to date, and tell Prefect what came of it."""
    logger = get_run_logger()
    start = time.monotonic()
    cause = context.outcomes.blocking(stage)
    if cause is not None:
        message = f"not run, because {cause} failed"
        context.outcomes.by_stage[stage.name] = Outcome("not run", message=message, cause=cause)
        logger.warning(message)
        return Cancelled(name="NotRun", message=message)
    try:
        outcome = _bring_up_to_date(stage, context, logger.info)
    except StoppedError as error:
        context.outcomes.by_stage[stage.name] = Outcome(
            "stopped", time.monotonic() - start, message=str(error)
        )
        logger.warning("%s", error)
        return Cancelled(message=str(error))
    except Exception as error:
        if not isinstance(error, InfrastructureError | StageFailedError):
            logger.exception("a fault of the flow itself")
        elif isinstance(error, StageFailedError) or _attempt() > RETRIES:
            logger.error("%s", error)
        context.outcomes.by_stage[stage.name] = Outcome(
            "failed", time.monotonic() - start, message=str(error)
        )
        raise
    context.outcomes.by_stage[stage.name] = outcome
    _publish_page(stage, outcome, context)
    num_done = len(context.outcomes.by_stage)
    message = f"{outcome_text(outcome)}, {outcome.seconds:.1f} s"
    if outcome.how == "cached":
        logger.info("cached")
        return Completed(name="Cached", message="DVC found it unchanged")
    logger.info("%s; done: %d of %s", message, num_done, context.outcomes.num_stages())
    return Completed(name="Restored" if outcome.how == "restored" else None, message=message)


def _publish_page(stage: Stage, outcome: Outcome, context: FlowContext) -> None:
    """Publish a stage's page, once its run is in MLflow: that takes some seconds from its end."""

    def is_sent() -> bool:
        ran_here = outcome.how == "ran" and outcome.tracked is None
        return not (ran_here and waits_to_be_sent(context.root, stage.name))

    def publish_page() -> None:
        page = stage_page(stage, outcome, context.root, context.commit)
        publish(page, artifact_key(stage.name), f"{stage.name}: {outcome.how}", context.outcomes)

    context.late_pages.add(is_sent, publish_page)


def _bring_up_to_date(stage: Stage, context: FlowContext, log: Log) -> Outcome:
    if stage.name in context.unchanged:
        return Outcome("cached")
    attempt = _attempt()
    if attempt > 1:
        delay = context.first_delay * DELAY_FACTOR ** (attempt - 2)
        last = context.outcomes.by_stage[stage.name].message.splitlines()
        log(f"{last[0] if last else 'failed'}; attempt {attempt} of {RETRIES + 1} in {delay:.0f} s")
        # Not Prefect's own delay: that cannot be interrupted, and a stopped flow has to end.
        pause(delay)
    else:
        log("begins")
    return context.runner_for(stage)(stage, log)


def _attempt() -> int:
    context = TaskRunContext.get()
    return context.task_run.run_count if context else 1
