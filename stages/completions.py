"""OpenAI's completions from one model.

Each prompt is a batch of its own, so that its answer depends on no other prompt and no other
request.
"""

import asyncio
import copy
import json
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from os.path import commonprefix
from typing import Any, Literal

import torch
from transformers.cli.serving.utils import InferenceThread
from transformers.generation.streamers import BaseStreamer

from implicit_models.parameters import ParameterError
from stages.completion_request import CompletionRequest
from stages.generate import LEAST_TEMPERATURE, check_positions

_BEFORE = 5  # tokens of the prompt that tell how the first one after it is written
_MOST_PENDING = 8  # tokens that are no whole character; more of them are no text
_NO_CHARACTER = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True)
class Part:
    """What is added to an answer.

    Attributes
    ----------
    index
        Of the prompt.
    num_tokens
        Of the whole answer; 0 before its end.
    finish_reason
        None before the end of the answer.
    """

    index: int
    text: str
    num_tokens: int = 0
    finish_reason: Literal["stop", "length"] | None = None


class Completions:
    """The answers of one model, one prompt after another, in the order in which they came.

    Parameters
    ----------
    name
        What a request may call the model.
    tokenizer
        A fast one.
    num_positions
        The most tokens that the model reads; None where there is no limit.
    """

    def __init__(self, name: str, model: Any, tokenizer: Any, num_positions: int | None) -> None:
        self.name, self.num_positions = name, num_positions
        self._model, self._tokenizer = model, tokenizer
        self._thread = InferenceThread()

    def prompts(self, request: CompletionRequest) -> list[list[int]]:
        """Return the tokens of each prompt of a request.

        Raises
        ------
        ParameterError
            Where the request is for another model, or there is a prompt that this one cannot read.
        """
        if request.model not in (None, self.name):
            raise ParameterError(
                f"model = {request.model!r} is not served here; allowed is {self.name!r}"
            )
        given = request.prompt
        one = isinstance(given, str) or (len(given) > 0 and isinstance(given[0], int))
        prompts = [self._tokens(each) for each in ((given,) if one else given)]
        if not prompts:
            raise ParameterError("prompt = [] has no prompt; allowed is one or more")
        longest, added = max(map(len, prompts)), request.max_tokens or 1
        wanted = f"max_tokens = {added}" if request.max_tokens else ""
        check_positions(longest, added, self.num_positions, wanted)
        return prompts

    def _tokens(self, prompt: Any) -> list[int]:
        ids = self._tokenizer(prompt)["input_ids"] if isinstance(prompt, str) else list(prompt)
        if not ids:
            raise ParameterError(f"prompt = {prompt!r} has no token; allowed is one or more")
        size = self._model.config.vocab_size
        wrong = [each for each in ids if not 0 <= each < size]
        if wrong:
            raise ParameterError(
                f"prompt has the token {wrong[0]}; allowed are numbers from 0 to {size - 1}"
            )
        return ids

    async def whole(
        self,
        request: CompletionRequest,
        prompts: Sequence[list[int]],
        gone: Callable[[], Awaitable[bool]],
    ) -> dict[str, Any] | None:
        """Return the answers to all prompts; None as soon as the client has gone."""
        choices = [_choice(Part(index, "")) for index in range(len(prompts))]
        num_tokens = 0
        async with aclosing(self.parts(request, prompts)) as parts:
            async for part in parts:
                if await gone():
                    return None
                choice = choices[part.index]
                choices[part.index] = _choice(part) | {"text": choice["text"] + part.text}
                num_tokens += part.num_tokens
        return self._head() | {"choices": choices, "usage": _usage(prompts, num_tokens)}

    async def streamed(
        self, request: CompletionRequest, prompts: Sequence[list[int]]
    ) -> AsyncGenerator[str]:
        """Yield the answers as server-sent events, one prompt's after another's."""
        head, num_tokens = self._head(), 0
        async with aclosing(self.parts(request, prompts)) as parts:
            async for part in parts:
                num_tokens += part.num_tokens
                if part.text or part.finish_reason:
                    yield f"data: {json.dumps(head | {'choices': [_choice(part)]})}\n\n"
        if request.stream_options is not None and request.stream_options.include_usage:
            usage = {"choices": [], "usage": _usage(prompts, num_tokens)}
            yield f"data: {json.dumps(head | usage)}\n\n"
        yield "data: [DONE]\n\n"

    async def parts(
        self, request: CompletionRequest, prompts: Sequence[list[int]]
    ) -> AsyncGenerator[Part]:
        """Yield a part for each token; an answer that nobody waits for any more ends with it."""
        for index, ids in enumerate(prompts):
            most = request.max_tokens or 1024
            if self.num_positions is not None:
                most = min(most, self.num_positions - len(ids))
            ends = self._model.generation_config.eos_token_id
            held, num_tokens, last = "", 0, None
            async with aclosing(self._written(request, ids, most)) as written:
                async for token, text in written:
                    held += text
                    if token is not None:
                        last, num_tokens = token, num_tokens + 1
                    found = [at for at in map(held.find, request.stops) if at >= 0]
                    if found:
                        yield Part(index, held[: min(found)], num_tokens, "stop")
                        break
                    ready = len(held) - _begun(held, request.stops)
                    yield Part(index, held[:ready])
                    held = held[ready:]
                else:
                    is_end = last in (ends if isinstance(ends, list) else [ends])
                    is_cut = num_tokens == most and not is_end
                    yield Part(index, held, num_tokens, "length" if is_cut else "stop")

    async def _written(
        self, request: CompletionRequest, ids: list[int], most: int
    ) -> AsyncGenerator[tuple[int | None, str]]:
        """Yield each token that follows with its text, and at the end what text is left."""
        streamer = _Streamer(self._tokenizer, ids)
        self._thread.submit(self._generate, request, ids, most, streamer)
        try:
            while (item := await streamer.queue.get()) is not None:
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            streamer.is_left = True

    def _generate(
        self, request: CompletionRequest, ids: list[int], most: int, streamer: "_Streamer"
    ) -> None:
        try:
            if request.seed is None:
                torch.seed()
            else:
                torch.manual_seed(request.seed)
            temperature = 1.0 if request.temperature is None else request.temperature
            config = copy.deepcopy(self._model.generation_config)
            config.update(max_new_tokens=most, do_sample=False)
            if temperature >= LEAST_TEMPERATURE:
                top_p = 1.0 if request.top_p is None else request.top_p
                config.update(do_sample=True, temperature=temperature, top_p=top_p, top_k=0)
            given = torch.tensor([ids], device=self._model.device)
            self._model.generate(
                given,
                attention_mask=torch.ones_like(given),
                generation_config=config,
                streamer=streamer,
            )
        except _LeftError:
            pass
        except Exception as error:  # the request's, which waits for it
            logging.getLogger(__name__).exception("no answer to a prompt of %d tokens", len(ids))
            streamer.send(error)

    def _head(self) -> dict[str, Any]:
        return {
            "id": f"cmpl-{uuid.uuid4()}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": self.name,
        }


