"""A request of OpenAI's completions: its keys, reading it, and telling what is wrong with it."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from implicit_models.parameters import ParameterError
from implicit_models.parameters.errors import UnknownKeyError
from implicit_models.parameters.words import in_words, refusal

_STRICT = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)
_JSON = "application/json"
_SHOWN = 300  # characters of a message on either side of what is left out

Text = Annotated[str, Field(min_length=1)]
Nothing = Annotated[float, Field(ge=0, le=0)]


class StreamOptions(BaseModel):
    """What a streamed answer has besides text."""

    model_config = _STRICT

    include_usage: bool = False


class CompletionRequest(BaseModel):
    """The body of a request; None is a key's default, and some keys take no other value."""

    model_config = _STRICT

    prompt: str | tuple[str, ...] | tuple[int, ...] | tuple[tuple[int, ...], ...]
    model: str | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: Text | tuple[Text, ...] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    n: Literal[1] | None = None
    best_of: Literal[1] | None = None
    echo: Literal[False] | None = None
    logprobs: None = None
    logit_bias: None = None
    suffix: None = None
    frequency_penalty: Nothing | None = None
    presence_penalty: Nothing | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """The texts that end an answer."""
        return (self.stop,) if isinstance(self.stop, str) else self.stop or ()


def read_request(content_type: str, body: bytes) -> CompletionRequest:
    """Read a request.

    Parameters
    ----------
    content_type
        The header. With any other than JSON's a page in a browser could send a request unasked.

    Raises
    ------
    ParameterError
        Naming the key, what was found and what is allowed.
    """
    if content_type.partition(";")[0].strip().lower() != _JSON:
        raise ParameterError(f"Content-Type = {content_type!r} is not allowed; allowed is {_JSON}")
    try:
        return CompletionRequest.model_validate_json(body)
    except ValidationError as error:
        detail: Any = error.errors(include_url=False)[0]
    if not detail["loc"]:
        raise ParameterError(
            f"the body is no object of JSON: {detail['msg']}; allowed is one with the key prompt"
        )
    name, known = str(detail["loc"][0]), CompletionRequest.model_fields
    if name not in known:
        raise UnknownKeyError(name, detail["input"], known)
    field = known[name]
    if detail["type"] == "missing":
        allowed = in_words(field.annotation, field.metadata)
        raise ParameterError(f"{name} is missing; allowed is {allowed}")
    below = {**detail, "loc": detail["loc"][1:]}
    raise refusal(name, detail["input"], below, field.annotation, field.metadata)


def refused(error: ParameterError) -> dict[str, Any]:
    """Return how OpenAI tells what is wrong with a request; a long value is cut."""
    said = str(error)
    if len(said) > 2 * _SHOWN:
        said = f"{said[:_SHOWN]} ... {said[-_SHOWN:]}"
    kind = "invalid_request_error"
    return {"error": {"message": said, "type": kind, "param": None, "code": None}}
