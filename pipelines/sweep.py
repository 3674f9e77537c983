"""Run the product of values as experiments of DVC, several at once, and compare them.

Exit status: 0 every point is there, 1 points failed, 2 a mistake in the command, 3 every point is
there but Prefect could not record it, 129, 130 or 143 stopped; the same command goes on from there.
See docs/sweeps.md.
"""

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from implicit_models.parameters import ParameterError
from implicit_models.parameters.composition import preset_of
from pipelines.cluster.gpus import offered_gpus
from pipelines.cluster.local_gpus import TORCHRUN
from pipelines.handing_over import Parser, mistake
from pipelines.outcomes import Outcomes
from pipelines.processes import stopping
from pipelines.running import InfrastructureError
from pipelines.server.embedded import OwnApi, own_api
from pipelines.server.local_server import ServerError
from pipelines.sweeps.comparison import THERE, Sweep
from pipelines.sweeps.points import Point, SweepError, plan, read_origin
from pipelines.sweeps.tagging import filter_of, tag_points
from pipelines.sweeps.workspaces import is_done
from pipelines.terminal import (
    AGAIN,
    FAILED,
    UNRECORDED,
    core_share,
    is_of_prefect,
    of_dvc,
    recorded,
    signals_interrupt,
    tell_stopped,
    tell_unrecorded,
    without_room,
)

_CHOSEN = ("IMPLICIT_MODELS_DEVICE", TORCHRUN)  # by which the user says what a training runs on


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a sweep in the repository that is the working directory; return the exit status."""
    options = _options(arguments)
    root = Path.cwd()
    outcomes = Outcomes()
    try:
        with signals_interrupt(outcomes), own_api(root) as own:
            # All that can be a mistake is looked at while Prefect's server starts, for seconds.
            origin = read_origin(root)
            points = plan(root, origin, options.name, options.override, options.preset)
            print(_announced(root, points, options.jobs), flush=True)
            sweep = Sweep(
                root,
                options.name,
                origin,
                points,
                options.limit,
                gpus=_gpus(options.gpus),
                share=core_share(options.jobs),
                outcomes=outcomes,
            )
            _run(sweep, options, own)
            # Also where Prefect gave up the flow before.
            page = sweep.page or (sweep.compare() if sweep.rows else None)
    except (ParameterError, SweepError, ServerError, InfrastructureError) as error:
        return mistake(error)
    except OSError as error:
        return without_room(error)
    except KeyboardInterrupt:  # which signal it was is in the outcomes
        return tell_stopped(outcomes) or FAILED
    except Exception as error:
        return of_dvc(error)
    if page is not None:
        print(page.read_text())
        there = [row.point for row in sweep.rows if row.state in THERE]
        problem = tag_points(root, options.name, there)
        print(f"{page.relative_to(root)}, with every metric in {page.stem}.csv")
        print(f"in MLflow: the filter {filter_of(options.name)}", flush=True)
        if problem is not None:
            print(f"MLflow's runs have no such tag yet: {problem}; {AGAIN}", file=sys.stderr)
    tell_unrecorded(outcomes, "DVC has the experiments")
    status = tell_stopped(outcomes)
    if status is not None:
        return status
    for row in sweep.rows:
        if row.state == "failed":
            print(f"error: {row.point.label} failed: {row.reason}", file=sys.stderr)
    if not all(is_done(root, origin, point) for point in points):
        print(f"error: not every point is there; {AGAIN}", file=sys.stderr)
        return FAILED
    return UNRECORDED if outcomes.unrecorded else 0


def _run(sweep: Sweep, options: argparse.Namespace, own: OwnApi | None) -> None:
    """Run the flow; nothing is given back, as the sweep has it all."""
    state: Any = None
    with recorded(sweep.root, sweep.outcomes, own):
        from pipelines.sweeps.flow import run_sweep
        from pipelines.sweeps.slots import check_limit

        if options.limit is not None:
            check_limit(options.limit)
        state = run_sweep(sweep, options.override, options.preset, options.jobs)
    have_failed = any(row.state == "failed" for row in sweep.rows)
    if state is None or not state.is_failed() or stopping() or (have_failed and sweep.page):
        return
    error = state.result(raise_on_failure=False)
    if not sweep.rows and not is_of_prefect(error):
        raise error
    sweep.outcomes.note_unrecorded(error)


def _gpus(given: int | None) -> int:
    """Return how many GPUs each point has."""
    if given is not None or any(name in os.environ for name in _CHOSEN):
        return given or 0
    return min(1, len(offered_gpus()))


def _announced(root: Path, points: Sequence[Point], jobs: int) -> str:
    """Return what is going to run: a sweep that names no preset is of the configuration's."""
    presets = dict.fromkeys(preset_of(root, point.overrides) for point in points)
    names = ", ".join(name for name in presets if name is not None)
    of = f" of {names}" if names else ""
    return f"{len(points)} points{of}, {min(jobs, len(points))} at once"


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="python -m pipelines.sweep", description=__doc__)
    parser.add_argument("override", nargs="+", help="KEY=VALUE,VALUE,... of params.yaml")
    parser.add_argument("--preset", help="the one of conf/preset to start from (default: laptop)")
    parser.add_argument("--jobs", type=int, default=1, help="points at once (default: 1)")
    parser.add_argument("--name", default="sweep", help="with what experiments' names begin")
    parser.add_argument("--limit", help="a global concurrency limit of Prefect to hold a slot of")
    parser.add_argument(
        "--gpus",
        type=int,
        help="that each point has (default: 1 where the machine has any, unless "
        f"{' or '.join(_CHOSEN)} is set; 0: all see the same)",
    )
    options = parser.parse_args(arguments)
    if options.jobs < 1:
        parser.error(f"--jobs {options.jobs} is not allowed; allowed is 1 or more")
    if options.gpus is not None and options.gpus < 0:
        parser.error(f"--gpus {options.gpus} is not allowed; allowed is 0 or more")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", options.name):
        parser.error(
            f"--name {options.name!r} is not allowed; allowed are letters, digits, - and _"
        )
    return options


if __name__ == "__main__":
    sys.exit(main())
