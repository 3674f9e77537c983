"""What a stage answers."""

import contextlib
import importlib
import io
import logging
import sys
import time
import traceback
from dataclasses import dataclass
from typing import Literal
from unittest import mock

from stages.common import run_stage
from tests.stages.commands import STAGES

# What each stage calls once it has read its parameters.
_AFTER_READING = {
    "code": "stages.code.write_text",
    "prepare": "stages.prepare.own_folder",
    "training.train_bounded": "stages.training.train_bounded.start_processes",
    "training.train_free": "stages.training.train_free.start_processes",
    "training.train_baseline": "stages.training.train_baseline.start_processes",
    "evaluation.sweep_test_time_compute": "stages.evaluation.sweep_test_time_compute.open_test",
    "evaluation.evaluate_benchmarks": "stages.evaluation.evaluate_benchmarks.discard_recorded",
    "report": "implicit_models.reporting.results.read_results",
}
MOST_SECONDS = 1.0  # of processor time, to refuse
_APART = "stages.evaluation.tested_apart.open_test"


@dataclass(frozen=True)
class Answer:
    """What became of a stage.

    Attributes
    ----------
    kind
        Whether it came to its end (or, of parameters, past reading them), refused in one line (the
        check of all parameters in one for each mistake) with exit status 2, or failed otherwise.
    said
        Its last lines, or the traceback.
    seconds
        Of processor time.
    """

    kind: Literal["done", "refused", "failed"]
    said: str
    seconds: float


class _HasReadError(BaseException):
    """The parameters are read, and nothing was refused."""


def ask(stage: str, name: str) -> Answer:
    """Run a stage in this process."""
    module = importlib.import_module(f"stages.{stage}")
    arguments = [stage, *([name] if STAGES[stage] else [])]
    errors = io.StringIO()
    began = time.process_time()
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (
            contextlib.redirect_stderr(errors),
            contextlib.redirect_stdout(io.StringIO()),
            mock.patch.object(sys, "argv", arguments),
        ):
            run_stage(module.main, *STAGES[stage])
        kind, said = "done", ""
    except _HasReadError:
        kind, said = "done", ""
    except SystemExit as stop:
        said = errors.getvalue()
        lines = [line for line in said.splitlines() if line.startswith("error: ")]
        is_one = len(lines) == 1 or (stage == "code" and said.count("\n") == len(lines) > 0)
        kind = "refused" if stop.code == 2 and is_one and said.endswith("\n") else "failed"
        said = "\n".join(lines) if kind == "refused" else said
    except BaseException:
        kind, said = "failed", traceback.format_exc()
    finally:
        logging.disable(level)
    return Answer(kind, said, time.process_time() - began)


def ask_reader(stage: str, name: str) -> Answer:
    """Run a stage in this process until it has read its parameters."""
    with contextlib.ExitStack() as patched:
        for place in {_AFTER_READING[stage], _APART}:
            patched.enter_context(mock.patch(place, side_effect=_HasReadError))
        return ask(stage, name)
