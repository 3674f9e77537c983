"""The parameters of torch's LSTM."""

from typing import Literal

from pydantic import Field

from implicit_models.families.parameters import OwnParameters


class LSTMParameters(OwnParameters):
    """torch's LSTM, explicit by nature.

    Attributes
    ----------
    hidden_size
        Width of the state; the output is projected to d_model.
    """

    allows_implicit = (False,)
    can_be_upcycled = False
    is_recurrent = True

    family: Literal["lstm"]
    hidden_size: int = Field(ge=1)

    @property
    def has_state(self) -> bool:
        """Yes: its layers' states."""
        return True
