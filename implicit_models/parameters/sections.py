"""A section of a YAML file as a class."""

import difflib
import pkgutil
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from implicit_models.parameters.errors import (
    ParameterError,
    UnknownKeyError,
    closest_name,
    first_of,
)
from implicit_models.parameters.words import in_words, refusal

T = TypeVar("T")

CONFIG = ConfigDict(
    strict=True,
    frozen=True,
    extra="forbid",
    allow_inf_nan=False,
    defer_build=True,
    polymorphic_serialization=True,
)

_MISSING_VALUE = "???"


class Parameters(BaseModel):
    """A section: its keys are the fields, and nothing but what they allow is taken.

        class ExampleParameters(Parameters):
            length: int = Field(ge=1)
            damping: float = Field(default=1.0, gt=0.0, le=1.0)
            precision: Literal["float32", "bfloat16"] = "float32"

    No value is converted from one type to another, but a whole number to a float, and the lists
    of YAML, which become tuples. Sections are nested by their classes; ``Xxx | None = None`` is
    one that may be left out.

    Raises
    ------
    ParameterError
        Naming the field, its value and what is allowed; of several that are wrong the first, keys
        that are unknown before all others, with the rest in its `others`.
    """

    model_config = CONFIG

    def __init__(self, /, **values: Any) -> None:
        given = {name: frozen(v) for name, v in values.items() if not _is_missing(v)}
        try:
            super().__init__(**given)
        except ValidationError as error:
            raise first_of(_all(error, type(self), values)) from None
        self.check()

    def check(self) -> None:
        """Check the keys against each other; each alone is already what its field allows.

        Raises
        ------
        ParameterError
            Its message starts with the key at fault.
        """

    def replace(self, **changes: Any) -> Self:
        """Return a copy with other values for some keys, checked like any section."""
        return type(self)(**{**dict(self), **changes})

    def check_at_most(self, name: str, limit: str) -> None:
        """Check that one key is at most another.

        Raises
        ------
        ParameterError
            Naming both and their values.
        """
        value, allowed = getattr(self, name), getattr(self, limit)
        if value > allowed:
            raise ParameterError(
                f"{name} = {value} is not allowed; allowed is at most {limit}, {allowed}"
            )


class Chosen(Parameters):
    """A section whose class follows from one of its keys, by a table.

        class ModelParameters(Chosen):
            chosen_by = "family"
            table = {"llama": "implicit_models.families.llama:LlamaParameters"}

        class LlamaParameters(ModelParameters):
            family: Literal["llama"]

    ``ModelParameters(family="llama", ...)`` is then a `LlamaParameters`, and so is what is read
    where a field is a `ModelParameters`. The classes are imported once they are asked for, and
    entries may be added to the table from elsewhere.
    """

    chosen_by: ClassVar[str]
    table: ClassVar[Mapping[str, str]]

    def __new__(cls, /, **values: Any) -> Self:
        """Return an object of the class that the table has for the key, not initialised yet."""
        return super().__new__(cls._chosen(values) if "table" in vars(cls) else cls)

    @classmethod
    def _chosen(cls, values: Mapping[str, Any]) -> type[Self]:
        name = values.get(cls.chosen_by, _MISSING_VALUE)
        allowed = "allowed is one of " + ", ".join(map(repr, cls.table))
        if _is_missing(name):
            for wrong in difflib.get_close_matches(cls.chosen_by, values, n=1):
                if wrong != cls.chosen_by and wrong not in cls.model_fields:
                    raise UnknownKeyError(wrong, values[wrong], [cls.chosen_by])
            raise ParameterError(f"{cls.chosen_by} is missing; {allowed}")
        if not isinstance(name, str) or name not in cls.table:
            message = f"{cls.chosen_by} = {name!r} is not allowed; {allowed}"
            if isinstance(name, str) and cls.table:
                message += f"; the closest is {closest_name(name, cls.table)!r}"
            raise ParameterError(message)
        return pkgutil.resolve_name(cls.table[name])


def _check_distinct(values: Sequence[Any]) -> Sequence[Any]:
    if not 0 < len(values) == len(set(values)):
        raise ValueError("not distinct")
    return values


#: A tuple without repetitions; pydantic holds its element's bounds, and the text is for messages.
Distinct = Annotated[
    tuple[T, ...], AfterValidator(_check_distinct), "one element or more and each only once"
]


def frozen(value: Any) -> Any:
    """Return lists of YAML, and those in them, as tuples; a mapping's names as text."""
    if isinstance(value, list):
        return tuple(frozen(element) for element in value)
    if isinstance(value, Mapping):
        return {str(name): element for name, element in value.items()}
    return value


def _is_missing(value: Any) -> bool:
    return isinstance(value, str) and value == _MISSING_VALUE


def _all(
    error: ValidationError, schema: type[Parameters], values: Mapping[str, Any]
) -> list[ParameterError]:
    """Return all that is wrong with a section, unknown keys first."""
    found: list[ParameterError] = [
        UnknownKeyError(name, values[name], schema.model_fields)
        for name in values
        if name not in schema.model_fields
    ]
    seen = set()
    for detail in error.errors(include_url=False):
        name = str(detail["loc"][0])
        field = schema.model_fields.get(name)
        if field is None or name in seen:
            continue
        seen.add(name)
        if detail["type"] == "missing":
            allowed = in_words(field.annotation, field.metadata)
            found.append(ParameterError(f"{name} is missing; allowed is {allowed}"))
        else:
            below = {**detail, "loc": detail["loc"][1:]}
            found.append(refusal(name, values[name], below, field.annotation, field.metadata))
    return found
