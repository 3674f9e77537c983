"""The names of the formal languages."""

from typing import Literal, get_args

LanguageName = Literal[
    "parity",
    "even_pairs",
    "cycle_navigation",
    "modular_arithmetic",
    "bracketed_arithmetic",
    "reverse_string",
    "flip_flop",
    "undo_flip_flop",
    "swapped_cups",
    "variable_trace",
]
NAMES: tuple[LanguageName, ...] = get_args(LanguageName)
