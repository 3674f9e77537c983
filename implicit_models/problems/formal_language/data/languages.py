"""Every formal language by its name."""

from collections.abc import Callable

from implicit_models.problems.formal_language.data.flip_flops import FlipFlop, UndoFlipFlop
from implicit_models.problems.formal_language.data.language import Language
from implicit_models.problems.formal_language.data.nested import (
    BracketedArithmetic,
    ReverseString,
)
from implicit_models.problems.formal_language.data.regular import (
    CycleNavigation,
    EvenPairs,
    ModularArithmetic,
    Parity,
)
from implicit_models.problems.formal_language.data.traces import SwappedCups, VariableTrace
from implicit_models.problems.formal_language.names import LanguageName

_OF_ONE_SIZE: dict[str, Language] = {
    "parity": Parity(),
    "even_pairs": EvenPairs(),
    "reverse_string": ReverseString(),
    "flip_flop": FlipFlop(),
    "undo_flip_flop": UndoFlipFlop(),
}
_SIZED: dict[str, Callable[[int], Language]] = {
    "cycle_navigation": CycleNavigation,
    "modular_arithmetic": ModularArithmetic,
    "bracketed_arithmetic": BracketedArithmetic,
    "swapped_cups": SwappedCups,
    "variable_trace": VariableTrace,
}


def language(name: LanguageName, size: int) -> Language:
    """Return a language; its ``size`` counts where there is one of every size (`names.SIZED`)."""
    return _SIZED[name](size) if name in _SIZED else _OF_ONE_SIZE[name]
