"""Continue a prompt with a model: text where it has a tokenizer, numbers of tokens elsewhere.

python -m stages.generate models/my_run/final "Once upon a time" --tokens 50
"""

import math
from typing import Any

from implicit_models.parameters import ParameterError
from stages.command_line import mistakes, model_parser

_NEEDED = "save one there with transformers' save_pretrained, or name a model that has one"
LEAST_TEMPERATURE = 1e-5  # below it logits overflow; the likeliest token is what it comes to


def main(model: str, prompt: str, tokens: int, temperature: float, seed: int) -> str:
    """Return the prompt and what the model continues it with.

    Parameters
    ----------
    model
        A folder, or a hub id.
    prompt
        Text, or numbers of tokens with spaces in between.
    temperature
        Of sampling; 0 takes the most likely token.

    Raises
    ------
    ParameterError
        Where the prompt is nothing that the model reads, the model has no positions for so many
        tokens, or it generates nothing.
    SourceError
        Where there is no such model.
    """
    import torch

    from implicit_models.families.huggingface.positions import num_positions

    loaded = load_generating(model)
    try:
        tokenizer = load_tokenizer(model)
    except ParameterError:
        tokenizer = None
    else:
        stop_at_end_of_text(loaded, tokenizer)
    size = loaded.config.vocab_size
    ids = tokenizer(prompt)["input_ids"] if tokenizer is not None else _numbers(prompt, size)
    if not ids:
        raise ParameterError("the prompt is empty; allowed is one token or more")
    limit = num_positions(model)
    check_positions(len(ids), tokens, None if limit is None else limit[0], f"--tokens {tokens}")
    torch.manual_seed(seed)
    chosen: dict[str, Any] = {"do_sample": temperature >= LEAST_TEMPERATURE}
    if temperature >= LEAST_TEMPERATURE:
        chosen |= {"temperature": temperature, "top_p": 1.0, "top_k": 0}
    given = torch.tensor([ids])
    with torch.inference_mode():
        made = loaded.generate(
            given, attention_mask=torch.ones_like(given), max_new_tokens=tokens, **chosen
        )[0].tolist()
    return tokenizer.decode(made) if tokenizer is not None else " ".join(map(str, made))


def check_positions(prompt: int, added: int, limit: int | None, wanted: str = "") -> None:
    """See that a model has positions for a prompt and what is to be added to it.

    Parameters
    ----------
    prompt, added
        Numbers of tokens.
    limit
        The most tokens that the model reads; None where there is no limit.
    wanted
        What asks for those to be added, such as ``--tokens 20``.

    Raises
    ------
    ParameterError
        Where it has not.
    """
    if limit is not None and prompt + added > limit:
        after = f"{wanted} after " if wanted else ""
        raise ParameterError(
            f"{after}a prompt of {prompt} tokens is not allowed; allowed is a sum of at most "
            f"{limit}, the positions of the model: ask for fewer, or shorten the prompt"
        )


def stop_at_end_of_text(model: Any, tokenizer: Any) -> None:
    """Make a model that names no end of a text stop at its tokenizer's, where that has one."""
    if model.generation_config.eos_token_id is None:
        model.generation_config.eos_token_id = tokenizer.eos_token_id


def load_generating(model: str) -> Any:
    """Load a model that generates, from a folder or by its hub id.

    Of what is set there for generation only the tokens that begin, end and pad a text are in force.

    Raises
    ------
    ParameterError
        Where it generates nothing.
    SourceError
        Where there is no such model.
    """
    from transformers import GenerationConfig

    from implicit_models.language_models.sources import load_source

    loaded: Any = load_source(model)
    if not loaded.can_generate():
        raise ParameterError(
            f"{model} is a model of the type {loaded.config.model_type}, which generates nothing; "
            "allowed are Mamba2, Llama, and whatever transformers generates with"
        )
    kept = ("bos_token_id", "eos_token_id", "pad_token_id")
    given = loaded.generation_config
    loaded.generation_config = GenerationConfig(**{name: getattr(given, name) for name in kept})
    return loaded


def load_tokenizer(model: str) -> Any:
    """Load the tokenizer of a model, from its folder or by its hub id.

    Raises
    ------
    ParameterError
        Where it has none.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(model, trust_remote_code=False)
    except Exception as error:  # the library that reads it raises no other
        said = " ".join(str(error).split())
        raise ParameterError(f"no tokenizer can be read from {model}: {said}; {_NEEDED}") from error
    if not tokenizer("a", add_special_tokens=False)["input_ids"]:
        # transformers makes an empty one of some models' types.
        raise ParameterError(
            f"no tokenizer can be read from {model}: there is no file of one; {_NEEDED}"
        )
    return tokenizer


def _numbers(prompt: str, size: int) -> list[int]:
    words = prompt.replace(",", " ").split()
    wrong = [word for word in words if not word.isdecimal() or int(word) >= size]
    if wrong:
        raise ParameterError(
            f"the prompt has {wrong[0]!r}, and the model has no tokenizer; allowed are numbers "
            f"from 0 to {size - 1}, such as '3 1 2'"
        )
    return [int(word) for word in words]


def _run() -> None:
    parser = model_parser("stages.generate", __doc__)
    parser.add_argument("prompt", help="text; numbers of tokens where the model has no tokenizer")
    parser.add_argument("--tokens", type=int, default=20, help="how many to add (default: 20)")
    parser.add_argument(
        "--temperature", type=float, default=0.0, help="0 takes the likeliest token (default)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of sampling (default: 0)")
    chosen = parser.parse_args()
    possible = 0 <= chosen.temperature < math.inf and 0 <= chosen.seed < 2**63
    if chosen.tokens < 1 or not possible:
        parser.error(
            "allowed are --tokens from 1, --temperature from 0 (finite), --seed from 0 to 2**63 - 1"
        )

    from implicit_models.language_models.source_names import SourceError

    with mistakes(SourceError):
        print(main(chosen.model, chosen.prompt, chosen.tokens, chosen.temperature, chosen.seed))


if __name__ == "__main__":
    _run()
