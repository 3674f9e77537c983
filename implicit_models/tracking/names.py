"""What is measured, as MLflow names it.

``train.*`` is of the batches that a training reads, ``validation.*`` of held-out data while it
runs, ``test.*`` of the final model, and ``phase.*`` of one training stage as a whole.
"""

from collections.abc import Mapping
from typing import Any

TEST = "test."
TRAINING_SECONDS = "train.seconds"

_HELD_OUT = "validation_"
_CURVES = {"training_flops": "train.flops", "seconds": "train.elapsed_seconds"}

# Of a training stage as a whole, as its file of metrics names them.
_TOTALS = {
    "num_training_steps": "steps",
    "num_skipped_steps": "skipped_steps",
    "num_tokens": "tokens",
    "training_flops": "flops",
    "train_seconds": "seconds",
    "tokens_per_second": "tokens_per_second",
    "peak_memory_bytes": "peak_memory_bytes",
    "energy_joules": "energy_joules",
}
_SIZE = "num_parameters"

# The curves that an entry's run has beside those of its stages. Tokens and operations are counted
# from the entry's first step, so that their last values are the whole training's.
_OF_ENTRIES = frozenset(
    {
        "train.loss",
        "train.accuracy",
        "train.self_iterations",
        "train.tokens",
        "train.flops",
        "validation.loss",
        "validation.accuracy",
    }
)


def curves(logged: Mapping[str, float]) -> dict[str, float]:
    """Return what a training logs at a step under the tracking's names.

    >>> curves({"loss": 0.5, "validation_loss": 0.7, "training_flops": 1e12})
    {'train.loss': 0.5, 'validation.loss': 0.7, 'train.flops': 1000000000000.0}
    """
    return {_curve(name): value for name, value in logged.items()}


def of_entry(named: Mapping[str, float]) -> dict[str, float]:
    """Return those curves that an entry's run has too."""
    return {name: value for name, value in named.items() if name in _OF_ENTRIES}


def stage_totals(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return what one training stage has taken."""
    return _totals(metrics, "phase.")


def entry_totals(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return what the trainings of an entry have taken, but for what its curves end with."""
    totals = _totals(metrics, "train.")
    return {name: value for name, value in totals.items() if name not in _OF_ENTRIES}


def _curve(name: str) -> str:
    if name.startswith(_HELD_OUT):
        return f"validation.{name.removeprefix(_HELD_OUT)}"
    return _CURVES.get(name, f"train.{name}")


def _totals(metrics: Mapping[str, Any], prefix: str) -> dict[str, float]:
    named = {_SIZE: _SIZE} | {name: f"{prefix}{total}" for name, total in _TOTALS.items()}
    found = {total: metrics.get(name) for name, total in named.items()}
    return {total: float(value) for total, value in found.items() if value is not None}
