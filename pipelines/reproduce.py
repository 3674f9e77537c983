"""Bring the pipeline up to date as `dvc repro` does, as a flow of Prefect.

Exit status: 0 everything is up to date, 1 a stage failed, 2 a mistake in the command, 3 everything
is up to date but Prefect could not record it, 129, 130 or 143 stopped. See docs/orchestration.md.
"""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from implicit_models.parameters import ParameterError
from implicit_models.tracking.links import waits_to_be_sent
from pipelines.closing import closing_words
from pipelines.cluster.placement import read_placement
from pipelines.dag import UnknownTargetError, dag_status
from pipelines.handing_over import Parser, mistake
from pipelines.outcomes import Outcomes
from pipelines.presets import ParametersError, kept_words, parameters_for
from pipelines.processes import stopping
from pipelines.seeds import SeedError, parse_seeds
from pipelines.server.embedded import OwnApi, own_api
from pipelines.server.local_server import ServerError
from pipelines.terminal import (
    AGAIN,
    FAILED,
    UNRECORDED,
    is_of_prefect,
    of_dvc,
    recorded,
    signals_interrupt,
    tell_stopped,
    tell_unrecorded,
    without_room,
)

MISTAKES = (
    UnknownTargetError,
    ParameterError,
    ParametersError,
    SeedError,
    ServerError,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the flow in the repository that is the working directory; return the exit status."""
    options = _options(arguments)
    root = Path.cwd()
    outcomes = Outcomes()
    try:
        with signals_interrupt(outcomes):
            _reproduce(root, options, outcomes)
    except MISTAKES as error:
        return mistake(error)
    except KeyboardInterrupt:
        pass  # which signal it was is in the outcomes
    except Exception as error:
        if outcomes.by_stage:  # what has ended is told, whatever came then
            _tell(root, outcomes)
        return without_room(error) if isinstance(error, OSError) else of_dvc(error)
    return _tell(root, outcomes)


def _reproduce(root: Path, options: argparse.Namespace, outcomes: Outcomes) -> None:
    if not (root / "dvc.yaml").exists():
        raise UnknownTargetError("there is no dvc.yaml here; go to the repository's folder")
    seeds = parse_seeds(options.seeds) if options.seeds else ()
    placement = read_placement(root)
    if options.pool:
        placement.everything_in(options.pool)
    # All that can be a mistake is looked at while Prefect's server starts, for seconds.
    check = partial(dag_status, root, options.targets)
    written = parameters_for(root, options.preset, seeds, check=check)
    with own_api(root) as own, written as kept:
        if kept is not None:
            print(kept_words(root, kept))
        parameters = {
            "targets": options.targets or None,
            "preset": options.preset,
            "seeds": list(seeds) or None,
            "jobs": options.jobs,
            "pool": options.pool,
        }
        _run(root, parameters, outcomes, own)


def _run(root: Path, parameters: dict[str, Any], outcomes: Outcomes, own: OwnApi | None) -> None:
    """Run the flow; nothing is given back, as the outcomes have it all."""
    state: Any = None
    with recorded(root, outcomes, own):
        from prefect.flow_engine import run_flow

        from pipelines.flow import OUTCOMES, reproduce

        OUTCOMES.set(outcomes)
        flow: Any = reproduce
        state = run_flow(flow, parameters=parameters, return_type="state")
    if state is None or not state.is_failed() or outcomes.failed() or stopping():
        return
    error = state.result(raise_on_failure=False)
    if not outcomes.is_complete and not (outcomes.are_stages_known and is_of_prefect(error)):
        raise error
    outcomes.note_unrecorded(error)


def _tell(root: Path, outcomes: Outcomes) -> int:
    """Print how it ended and what to do now; return the exit status."""
    if outcomes.stages:
        print(outcomes.summary(), file=sys.stderr)
    ran = [name for name, outcome in outcomes.by_stage.items() if outcome.how == "ran"]
    waiting = [name for name in ran if waits_to_be_sent(root, name)]
    if waiting:
        print(
            f"not in MLflow yet, and kept: the runs of {', '.join(waiting)}; "
            "`python -m implicit_models.tracking.sync` sends them, or says what keeps it from that",
            file=sys.stderr,
        )
    done = "DVC has them, and the same command shows every stage as cached"
    tell_unrecorded(outcomes, done if outcomes.is_complete else None)
    status = tell_stopped(outcomes)
    if status is not None:
        return status
    failed = outcomes.failed()
    for name in failed:
        print(f"error: {outcomes.by_stage[name].message}", file=sys.stderr)
    if failed:
        return FAILED
    if not outcomes.is_complete:
        print(f"error: not every stage was reached; {AGAIN}", file=sys.stderr)
        return FAILED
    if "report" in outcomes.stages:
        print(closing_words(root))
    return UNRECORDED if outcomes.unrecorded else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="python -m pipelines.reproduce", description=__doc__)
    parser.add_argument("targets", nargs="*", help="stages or groups of stages; none: everything")
    parser.add_argument("--preset", help="write params.yaml anew from this one of conf/preset")
    parser.add_argument("--seeds", help="have every model under each of these seeds, such as 0,1,2")
    parser.add_argument(
        "--jobs", type=int, default=1, help="stages at once on this machine (default: 1)"
    )
    parser.add_argument("--pool", help="have all stages run in this pool of placement.yaml")
    options = parser.parse_args(arguments)
    if options.jobs < 1:
        parser.error(f"--jobs {options.jobs} is not allowed; allowed is 1 or more")
    return options


if __name__ == "__main__":
    sys.exit(main())
