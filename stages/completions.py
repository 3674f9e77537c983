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
from typing import Any, Literal

import torch
from tokenizers.decoders import DecodeStream
from transformers.cli.serving.utils import InferenceThread
from transformers.generation.streamers import BaseStreamer

from implicit_models.parameters import ParameterError
from stages.completion_request import CompletionRequest

_LEAST_TEMPERATURE = 1e-5  # below it logits overflow; the likeliest token is what it comes to


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
        if self.num_positions is not None and longest + added > self.num_positions:
            raise ParameterError(
                f"max_tokens = {added} after a prompt of {longest} tokens is not allowed; allowed "
                f"is a sum of at most {self.num_positions}, the positions of the model"
            )
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
                yield f"data: {json.dumps(head | {'choices': [_choice(part)]})}\n\n"
        if request.stream_options is not None and request.stream_options.include_usage:
            usage = {"choices": [], "usage": _usage(prompts, num_tokens)}
            yield f"data: {json.dumps(head | usage)}\n\n"
        yield "data: [DONE]\n\n"

    async def parts(
        self, request: CompletionRequest, prompts: Sequence[list[int]]
    ) -> AsyncGenerator[Part]:
        """Yield the answers in parts; one that nobody waits for any more ends with its token."""
        for index, ids in enumerate(prompts):
            most = request.max_tokens or 1024
            if self.num_positions is not None:
                most = min(most, self.num_positions - len(ids))
            held, num_tokens = "", 0
            async with aclosing(self._texts(request, ids, most)) as texts:
                async for text in texts:
                    held, num_tokens = held + text, num_tokens + 1
                    found = [at for at in map(held.find, request.stops) if at >= 0]
                    if found:
                        yield Part(index, held[: min(found)], num_tokens, "stop")
                        break
                    ready = len(held) - _begun(held, request.stops)
                    if ready:
                        yield Part(index, held[:ready])
                        held = held[ready:]
                else:
                    yield Part(index, held, num_tokens, "length" if num_tokens == most else "stop")

    async def _texts(
        self, request: CompletionRequest, ids: list[int], most: int
    ) -> AsyncGenerator[str]:
        """Yield the text of each token that follows; none for a part of a character."""
        streamer = _Streamer(self._tokenizer)
        self._thread.submit(self._generate, request, ids, most, streamer)
        try:
            while (text := await streamer.queue.get()) is not None:
                if isinstance(text, Exception):
                    raise text
                yield text
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
            config.update(max_new_tokens=most, num_beams=1, do_sample=False)
            if temperature >= _LEAST_TEMPERATURE:
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

    def __init__(self, tokenizer: Any) -> None:
        self.queue: asyncio.Queue[str | Exception | None] = asyncio.Queue()
        self.is_left = False
        self._loop = asyncio.get_running_loop()
        self._tokenizer = tokenizer._tokenizer
        self._decoding = DecodeStream([], skip_special_tokens=True)
        self._is_prompt = True  # generate hands it over, too

    def put(self, value: torch.Tensor) -> None:
        """Take tokens from generate, and end it where they are not wanted."""
        if self.is_left:
            raise _LeftError
        if self._is_prompt:
            self._is_prompt = False
            return
        for token in value.tolist():
            self.send(self._decoding.step(self._tokenizer, token) or "")

    def end(self) -> None:
        """Take that generate has ended."""
        self.send(None)

    def send(self, item: str | Exception | None) -> None:
        """Put something into the queue."""
        self._loop.call_soon_threadsafe(self.queue.put_nowait, item)


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
