"""What is wrong with parameters, in one line."""

import difflib
from collections.abc import Iterable
from typing import Any


class ParameterError(ValueError):
    """A parameter is unknown, missing, wrongly typed or out of range.

    Its message starts with the name of the field at fault; `inside` puts the section in front of
    it, and `read_section` the file.
    """

    def inside(self, section: str) -> "ParameterError":
        """Return the same error with the section's dotted path before the field."""
        return ParameterError(f"{section}.{self}")


class MissingKeyError(ParameterError):
    """A section or a key is not in the file."""


class UnknownKeyError(ParameterError):
    """A section has a key that it does not know."""

    def __init__(self, name: str, value: Any, known: Iterable[str], prefix: str = "") -> None:
        self.name, self.value, self.known, self.prefix = name, value, list(known), prefix
        super().__init__(
            f"{prefix}{name} = {value!r} is not a known setting; "
            f"{closest_key(name, self.known, prefix)}"
        )

    def inside(self, section: str) -> "UnknownKeyError":
        """Return the same error with the section's dotted path before both keys."""
        return UnknownKeyError(self.name, self.value, self.known, f"{section}.{self.prefix}")


def closest_name(name: str, valid: Iterable[str]) -> str:
    """Return which of some names is most like a name."""
    return difflib.get_close_matches(name, list(valid), n=1, cutoff=0.0)[0]


def closest_key(name: str, valid: Iterable[str], prefix: str) -> str:
    """Return in words which key of a section is most like a name, and all that there are."""
    names = [str(candidate) for candidate in valid]
    if not names:
        return "no key is"
    closest = closest_name(name, names)
    return f"the closest valid key is {prefix}{closest} (valid: {', '.join(names)})"
