from typing import Literal

from pydantic import Field

from implicit_models.families.parameters import StackParameters


class ElmanParameters(StackParameters):
    family: Literal["elman"]
    d_state: int = Field(ge=1)
