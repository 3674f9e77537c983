"""The parameters of an implicit model made of an explicit checkpoint."""

from typing import Literal

from implicit_models.families.parameters import ModelParameters


class UpcycledParameters(ModelParameters):
    """An implicit model that begins as an explicit one.

    Attributes
    ----------
    source
        The checkpoint's folder or hub id.
    """

    allows_implicit = (True,)
    is_upcycled = True

    family: Literal["upcycled"]
    source: str

    @property
    def has_state(self) -> None:
        """Its source says."""
        return None
