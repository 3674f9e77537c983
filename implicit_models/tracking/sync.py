"""Send what is tracked and not sent yet: ``python -m implicit_models.tracking.sync``.

The same command, detached and of low priority, is the courier that runs beside the stages.
"""

import argparse
import functools
import logging
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from implicit_models.tracking.courier import Send, detach, serve
from implicit_models.tracking.spool import open_spools

_logger = logging.getLogger("implicit_models.tracking.sync")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns 0 if nothing is left to be sent."""
    parser = argparse.ArgumentParser(prog="python -m implicit_models.tracking.sync")
    parser.description = "Send tracked runs to MLflow that could not be sent before."
    parser.add_argument("--root", type=Path, default=Path("."), help="the repository")
    parser.add_argument("--to", help="tracking store, instead of the one recorded with each run")
    parser.add_argument("--courier", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.courier:
        detach()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    send = _send(options.root, options.to)
    if options.courier:
        os.chdir(options.root)  # DVC may remove the folder of the stage that started it
        serve(options.root, send)
        return 0
    spools = open_spools(options.root)
    problems = send(spools, math.inf)
    for spool, problem in problems.items():
        _logger.error("not sent: %s: %s", spool.path.name, problem)
    if problems and not options.to:
        _logger.error("where the address they were recorded with is wrong: --to ADDRESS")
    if not spools:
        _logger.info("there is nothing left to send")
    else:
        _logger.info("%d of %d runs are sent completely", len(spools) - len(problems), len(spools))
    return 1 if problems else 0


def _send(root: Path, destination: str | None) -> Send:
    """Return what sends spools; MLflow is imported with the first of them, not before."""

    @functools.cache
    def sender():
        from implicit_models.tracking.mlflow import Sender

        return Sender(root, destination)

    return lambda spools, seconds: sender().send(spools, seconds)


if __name__ == "__main__":
    sys.exit(main())
