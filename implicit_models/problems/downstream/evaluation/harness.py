"""Downstream tasks through lm-eval, the language model evaluation harness.

Importing this makes our models known to the harness. So its own command line serves them, after

    python -m implicit_models.problems.downstream.evaluation.harness --model hf \
        --model_args pretrained=DIR --tasks piqa

with ``--model hf`` as they come, and with ``--model implicit`` reading each context once for all
its choices.
"""

import contextlib
import difflib
import io
import math
import os
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
from lm_eval import evaluator
from lm_eval.__main__ import cli_evaluate
from transformers import PreTrainedTokenizerBase

from implicit_models.equilibrium.phase import Phase
from implicit_models.evaluation.score_store import ScoreStore
from implicit_models.language_models.language_model import LanguageModel
from implicit_models.problems.downstream.evaluation.answers import Answers
from implicit_models.problems.downstream.evaluation.continuations import ReadingCost
from implicit_models.problems.downstream.evaluation.downstream import Summary, summarise
from implicit_models.problems.downstream.evaluation.harness_model import (
    PIECE_LENGTH,
    SharedContextLM,
    on_terminal,
)
from implicit_models.problems.downstream.evaluation.harness_tasks import (
    HarnessError,
    check_tasks,
    load_tasks,
)
from implicit_models.problems.downstream.tasks import ACCURACIES, TASKS


@dataclass(frozen=True, kw_only=True)
class HarnessResult:
    """One model on the tasks.

    Attributes
    ----------
    report
        The harness's own JSON: ``results``, ``configs``, ``versions`` and so on. Nothing in it
        depends on the time or the machine.
    summary
        Its numbers under the paper's columns.
    num_items
        Items evaluated, by column of the summary.
    cost
        What was read; of an evaluation that was interrupted, since it went on.
    """

    report: dict[str, Any]
    summary: Summary
    num_items: dict[str, int]
    cost: ReadingCost


def evaluate_tasks(
    model: LanguageModel,
    tokenizer: PreTrainedTokenizerBase,
    files: Mapping[str, Path] | None,
    *,
    tasks: Collection[str] = TASKS,
    phase: Phase | None = None,
    batch_size: int = 16,
    max_length: int | None = None,
    limit: int | None = None,
    piece_length: int | None = PIECE_LENGTH,
    store: ScoreStore | None = None,
    bootstrap_iters: int = 1000,
) -> HarnessResult:
    """Evaluate a model on the harness's tasks, zero-shot, with the harness's definitions.

    Parameters
    ----------
    files
        The file of each task, as `data.task_files` writes them; then nothing is asked of any
        network. None has the harness download its copies from the hub.
    phase
        How fixed points are searched; None for a model that has none, or for its configuration's
        choice.
    batch_size
        Texts read together.
    max_length
        Tokens of a text at most, what is longer being cut on the left; None as the harness finds
        it in the configuration or the tokenizer, or else 2048.
    limit
        The first so many items of each task; None is all.
    piece_length
        Tokens of a text read at once, which bounds the memory.
    store
        Keeps finished answers, so that an evaluation that is interrupted goes on where it was;
        whoever gives it discards it. None keeps none.
    bootstrap_iters
        Resamplings behind the standard error of the perplexity; the harness seeds them itself.
        Those of accuracies are in closed form.

    Raises
    ------
    HarnessError
        Where a task is not known or has no file, or the tokenizer is not the model's.
    """
    check_tasks(tasks, files)
    with contextlib.ExitStack() as stack:
        cache = stack.enter_context(tempfile.TemporaryDirectory(prefix="datasets-"))
        kept = None if store is None else Answers(stack.enter_context(store))
        stack.enter_context(_quiet())
        harness_model = SharedContextLM(
            model,
            tokenizer,
            max_length=max_length,
            batch_size=batch_size,
            phase=phase,
            piece_length=piece_length,
            kept=kept,
        )
        loaded = load_tasks(tasks, files, Path(cache))
        try:
            report = evaluator.evaluate(
                harness_model,
                {"tasks": loaded},
                limit=limit,
                bootstrap_iters=bootstrap_iters,
                log_samples=False,
            )
        except OverflowError:  # it takes the exponential of the mean
            raise HarnessError(
                "the perplexity of lambada_openai is larger than any float: this model has not "
                "learned from text; tasks may leave it out"
            ) from None
    assert report is not None  # as it is in all processes but the first
    found: dict[str, Any] = {**report}
    config = harness_model.get_model_info() | {"bootstrap_iters": bootstrap_iters}
    config |= {"batch_size": batch_size, "max_length": harness_model.max_length, "limit": limit}
    counts = found["n-samples"]
    return HarnessResult(
        report=_plain(found | {"config": config}),
        summary=summarise(found["results"]),
        num_items={
            column: counts[task]["effective"]
            for column, (task, _) in ACCURACIES.items()
            if task in counts
        },
        cost=harness_model.cost,
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the harness's and its libraries' prints off; bars show on a terminal alone.

    The harness would draw its bootstrap samples in a pool of processes, forked from one with
    torch's threads; in this one they are the same.
    """
    variable, before = "DISABLE_MULTIPROC", os.environ.get("DISABLE_MULTIPROC")
    were_shown = not datasets.utils.are_progress_bars_disabled()
    os.environ[variable] = "1"
    datasets.utils.disable_progress_bars()
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
            if not on_terminal():
                stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
            yield
    finally:
        if were_shown:
            datasets.utils.enable_progress_bars()
        if before is None:
            del os.environ[variable]
        else:
            os.environ[variable] = before


def _plain(value: Any) -> Any:
    """Make JSON of it: names for functions, file names for paths, None for what is no number."""
    if isinstance(value, Mapping):
        left_out = ("config_source", "cache_dir")  # of this machine
        return {str(key): _plain(each) for key, each in value.items() if key not in left_out}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, str):
        return Path(value).name if os.path.isabs(value) else value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int):
        return value
    if hasattr(value, "item"):
        return _plain(value.item())
    return getattr(value, "__name__", str(value))


def main() -> int:
    """Run the harness's own command line; what a user can mend is one line, not a traceback."""
    try:
        cli_evaluate()
    except (ValueError, OSError) as error:
        sys.stderr.write(f"error: {_in_one_line(error)}\n")
        return 2
    return 0


def _in_one_line(error: Exception) -> str:
    said = " ".join(str(error).split())
    unknown = said.partition("Tasks not found: ")[2]
    if unknown:
        names = unknown.split(", ")
        closest = [each for name in names for each in difflib.get_close_matches(name, TASKS, n=1)]
        meant = f"; the closest is {', '.join(closest)}" if closest else ""
        return (
            f"there is no task {', '.join(names)}{meant} (the paper's are {', '.join(TASKS)}; "
            "`lm-eval ls tasks` lists all of lm-eval's)"
        )
    if isinstance(error, ConnectionError):
        return (
            f"{said}: the items of a task come from the hub. Without it put TASK.jsonl files into "
            "a folder, and name folder and model in params.yaml, under tasks and benchmarks "
            "(docs/evaluation.md, conf/preset/downstream.yaml)"
        )
    return said


if __name__ == "__main__":
    sys.exit(main())
