"""Serve a model that continues text over HTTP: OpenAI's completions, answered by transformers.

python -m stages.serve models/my_run/final --port 8000

There are `POST /v1/completions`, `GET /v1/models` and `GET /health`. It listens on this machine
alone unless told otherwise, and asks for no password.
"""

import argparse
import socket
import sys
import uuid
from pathlib import Path
from typing import Any

from implicit_models.parameters import ParameterError
from stages.generate import load_generating, load_tokenizer


class OneModel:
    """What transformers asks of a server's models, for one that is loaded."""

    def __init__(self, name: str, model: Any, tokenizer: Any) -> None:
        self.force_model = name
        self._loaded = (model, tokenizer)

    def process_model_name(self, name: str) -> str:
        """Return the name as it is."""
        return name

    def load_model_and_processor(self, name: str, gguf_file: str | None = None) -> tuple[Any, Any]:
        """Return the model and its tokenizer, whatever the name: others are refused before."""
        return self._loaded

    def get_model_modality(self, model: Any, processor: Any = None) -> Any:
        """Return that it is a model of text."""
        from transformers.cli.serving.utils import Modality

        return Modality.LLM


def main(model: str, host: str, port: int) -> None:
    """Serve until the process is stopped.

    Parameters
    ----------
    model
        A folder, or a hub id.

    Raises
    ------
    ParameterError
        Where nobody can listen at that address, the model reads no text, or generates nothing.
    SourceError
        Where there is no such model.
    """
    import uvicorn

    with _listening(host, port) as listening:
        answering = application(model, *load(model))
        shown = f"[{host}]" if ":" in host else host
        print(f"{model}: http://{shown}:{port}/v1/completions; Ctrl-C ends it", file=sys.stderr)
        config = uvicorn.Config(answering, log_level="info", timeout_graceful_shutdown=2)
        uvicorn.Server(config).run([listening])


def load(model: str) -> tuple[Any, Any]:
    """Return a model that can be served, on the default device, and its tokenizer."""
    from implicit_models.language_models.placement import default_device

    loaded = load_generating(model)
    try:
        tokenizer = load_tokenizer(model)
    except ParameterError as error:
        raise ParameterError(
            f"a server takes text: {error}; `implicit-models generate` continues numbers of tokens"
        ) from error
    return loaded.to(default_device()), tokenizer


def application(name: str, model: Any, tokenizer: Any) -> Any:
    """Return the application that answers for this one model."""
    from fastapi import Body, FastAPI, HTTPException
    from transformers.cli.serving.completion import CompletionHandler
    from transformers.cli.serving.utils import GenerationState

    models: Any = OneModel(name, model, tokenizer)
    handler = CompletionHandler(model_manager=models, generation_state=GenerationState())
    app = FastAPI()
    any_body = Body()

    @app.post("/v1/completions")
    async def completions(body: dict[str, Any] = any_body) -> Any:
        wrong = _mistake(body)
        if wrong:
            raise HTTPException(status_code=400, detail=wrong)
        return await handler.handle_request(body, str(uuid.uuid4()))

    @app.get("/v1/models")
    def list_models() -> Any:
        return {"object": "list", "data": [{"id": name, "object": "model", "owned_by": "local"}]}

    @app.get("/health")
    def health() -> Any:
        return {"status": "ok"}

    return app


def _mistake(body: dict[str, Any]) -> str | None:
    """Return what is wrong with a request, as far as transformers would not say so."""
    prompt, tokens = body.get("prompt"), body.get("max_tokens", 1)
    if not isinstance(prompt, str) or not prompt:
        return f"prompt is {prompt!r}; allowed is a text that is not empty"
    if not isinstance(tokens, int) or tokens < 1:
        return f"max_tokens is {tokens!r}; allowed is a number from 1"
    temperature = body.get("temperature", 1)
    if not isinstance(temperature, int | float) or temperature < 0:
        return f"temperature is {temperature!r}; allowed is a number from 0"
    return None


def _listening(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to the address, to that of IPv4 where a name has both."""
    allowed = "allowed are this machine's addresses, and a port from 1 to 65535 that is free"
    said = f"nobody can listen at --host {host} --port {port}"
    if not 1 <= port <= 65535:
        raise ParameterError(f"{said}; {allowed}")
    bound = None
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = min(found, key=lambda each: each[0])
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        if bound is not None:
            bound.close()
        raise ParameterError(f"{said}: {error}; {allowed}") from error
    return bound


def _run() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m stages.serve",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", help="the folder of a model, or its name on Hugging Face's hub")
    parser.add_argument("--host", default="localhost", help="address to listen on")
    parser.add_argument("--port", type=int, default=8000, help="(default: 8000)")
    chosen = parser.parse_args()

    from implicit_models.language_models.source_names import SourceError

    folder = Path(chosen.model)
    name = str(folder) if folder.is_dir() else chosen.model
    try:
        main(name, chosen.host, chosen.port)
    except (ParameterError, SourceError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    _run()
