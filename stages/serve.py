"""Serve a model that continues text over HTTP, as OpenAI's completions do.

python -m stages.serve models/my_run/final --port 8000

There are `POST /v1/completions`, `GET /v1/models` and `GET /health`. It listens on this machine
alone unless told otherwise, and asks for no password.
"""

import socket
import sys
import time
from typing import Any

from implicit_models.parameters import ParameterError
from stages.command_line import mistakes, model_parser
from stages.generate import load_generating, load_tokenizer, stop_at_end_of_text

_GONE = 499  # the status in the log where a client has not waited for its answer


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
    stop_at_end_of_text(loaded, tokenizer)
    return loaded.to(default_device()), tokenizer


def application(name: str, model: Any, tokenizer: Any) -> Any:
    """Return the application that answers for this one model."""
    from fastapi import FastAPI, Request
    from fastapi.responses import JSONResponse, Response, StreamingResponse

    from implicit_models.families.huggingface.positions import num_positions
    from stages.completion_request import read_request, refused
    from stages.completions import Completions

    limit = num_positions(name)
    answering = Completions(name, model, tokenizer, None if limit is None else limit[0])
    app = FastAPI()
    served = {"id": name, "object": "model", "created": int(time.time()), "owned_by": "local"}

    @app.post("/v1/completions")
    async def completions(asked: Request) -> Any:
        request = read_request(asked.headers.get("content-type", ""), await asked.body())
        prompts = answering.prompts(request)
        if request.stream:
            events = answering.streamed(request, prompts)
            return StreamingResponse(events, media_type="text/event-stream")
        answer = await answering.whole(request, prompts, asked.is_disconnected)
        return Response(status_code=_GONE) if answer is None else JSONResponse(answer)

    @app.exception_handler(ParameterError)
    def refuse(_: Request, error: ParameterError) -> Any:
        return JSONResponse(refused(error), status_code=400)

    @app.get("/v1/models")
    def list_models() -> Any:
        return {"object": "list", "data": [served]}

    @app.get("/health")
    def health() -> Any:
        return {"status": "ok"}

    return app


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
    parser = model_parser("stages.serve", __doc__)
    parser.add_argument("--host", default="localhost", help="address to listen on")
    parser.add_argument("--port", type=int, default=8000, help="(default: 8000)")
    chosen = parser.parse_args()

    from implicit_models.language_models.source_names import SourceError

    try:
        with mistakes(SourceError):
            main(chosen.model, chosen.host, chosen.port)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    _run()
