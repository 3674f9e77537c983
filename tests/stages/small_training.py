"""Entries of a few training steps, and a tracker that keeps what it hears."""

import functools
import signal
from pathlib import Path
from types import ModuleType

import pytest

from implicit_models.parameters import read_section
from implicit_models.parameters.composition import compose
from implicit_models.problems.word_problem.data.writing import write_splits
from implicit_models.problems.word_problem.parameters import WordProblemParameters
from implicit_models.tracking.tracker import NullTracker

ROOT = Path(__file__).parents[2]
RUN, BASELINE = "s3_implicit_mamba2", "s3_lstm"
SMALL = {
    "datasets.s3.train.num_sequences": 256,
    f"runs.{RUN}.optimisation.warmup_steps": 1,
    f"runs.{RUN}.bounded.num_training_steps": 3,
    f"runs.{RUN}.bounded.lengths.growth_steps": 3,
    f"runs.{RUN}.free.num_training_steps": 2,
    f"runs.{RUN}.free.decay_steps": 1,
    f"runs.{RUN}.free.lengths.growth_steps": 2,
    f"baselines.{BASELINE}.optimisation.warmup_steps": 1,
    f"baselines.{BASELINE}.training.num_training_steps": 2,
    f"baselines.{BASELINE}.training.decay_steps": 1,
    f"baselines.{BASELINE}.training.lengths.growth_steps": 2,
    "monitoring.log_every": 1,
    "monitoring.validate_every": 1,
}


@functools.cache
def small_parameters() -> str:
    """Return the content of params.yaml."""
    return compose(ROOT, ["preset=quick", *(f"{name}={value}" for name, value in SMALL.items())])


def write_project(folder: Path) -> None:
    """Write parameters and data into an empty folder."""
    path = folder / "params.yaml"
    path.write_text(small_parameters())
    write_splits(read_section("datasets.s3", WordProblemParameters, path), folder / "data" / "s3")


def replace_in_parameters(before: str, after: str) -> None:
    """Replace a text in params.yaml, wherever it stands."""
    text = Path("params.yaml").read_text()
    assert before in text
    Path("params.yaml").write_text(text.replace(before, after))


def lengthen_baseline() -> None:
    """Set the baseline's steps to four, so that it can be cut short."""
    path = Path("params.yaml")
    before, _, after = path.read_text().partition(f"  {BASELINE}:")
    longer = after.replace("num_training_steps: 2", "num_training_steps: 4", 1)
    path.write_text(f"{before}  {BASELINE}:{longer}")


class Recorder(NullTracker):
    """Keeps the metrics, as (level, step, metrics)."""

    def __init__(self):
        self.calls = []

    def log_metrics(self, metrics, step=None, level="both"):
        self.calls.append((level, step, metrics))

    def totals(self, level):
        """Return the metrics of the training as a whole."""
        return next(m for each, _, m in self.calls if each == level and "num_parameters" in m)


class Asking(Recorder):
    """Asks its own process to stop, after the first step."""

    def log_metrics(self, metrics, step=None, level="both"):
        super().log_metrics(metrics, step, level)
        if step == 1:
            signal.raise_signal(signal.SIGTERM)


def cut_short(monkeypatch: pytest.MonkeyPatch, stage: ModuleType, name: str = BASELINE) -> None:
    """Run a training stage until it is asked to stop; it does after its second step."""
    with monkeypatch.context() as patch:
        patch.setattr("stages.training.segment.open_run", lambda *_, **__: Asking())
        with pytest.raises(SystemExit) as stopped:
            stage.main(name)
    assert stopped.value.code == 143
