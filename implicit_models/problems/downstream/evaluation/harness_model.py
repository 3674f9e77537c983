"""Our models as one that the harness asks for log-likelihoods; importing this makes it known."""

import contextlib
import logging
import math
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from lm_eval.api.registry import register_model
from lm_eval.models import huggingface
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from implicit_models.equilibrium.phase import Phase
from implicit_models.language_models.forward import is_implicit
from implicit_models.language_models.language_model import LanguageModel
from implicit_models.language_models.phases import default_phase
from implicit_models.problems.downstream.evaluation.answers import Answers, Continuation
from implicit_models.problems.downstream.evaluation.continuations import ReadingCost, answer
from implicit_models.problems.downstream.evaluation.harness_tasks import HarnessError

logger = logging.getLogger(__name__)

PIECE_LENGTH = 1024
"""Tokens of a text that are read at once."""

_ON_COMMAND_LINE = (
    *("pretrained", "tokenizer", "max_length", "device", "dtype", "batch_size"),
    *("tolerance", "max_self_iterations", "piece_length", "shares_beginnings"),
)

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
    others
        Of the harness's ``hf`` alone; they are refused.
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
        piece_length: int | None = PIECE_LENGTH,
        kept: Answers | None = None,
        shares_beginnings: bool = True,
        **others: Any,
    ) -> None:
        if others:
            raise HarnessError(
                f"--model implicit takes no {', '.join(others)}; allowed in --model_args are "
                f"{', '.join(_ON_COMMAND_LINE)}: leave the others out, or take --model hf"
            )
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
            raise HarnessError(
                f"tolerance or max_self_iterations is given, but {reason}: leave both out"
            )
        asked = {
            "tolerance": tolerance,
            "max_self_iterations": max_self_iterations,
            "phase": phase,
        }
        self._asked = {name: value for name, value in asked.items() if value is not None}
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
        """Return the log-likelihood of each continuation, and whether it is the greedy one."""
        return super().loglikelihood(requests, disable_tqdm=disable_tqdm or not on_terminal())

    def get_model_info(self) -> dict[str, Any]:
        """Describe the model, without asking the hub about it."""
        return _describe(self.model)

    def _model_generate(self, context: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return super()._model_generate(context, *args, **kwargs, **self._asked)

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
def _no_level_below(level: int) -> Iterator[None]:
    logger = logging.getLogger("lm_eval")
    before = logger.level
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(before)


def on_terminal() -> bool:
    """Return whether somebody watches."""
    return sys.stderr is not None and sys.stderr.isatty()