class _LeftError(Exception):
    """Nobody waits for the tokens any more."""


class _Streamer(BaseStreamer):
    """Hands the text of each token from the thread that generates to an event loop."""

    def __init__(self, tokenizer: Any, ids: Sequence[int]) -> None:
        self.queue: asyncio.Queue[tuple[int | None, str] | Exception | None] = asyncio.Queue()
        self.is_left = False
        self._loop = asyncio.get_running_loop()
        self._tokenizer = tokenizer
        self._known, self._new = list(ids[-_BEFORE:]), list[int]()
        self._is_prompt = True  # generate hands it over, too

    def put(self, value: torch.Tensor) -> None:
        """Take tokens from generate, and end it where they are not wanted."""
        if self.is_left:
            raise _LeftError
        if self._is_prompt:
            self._is_prompt = False
            return
        for token in value.tolist():
            self._new.append(token)
            text = self._text()
            if text and not text.endswith(_NO_CHARACTER):
                self._known, self._new = self._new, []
            elif len(self._new) < _MOST_PENDING:
                text = ""  # more of the character may follow
            else:
                self._known, self._new = [], []
            self.send((token, text))

    def end(self) -> None:
        """Take that generate has ended."""
        self.send((None, self._text()))
        self.send(None)

    def send(self, item: tuple[int | None, str] | Exception | None) -> None:
        """Put something into the queue."""
        self._loop.call_soon_threadsafe(self.queue.put_nowait, item)

    def _text(self) -> str:
        """Return what the new tokens add to the known ones, which tell of spaces between them."""
        before, both = (
            self._tokenizer.decode(
                ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
            for ids in (self._known, self._known + self._new)
        )
        return both[len(commonprefix([before, both])) :]  # the prompt may end within a character


def _begun(text: str, stops: Sequence[str]) -> int:
    """Return how many of the last characters may be the beginning of a text that ends it."""
    longest = min(len(text), max(map(len, stops), default=0))
    for length in range(longest, 0, -1):
        if any(stop.startswith(text[-length:]) for stop in stops):
            return length
    return 0


def _choice(part: Part) -> dict[str, Any]:
    return {
        "index": part.index,
        "text": part.text,
        "logprobs": None,
        "finish_reason": part.finish_reason,
    }


def _usage(prompts: Sequence[list[int]], num_tokens: int) -> dict[str, int]:
    before = sum(map(len, prompts))
    return {
        "prompt_tokens": before,
        "completion_tokens": num_tokens,
        "total_tokens": before + num_tokens,
    }
