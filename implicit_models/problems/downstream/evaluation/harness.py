"""Downstream tasks through lm-eval, the language model evaluation harness; its only importer.

Importing this makes our models known to the harness. So its own command line serves them, after

    python -m implicit_models.problems.downstream.evaluation.harness --model hf \
        --model_args pretrained=DIR --tasks piqa

with ``--model hf`` as they come, and with ``--model implicit`` reading each context once for all
its choices.
"""

import contextlib
import io
import logging
import math
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import lm_eval.tasks
import torch
from lm_eval import evaluator
from lm_eval.__main__ import cli_evaluate
from lm_eval.api.registry import register_model
from lm_eval.models import huggingface
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from implicit_models.equilibrium.phase import Phase
from implicit_models.evaluation.score_store import ScoreStore
from implicit_models.language_models.language_model import LanguageModel
from implicit_models.language_models.phases import default_phase
from implicit_models.language_models.reading import is_implicit
from implicit_models.problems.downstream.evaluation.answers import Answers, Continuation
from implicit_models.problems.downstream.evaluation.continuations import ReadingCost, answer
from implicit_models.problems.downstream.evaluation.downstream import (
    ACCURACIES,
    Summary,
    summarise,
)
from implicit_models.problems.downstream.parameters import TASKS

logger = logging.getLogger(__name__)

# Folders of the harness that define them; to read all of its thousands takes ten seconds.
_FOLDERS = ("arc", "hellaswag", "lambada", "openbookqa", "piqa", "winogrande")
_PIECE_LENGTH = 1024


class HarnessError(ValueError):
    """The harness cannot evaluate this model on these tasks."""


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


# Its decorator hides from type checkers what it is.
_HuggingFaceLM: Any = huggingface.HFLM


