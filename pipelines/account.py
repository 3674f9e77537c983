"""What came of every stage of a flow: kept here, whatever Prefect has recorded."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pipelines.dag import Stage

How = Literal["cached", "restored", "ran", "failed", "not run", "stopped"]

GOOD: tuple[How, ...] = ("cached", "restored", "ran")


@dataclass(frozen=True)
class Entry:
    """What came of one stage.

    Attributes
    ----------
    how
        In a word.
    seconds
        That it took.
    place
        Where it was brought up to date.
    message
        More, where it is not up to date.
    cause
        Of one that was not run: the stage whose failure that is due to.
    tracked
        Its run in MLflow, where another machine has sent that.
    """

    how: How
    seconds: float = 0.0
    place: str = ""
    message: str = ""
    cause: str = ""
    tracked: str | None = None


@dataclass
class Account:
    """The account of a flow.

    Attributes
    ----------
    stages
        All stages of the flow, parents first.
    entries
        What came of those that have ended.
    unrecorded
        Why the record in Prefect is not complete; empty as long as it is.
    stopped_by
        Number of the signal that stopped the flow, if one did.
    has_looked
        Whether the flow has come as far as to know its stages.
    """

    stages: Mapping[str, Stage] = field(default_factory=dict)
    entries: dict[str, Entry] = field(default_factory=dict)
    unrecorded: str = ""
    stopped_by: int | None = None
    started: float = field(default_factory=time.monotonic)
    has_looked: bool = False

    def blocking(self, stage: Stage) -> str | None:
        """Name the stage whose failure keeps another from being run."""
        for parent in stage.parents:
            if parent in self.entries and not self._good(parent):
                return self.cause(parent)
        return None

    def cause(self, name: str) -> str:
        """Name the stage that decided of one that has ended: itself, unless it was not run."""
        return self.entries[name].cause or name

    def note_unrecorded(self, error: BaseException) -> None:
        """Note why the record in Prefect lacks something; the first reason is kept."""
        said = " ".join(str(error).split()) or "no reason given"
        self.unrecorded = self.unrecorded or f"{type(error).__name__}: {said}"

    def failed(self) -> list[str]:
        """Names of the stages that have failed themselves."""
        return [name for name, entry in self.entries.items() if entry.how == "failed"]

    @property
    def is_complete(self) -> bool:
        """Whether every stage is up to date."""
        return self.has_looked and all(self._good(name) for name in self.stages)

    def summary(self) -> str:
        """Say in a line how many stages ended how."""
        counts: dict[str, int] = {}
        for name in self.stages:
            how = self.entries[name].how if name in self.entries else "not begun"
            counts[how] = counts.get(how, 0) + 1
        parts = ", ".join(f"{count} {how}" for how, count in counts.items())
        return f"{self.num_stages()}: {parts}; {time.monotonic() - self.started:.1f} s"

    def num_stages(self) -> str:
        """Say how many stages there are."""
        return "1 stage" if len(self.stages) == 1 else f"{len(self.stages)} stages"

    def rows(self) -> list[dict[str, str]]:
        """Give a row for each stage, for a table."""
        return [
            {
                "stage": name,
                "outcome": self.entries[name].how if name in self.entries else "not begun",
                "seconds": f"{self.entries[name].seconds:.1f}" if name in self.entries else "",
                "place": self.entries[name].place if name in self.entries else "",
            }
            for name in self.stages
        ]

    def _good(self, name: str) -> bool:
        return name in self.entries and self.entries[name].how in GOOD
