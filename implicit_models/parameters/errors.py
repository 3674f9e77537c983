"""What is wrong with parameters, in one line."""

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

_SIMILAR = 0.52  # how like the right name a mistyped one is at least, from 0 to 1


class ParameterError(ValueError):
    """A parameter is unknown, missing, wrongly typed or out of range.

    Its message starts with the name of the field at fault; `inside` puts the section in front of
    it, and `read_section` the file.

    Attributes
    ----------
    others
        What else is wrong with the same section.
    """

    others: "tuple[ParameterError, ...]" = ()

    def inside(self, section: str) -> "ParameterError":
        """Return the same error with the section's dotted path before the field."""
        return self._with_others(ParameterError(f"{section}.{self}"), section)

    def every(self) -> "list[ParameterError]":
        """Return this error and the others of the section."""
        return [self, *self.others]

    def _with_others(self, error: "ParameterError", section: str) -> "ParameterError":
        error.others = tuple(other.inside(section) for other in self.others)
        return error


def first_of(errors: "Sequence[ParameterError]") -> ParameterError:
    """Return the first of some errors, which has the others with it."""
    every = [each for error in errors for each in error.every()]
    first = every[0]
    first.others = tuple(every[1:])
    for other in first.others:
        other.others = ()
    return first


def check_all(*checks: Callable[[], None]) -> None:
    """Make several checks of a section, and raise what is wrong with it as one error.

    Raises
    ------
    ParameterError
        The first mistake, which has the others with it.
    """
    errors: list[ParameterError] = []
    for check in checks:
        try:
            check()
        except ParameterError as error:
            errors.append(error)
    if errors:
        raise first_of(errors)


class MissingKeyError(ParameterError):
    """A section or a key is not in the file."""


class UnknownKeyError(ParameterError):
    """A section has a key that it does not know."""

    def __init__(self, name: str, value: Any, known: Iterable[str], prefix: str = "") -> None:
        self.name, self.value, self.known, self.prefix = name, value, list(known), prefix
        super().__init__(
            f"{prefix}{name} = {value!r} is not a known setting; "
            f"{closest_key(name, self.known, prefix)}{_of_a_comma(name, value)}"
        )

    def inside(self, section: str) -> "UnknownKeyError":
        """Return the same error with the section's dotted path before both keys."""
        error = UnknownKeyError(self.name, self.value, self.known, f"{section}.{self.prefix}")
        self._with_others(error, section)
        return error


def _of_a_comma(name: str, value: Any) -> str:
    """Return what to do where a text was divided at its comma, as in ``{group: PSL(2, 7)}``."""
    is_rest = value is None and re.search(r"[)\]>]", name)
    return "; a text with a comma stands in quotes inside { }" if is_rest else ""


def closest_name(name: str, valid: Iterable[str]) -> str:
    """Return which of some names is most like a name."""
    return difflib.get_close_matches(name, list(valid), n=1, cutoff=0.0)[0]


def closest_words(name: str, valid: Iterable[str]) -> str:
    """Return in words which of some names is most like a name, and all that there are."""
    names = list(valid)
    closest = closest_name(name, names) if names else "none"
    return f"the closest is {closest} (valid: {', '.join(names) or 'none'})"


def similar_name(name: str, valid: Iterable[str], least: float = _SIMILAR) -> str | None:
    """Return which of some names was probably meant; None where none is much like it."""
    found = difflib.get_close_matches(name, list(valid), n=1, cutoff=least)
    return found[0] if found else None


def closest_key(name: str, valid: Iterable[str], prefix: str) -> str:
    """Return in words which key of a section was probably meant, and all that there are."""
    names = [str(candidate) for candidate in valid]
    if not names:
        return "no key is"
    closest = similar_name(name, names)
    if closest is None:
        return f"valid: {', '.join(names)}"
    return f"the closest valid key is {prefix}{closest} (valid: {', '.join(names)})"
