"""The parameters of a model: one section of params.yaml, whose keys are its family's."""

import pkgutil
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from implicit_models.families.table import FAMILIES
from implicit_models.hub_access import cached_file, hub_refused_by
from implicit_models.language_models.source_names import is_hub_id
from implicit_models.parameters import Chosen, ParameterError

# Of a model of the hub, one of them: a file, or the index of several.
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")

Kind = Literal["implicit", "explicit", "recurrent"]


class ModelParameters(Chosen):
    """A section ``model``; its class is that of its family.

    Attributes
    ----------
    family
        A name in `implicit_models.families.table`.
    implicit
        Whether the stack is iterated to a fixed point, with the embeddings injected; entries of
        ``runs`` and ``upcycled`` give true.
    source
        The folder or hub id of the model that this one is made from; None where there is none.
    allows_implicit
        What ``implicit`` may be.
    is_planned
        Whether FLOPs and memory of a training follow from the parameters alone.
    is_upcycled
        Whether it is an implicit model that begins as an explicit one.
    can_be_upcycled
        Whether an explicit model of it can become an implicit one; None where its source says.
    is_recurrent
        Whether it reads its tokens one after another, in training too.
    """

    chosen_by = "family"
    table = FAMILIES
    allows_implicit: ClassVar[tuple[bool, ...]] = (False, True)
    is_planned: ClassVar[bool] = False
    is_upcycled: ClassVar[bool] = False
    can_be_upcycled: ClassVar[bool | None] = None
    is_recurrent: ClassVar[bool] = False

    family: str
    implicit: bool = False
    if TYPE_CHECKING:
        source: str | None

    def __init__(self, /, **values: Any) -> None:
        self._check_keys(values)
        super().__init__(**values)

    @property
    def kind(self) -> Kind:
        """What it is compared as."""
        if self.implicit:
            return "implicit"
        return "recurrent" if self.is_recurrent else "explicit"

    @property
    def weights_source(self) -> str | None:
        """Folder or hub id whose weights the training begins from; None for none."""
        return self.source

    @property
    def num_positions(self) -> tuple[int, str] | None:
        """The most tokens that it can read, and the key that says so; None without a limit."""
        return None

    def missing(self) -> Iterator[str]:
        """Yield what is not in the folder of its source, after the key ``model.``."""
        yield from ()

    def downloads(self) -> Iterator[tuple[str, bool]]:
        """Yield which file of a model of the hub has to be downloaded, and whether that may be."""
        if self.source is None or not is_hub_id(self.source):
            return
        wanted = [("config.json",)] + ([_WEIGHTS] if self.weights_source else [])
        absent = (names for names in wanted if not any(cached_file(self.source, n) for n in names))
        if (names := next(absent, None)) is None:
            return
        what = (
            f"source = {self.source!r}: its {names[0]} is not in the cache of the Hugging Face hub"
        )
        if refused := hub_refused_by():
            yield (
                f"{what}, and {refused} keeps it from being downloaded; unset that, or name a "
                "folder of this machine",
                False,
            )
        else:
            yield f"{what} yet; it will be downloaded", True

    @property
    def has_state(self) -> bool | None:
        """Whether what it remembers of a text has a fixed size, so that training can pass it on.

        None where its source says.
        """
        return False

    @property
    def in_words(self) -> str:
        """What sets the model's size."""
        return f"the shapes of {self.source}"

    @classmethod
    def _check_keys(cls, values: dict[str, Any]) -> None:
        """Check the keys that are wrong because of the family; unknown ones are `Parameters`'."""
        strange = [name for name in values if name not in cls.model_fields]
        if not set(strange) <= _keys_of_all_families(strange):
            return
        family, implicit = values["family"], values.get("implicit", False)
        if implicit in (False, True) and implicit not in cls.allows_implicit:
            found, allowed = str(implicit).lower(), str(not implicit).lower()
            raise ParameterError(
                f"implicit is {found}; a model of family {family} can only be {allowed}"
            )
        for name, field in cls.model_fields.items():
            if field.is_required() and values.get(name) is None:
                raise ParameterError(f"{name} is missing; a model of family {family} needs it")
        for name in strange:
            raise ParameterError(
                f"{name} is {values[name]}; a model of family {family} has none (its keys: "
                f"{', '.join(cls.model_fields)})"
            )


class OwnParameters(ModelParameters):
    """A model of ours, of the shapes that its section has.

    Attributes
    ----------
    num_layers
        Blocks of the stack, or layers.
    d_model
        Width of the embedding and of the residual stream (for an LSTM: of its embedding).
    embedding_std
        Standard deviation of the initial embeddings.
    """

    num_layers: int = Field(ge=1)
    d_model: int = Field(ge=1)
    embedding_std: float = Field(default=0.02, gt=0.0)

    @property
    def source(self) -> None:
        """It is made from no other model."""
        return None

    @property
    def in_words(self) -> str:
        """What sets the model's size."""
        return f"{self.num_layers} layers and width {self.d_model}"


class StackParameters(OwnParameters):
    """A model of blocks in our stack, explicit or implicit.

    Attributes
    ----------
    weight_normalisation
        Learn direction and length of the weights of the cell apart.
    norm_epsilon
        Added to the mean square in every norm.
    """

    is_planned = True
    can_be_upcycled = True

    weight_normalisation: bool = False
    norm_epsilon: float = Field(default=1e-5, gt=0.0, lt=1.0)


def _keys_of_all_families(wanted: list[str]) -> set[str]:
    if not wanted:
        return set()
    return {key for where in FAMILIES.values() for key in pkgutil.resolve_name(where).model_fields}