class SharedContextLM(_HuggingFaceLM):
    """The harness's model of Hugging Face, reading a shared context once, and fixed points our way.

    Tokenisation, truncation and generation are the harness's.

    Parameters
    ----------
    pretrained, tokenizer, max_length, device, dtype
        As of the harness's ``hf``.
    batch_size
        Texts read together, a number; ``max_batch_size`` has no use for it.
    tolerance, max_self_iterations
        Of an implicit model's search; None takes its configuration's.
    phase
        In their place, from Python.
    piece_length
        Tokens of a text read at once.
    kept
        Where finished answers are kept.
    shares_beginnings
        False reads every context once for each of its choices, as ``hf`` does.
    """

    def __init__(
        self,
        pretrained: str | PreTrainedModel,
        tokenizer: str | PreTrainedTokenizerBase | None = None,
        max_length: int | None = None,
        device: str | None = None,
        dtype: str | torch.dtype = "auto",
        batch_size: int | str = 16,
        max_batch_size: int | None = None,
        tolerance: float | None = None,
        max_self_iterations: int | None = None,
        phase: Phase | None = None,
        piece_length: int | None = _PIECE_LENGTH,
        kept: Answers | None = None,
        shares_beginnings: bool = True,
    ) -> None:
        if not str(batch_size).isdigit() or not int(batch_size):
            raise HarnessError(f"batch_size is {batch_size!r}; allowed is a number from 1")
        with _no_level_below(logging.ERROR):  # it warns of being given a model, which is no mistake
            super().__init__(
                pretrained=pretrained,
                tokenizer=tokenizer,
                backend="causal",
                max_length=max_length,
                device=device or ("cuda" if torch.cuda.is_available() else "cpu"),
                dtype=dtype,
                batch_size=int(batch_size),
                max_batch_size=max_batch_size,
            )
        given = tolerance is not None or max_self_iterations is not None
        if given and (phase is not None or not is_implicit(self.model)):
            reason = "the phase has its own" if phase else "this model seeks no fixed point"
            raise HarnessError(f"tolerance or max_self_iterations is given, but {reason}")
        if phase is None and is_implicit(self.model):
            phase = default_phase(
                self.model.config,
                differentiable=False,
                num_tokens=2,  # any text: a single token would be searched without a window
                tolerance=tolerance,
                max_self_iterations=max_self_iterations,
            )
        self.phase, self.piece_length, self.kept = phase, piece_length, kept
        self.shares_beginnings = shares_beginnings
        self.cost = ReadingCost()
        _check_tokenizer(self.model, self.tokenizer)

    def loglikelihood(
        self, requests: list[Any], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Give the log-likelihood of each continuation, and whether it is the greedy one."""
        return super().loglikelihood(requests, disable_tqdm=disable_tqdm or not _on_terminal())

    def get_model_info(self) -> dict[str, Any]:
        """Describe the model, without asking the hub about it."""
        return _describe(self.model)

    def _loglikelihood_tokens(
        self,
        requests: Sequence[tuple[tuple[str, str] | None, list[int], list[int]]],
        disable_tqdm: bool = False,
        override_bs: int | None = None,
    ) -> list[tuple[float, bool]]:
        texts = [self._truncated(context, tokens) for _, context, tokens in requests]
        num_cut = sum(
            len(context) + len(tokens) > text.num_tokens
            for text, (_, context, tokens) in zip(texts, requests, strict=True)
        )
        if num_cut:
            logger.warning(
                "%d of %d texts are longer than max_length, %d tokens: cut on the left",
                num_cut,
                len(texts),
                self.max_length,
            )
        answers = answer(
            self.model,
            texts,
            phase=self.phase,
            batch_size=override_bs or self.batch_size,
            piece_length=self.piece_length,
            kept=self.kept,
            cost=self.cost,
            shares_beginnings=self.shares_beginnings,
        )
        found = [(one.log_likelihood, one.is_greedy) for one in answers]
        num_strange = sum(not math.isfinite(nats) for nats, _ in found)
        if num_strange:
            logger.warning(
                "%d of %d log-likelihoods are not finite: the model, or its search, explodes, and "
                "its accuracies mean nothing",
                num_strange,
                len(found),
            )
        for (request, *_), result in zip(requests, found, strict=True):
            if request is not None:  # None is part of a text read for its perplexity
                self.cache_hook.add_partial("loglikelihood", request, result)
        return found

    def _truncated(self, context: list[int], tokens: list[int]) -> Continuation:
        """Leave out what is too long for the model on the left, as the harness does."""
        if not 0 < len(tokens) <= self.max_length:
            raise HarnessError(
                f"a continuation has {len(tokens)} tokens; allowed is 1 to max_length, "
                f"{self.max_length}"
            )
        text = (context + tokens)[-(self.max_length + 1) :]
        start = len(text) - len(tokens)
        return Continuation(tuple(text[:start]), tuple(text[start:]))


register_model("implicit")(SharedContextLM)


def evaluate_tasks(
    model: LanguageModel,
    tokenizer: PreTrainedTokenizerBase,
    files: Mapping[str, Path] | None,
    *,
    tasks: Sequence[str] = TASKS,
    phase: Phase | None = None,
    batch_size: int = 16,
    max_length: int | None = None,
    limit: int | None = None,
    piece_length: int | None = _PIECE_LENGTH,
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
    _check_tasks(tasks, files)
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


def load_tasks(
    tasks: Sequence[str], files: Mapping[str, Path] | None, cache: Path
) -> dict[str, Any]:
    """Load the harness's tasks, zero-shot.

    Parameters
    ----------
    files
        As of `evaluate_tasks`.
    cache
        A folder for what the ``datasets`` library makes of the files.
    """
    folder = Path(lm_eval.tasks.__file__).parent
    manager = lm_eval.tasks.TaskManager(
        include_defaults=False, include_path=[folder / name for name in _FOLDERS]
    )
    specifications: list[Any] = list(tasks)
    if files is not None:
        # The harness lets nothing but the members of a group be overridden.
        members = [{"task": task, **_local(files[task], cache)} for task in tasks]
        specifications = [{"group": "local", "task": members}]
    found = manager.load(specifications)["tasks"]
    for task in found.values():
        task.set_config(key="num_fewshot", value=0)
    return found


def _local(path: Path, cache: Path) -> dict[str, Any]:
    """Override where a task's items come from, and nothing else: one split is all there is."""
    return {
        "dataset_path": "json",
        "dataset_name": None,
        "dataset_kwargs": {"data_files": {"test": str(path.resolve())}, "cache_dir": str(cache)},
        "test_split": "test",
        "validation_split": None,
        "training_split": None,
    }


def _check_tasks(tasks: Sequence[str], files: Mapping[str, Path] | None) -> None:
    for task in tasks:
        if task not in TASKS:
            raise HarnessError(f"there is no task {task!r}; allowed is {', '.join(TASKS)}")
        if files is not None and task not in files:
            raise HarnessError(f"task {task} has no file; there are {', '.join(files) or 'none'}")
    if not 0 < len(tasks) == len(set(tasks)):
        raise HarnessError(f"tasks are {list(tasks)}; allowed is one or more, each only once")


def _check_tokenizer(model: LanguageModel, tokenizer: PreTrainedTokenizerBase) -> None:
    if tokenizer.bos_token_id is None and tokenizer.eos_token_id is None:
        raise HarnessError(
            "the tokenizer names neither bos_token nor eos_token; one of them stands before a text "
            "without a context: its tokenizer_config.json may name it"
        )
    known = model.config.vocab_size
    largest = max(tokenizer.get_vocab().values())
    if largest >= known:
        raise HarnessError(
            f"the tokenizer has the token {largest}, the model knows those from 0 to {known - 1}: "
            "take the tokenizer that the model was trained with"
        )


def _describe(model: LanguageModel) -> dict[str, Any]:
    return {
        "model_num_parameters": sum(weight.numel() for weight in model.parameters()),
        "model_dtype": str(model.dtype),
        "model_type": model.config.model_type,
    }


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
            if not _on_terminal():
                stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
            yield
    finally:
        if were_shown:
            datasets.utils.enable_progress_bars()
        if before is None:
            del os.environ[variable]
        else:
            os.environ[variable] = before


@contextlib.contextmanager
def _no_level_below(level: int) -> Iterator[None]:
    logger = logging.getLogger("lm_eval")
    before = logger.level
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(before)


def _on_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


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


if __name__ == "__main__":
    cli_evaluate()
