"""Parameters of a family from elsewhere."""

from typing import Literal

from pydantic import Field

from implicit_models.families.parameters import StackParameters


class ElmanParameters(StackParameters):
    """A stack of Elman networks, which read one token after another.

    Attributes
    ----------
    d_state
        Numbers in the state of a layer.
    """

    family: Literal["elman"]
    d_state: int = Field(ge=1)
