"""The paper's model sizes, and how many parameters a configuration has.

    python -m implicit_models.families.sizes

prints them as a table.
"""

import argparse
import difflib
import sys
from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedConfig

from implicit_models.families.costs import ParameterCount
from implicit_models.families.family import StackFamily, family_named, own_family
from implicit_models.families.table import FAMILIES
from implicit_models.language_models.configuration import ImplicitConfig

VOCABULARY = 50_277  # of the GPT-NeoX tokenizer

# Of the paper's pretraining (Schöne et al. 2025): the family, and the fields of its configuration.
_SIZES = {
    f"{name}-{size}": (family, fields)
    for name, family in ((name, family_named(name)) for name in FAMILIES)
    if isinstance(family, StackFamily)
    for size, fields in family.published_sizes.items()
}
SIZES = tuple(_SIZES)


def from_size(name: str, **changes: Any) -> ImplicitConfig:
    """Return the configuration of one of the paper's models, ``"mamba2-1.3b"``.

    Parameters
    ----------
    changes
        Other fields of the configuration, ``implicit=False``. With another ``hidden_size`` a size
        keeps its proportions: heads are as wide as before and their number follows, and so does
        Llama's ``intermediate_size``, unless they are given as well.

    Raises
    ------
    ValueError
        Naming the size, those there are, and the closest one; or the fields that do not fit.
    """
    if name not in SIZES:
        close = difflib.get_close_matches(name.lower(), SIZES, n=1)
        meant = f" (did you mean {close[0]!r}?)" if close else ""
        raise ValueError(f"{name!r} is no size{meant}; there are {', '.join(SIZES)}")
    family, fields = _SIZES[name]
    fields = family.resized({"vocab_size": VOCABULARY, **fields}, changes)
    return family.make_configuration(**fields)


def count_parameters(config: PreTrainedConfig) -> ParameterCount:
    """Count the parameters of a model of ours of this configuration, in closed form."""
    return own_family(config).count_parameters(config)


def size_table() -> str:
    """Return a Markdown table of the paper's sizes."""
    lines = ["| size | total | without embedding | injection |", "|---|--:|--:|--:|"]
    for name in SIZES:
        count = count_parameters(from_size(name))
        share = count.injection / count.non_embedding
        lines.append(
            f"| {name} | {count.total:,} | {count.non_embedding:,} | "
            f"{count.injection:,} ({share:.1%}) |"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table of sizes, drawn on a terminal and in Markdown elsewhere."""
    parser = argparse.ArgumentParser(
        prog="python -m implicit_models.families.sizes", description=__doc__
    )
    parser.parse_args(arguments)
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.markdown import Markdown

        Console().print(Markdown(size_table()))
    else:
        print(size_table())


if __name__ == "__main__":
    main()
