"""Prefect: order, fan-out, retries and placement of the stages that DVC describes."""

import os
from typing import TYPE_CHECKING, Any

# Prefect reads it when it is first imported: nothing is sent to its makers from here.
os.environ.setdefault("DO_NOT_TRACK", "1")
os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")

if TYPE_CHECKING:
    from pipelines.experiment import run_experiment

__all__ = ["run_experiment"]


def __getattr__(name: str) -> Any:
    """Import what is offered here when it is asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pipelines.experiment import run_experiment

    return run_experiment
