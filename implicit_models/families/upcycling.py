"""Upcycling: an implicit model made of an explicit checkpoint.

    python -m implicit_models.families.upcycling SOURCE TARGET

The source is a folder or a hub id of transformers' Llama, Mistral or Mamba2, or of an explicit
model of ours. The target's search starts from the embeddings and its injection is zero, so that one
self-iteration is the source: ``bounded_phase(1)`` gives its logits. Nothing makes that a fixed
point yet; training does, through the bounded phase and the free one.
"""

import argparse
import copy
import sys
from pathlib import Path
from typing import Literal

import torch
from transformers import AutoTokenizer, PreTrainedModel

from implicit_models.families.conversion import from_transformers
from implicit_models.language_models.configuration import ImplicitConfig
from implicit_models.language_models.modelling import ImplicitForCausalLM
from implicit_models.language_models.source_names import SourceError
from implicit_models.language_models.sources import load_source


def upcycle(
    source: PreTrainedModel,
    seed: int = 0,
    label_alignment: Literal["next_token", "aligned"] | None = None,
) -> ImplicitForCausalLM:
    """Return an implicit model of the source's weights.

    Parameters
    ----------
    seed
        Of the injection's direction, which matters only where weights are normalised: its length
        is zero.
    label_alignment
        The configuration's; None keeps the source's.

    Raises
    ------
    SourceError
        Where the source is neither one of ours nor a peer of theirs, or implicit already.
    """
    explicit = source if isinstance(source, ImplicitForCausalLM) else from_transformers(source)
    if explicit.config.implicit:
        raise SourceError(
            "the model is implicit already; train it on as it is, or name an explicit one"
        )
    settings = explicit.config.to_dict() | {"implicit": True, "start": "embeddings"}
    settings |= {
        "provenance": None,
        "label_alignment": label_alignment or settings["label_alignment"],
    }
    config: ImplicitConfig = type(explicit.config).from_dict(settings)
    model = type(explicit)(config)
    model.initialise(seed)
    weights = model.state_dict()
    with torch.no_grad():
        for name, weight in explicit.state_dict().items():
            weights[name].copy_(weight)
        injection = model.model.injection
        assert injection is not None
        length = injection.projection.scale
        (injection.projection.weight if length is None else length).zero_()
    model.generation_config = copy.deepcopy(explicit.generation_config)
    return model.to(explicit.device, explicit.dtype).eval()  # type: ignore[arg-type]


def main(arguments: list[str] | None = None) -> None:
    """Read the command line and write the target."""
    parser = argparse.ArgumentParser(
        prog="python -m implicit_models.families.upcycling", description=__doc__
    )
    parser.add_argument("source", help="a folder or hub id of an explicit Llama, Mistral or Mamba2")
    parser.add_argument("target", type=Path, help="the folder to write; it must not exist")
    chosen = parser.parse_args(arguments)
    try:
        if chosen.target.exists():
            raise SourceError(f"{chosen.target} exists; name a folder that does not")
        model = upcycle(load_source(chosen.source))
        model.config.provenance = {"upcycled from": chosen.source}
        model.save_pretrained(chosen.target)
        _copy_tokenizer(chosen.source, chosen.target)
    except (SourceError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def _copy_tokenizer(source: str, target: Path) -> None:
    """Take the source's tokenizer along, if it has one."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    except (OSError, ValueError, KeyError):
        return
    tokenizer.save_pretrained(target)


if __name__ == "__main__":
    main()
