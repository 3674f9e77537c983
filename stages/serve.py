"""Serve a model that continues text over HTTP, as OpenAI's API has it: transformers' own server.

python -m stages.serve models/my_run/final --port 8000

It listens on this machine alone unless told otherwise, and asks for no password. Further options
are those of `transformers serve`.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from implicit_models.parameters import ParameterError


def main(model: str, host: str, port: int, options: Sequence[str] = ()) -> None:
    """Serve until the process is stopped.

    Parameters
    ----------
    model
        A folder, or a hub id.
    options
        Further ones of `transformers serve`, such as ``--dtype bfloat16``.

    Raises
    ------
    ParameterError
        Where the model reads no text, or generates nothing.
    SourceError
        Where there is no such model.
    """
    import transformers
    from transformers.cli.transformers import app

    served = _class_of(model)
    # The server looks for a model's class among transformers' own.
    if not hasattr(transformers, served.__name__):
        setattr(transformers, served.__name__, served)
    print(f"{model}: http://{host}:{port}/v1/completions; Ctrl-C ends it", file=sys.stderr)
    app(["serve", model, "--host", host, "--port", str(port), *options])


def _class_of(model: str) -> Any:
    """Return the class of a model that can be served."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    from implicit_models.checksums import compare_folder
    from implicit_models.language_models.sources import naming_the_source

    with naming_the_source(model):
        compare_folder(Path(model))
        config = AutoConfig.from_pretrained(model, trust_remote_code=False)
        found: Any = AutoModelForCausalLM._model_mapping[type(config)]
    if not found.can_generate():
        raise ParameterError(
            f"{model} is a model of the type {config.model_type}, which generates nothing; "
            "allowed are Mamba2, Llama, and whatever transformers generates with"
        )
    try:
        AutoTokenizer.from_pretrained(model, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise ParameterError(
            f"{model} has no tokenizer, and a server takes text; `python -m stages.generate` "
            "continues numbers of tokens"
        ) from error
    return found


def _run() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m stages.serve",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", help="the folder of a model, or its name on Hugging Face's hub")
    parser.add_argument("--host", default="localhost", help="address to listen on")
    parser.add_argument("--port", type=int, default=8000, help="(default: 8000)")
    chosen, options = parser.parse_known_args()

    from implicit_models.language_models.source_names import SourceError

    try:
        main(chosen.model, chosen.host, chosen.port, options)
    except (ParameterError, SourceError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    _run()
