"""Every formal language by its name."""

from collections.abc import Callable

from implicit_models.parameters import ParameterError
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

_OF_ONE_SIZE: dict[str, Callable[[], Language]] = {
    "parity": Parity,
    "even_pairs": EvenPairs,
    "reverse_string": ReverseString,
}
_OF_EVERY_SIZE: dict[str, Callable[[int], Language]] = {
    "cycle_navigation": CycleNavigation,
    "modular_arithmetic": ModularArithmetic,
    "bracketed_arithmetic": BracketedArithmetic,
}
_ASKING: dict[str, Callable[[int, float], Language]] = {
    "swapped_cups": SwappedCups,
    "variable_trace": VariableTrace,
}
_IGNORING: dict[str, Callable[[float], Language]] = {
    "flip_flop": FlipFlop,
    "undo_flip_flop": UndoFlipFlop,
}
SIZED = frozenset({*_OF_EVERY_SIZE, *_ASKING})
IGNORING, ASKING = frozenset(_IGNORING), frozenset(_ASKING)
"""The languages with a size, with instructions that are ignored, with statements that ask."""


def language(
    name: LanguageName,
    size: int = 5,
    ignore_probability: float = 0.8,
    ask_probability: float = 0.25,
) -> Language:
    """Return a language.

    Parameters
    ----------
    size
        Of one that there is in every size; see `SIZED`.
    ignore_probability
        Of an instruction that is ignored; see `IGNORING`.
    ask_probability
        Of a statement that asks, where it is not the last, which does; see `ASKING`.

    Raises
    ------
    ParameterError
        Where a name has no language.
    """
    if name in ASKING:
        return _ASKING[name](size, ask_probability)
    if name in SIZED:
        return _OF_EVERY_SIZE[name](size)
    if name in IGNORING:
        return _IGNORING[name](ignore_probability)
    if name not in _OF_ONE_SIZE:
        raise ParameterError(
            f"language = {name!r} is in formal_language/names.py, and data/languages.py has no "
            "class of it; add a line there"
        )
    return _OF_ONE_SIZE[name]()
