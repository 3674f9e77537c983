"""What the report asks of the entries of params.yaml, whose classes it does not know."""

import re
from collections.abc import Mapping
from typing import Any, Protocol


class TrainedModel(Protocol):
    """A section ``model``."""

    @property
    def family(self) -> str:
        """The name of its architecture, such as ``"mamba2"``."""
        ...

    @property
    def kind(self) -> str:
        """Whether it is ``"implicit"``, ``"explicit"`` or ``"recurrent"``."""
        ...

    def model_dump(self, *, exclude: set[str]) -> dict[str, Any]:
        """Return its keys but some, as pydantic gives them."""
        ...

    @property
    def weights_source(self) -> str | None:
        """The folder or hub id whose weights the training began from; None for none."""
        ...


class TrainedEntry(Protocol):
    """An entry of a table of models: frozen, with all its defaults."""

    @property
    def dataset(self) -> str:
        """Name of its data."""
        ...

    @property
    def model(self) -> TrainedModel:
        """What is trained."""
        ...

    @property
    def training_length(self) -> int:
        """The most tokens of a sequence that it is trained on."""
        ...

    @property
    def phase_change(self) -> int | None:
        """Training steps before the free phase; None for an explicit model."""
        ...

    @property
    def length_growth(self) -> tuple[int, int, int] | None:
        """From and to which length sequences grow, and in how many steps; None where they don't."""
        ...

    @property
    def num_passing_steps(self) -> int:
        """Training steps whose sequences go on from those before, with what a model remembers."""
        ...

    @property
    def iteration_cap(self) -> int | None:
        """The most self-iterations of a sequence in the free phase; None for an explicit model."""
        ...

    @property
    def matched_to(self) -> tuple[str, str] | None:
        """The run whose size or FLOPs the entry was given, and which of them; None for most."""
        ...

    def seed_group(self, models: Mapping[str, Any]) -> str:
        """Return what is the same for entries that differ by their seed alone."""
        ...


class EvaluatedEntry(Protocol):
    """An entry of ``benchmarks`` or ``readings``."""

    @property
    def model(self) -> str:
        """The model's folder or hub id."""
        ...


def trained_entry(folder: str) -> str | None:
    """Return which entry of params.yaml has its final model in a folder; None for any other."""
    found = re.fullmatch(r"(?:\./)?models/([^/]+)/final/?", folder)
    return found[1] if found else None
