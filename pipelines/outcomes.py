"""What came of every stage of a flow: kept here, whatever Prefect has recorded."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pipelines.dag import Stage
from pipelines.signals import Insistence

How = Literal["cached", "restored", "ran", "failed", "not run", "stopped"]

GOOD: tuple[How, ...] = ("cached", "restored", "ran")


@dataclass(frozen=True)
class Outcome:
    """What came of one stage.

    Attributes
    ----------
    how
        ``cached``: nothing had changed; ``restored``: DVC had its outputs from an earlier run;
        ``ran``: its command ran; or why it is not up to date.
    seconds
        That it took, waiting included.
    place
        Where it was brought up to date, for people.
    message
        More, where it is not up to date.
    cause
        Of one that was not run: the stage whose failure that is due to.
    tracked
        Its run in MLflow, where another machine has sent that: the address of the page, or the id.
    """

    how: How
    seconds: float = 0.0
    place: str = ""
    message: str = ""
    cause: str = ""
    tracked: str | None = None


@dataclass
class Outcomes:
    """What came of the stages of a flow.

    Attributes
    ----------
    stages
        All stages of the flow, parents first.
    by_stage
        The outcomes of those that have ended.
    unrecorded
        Why the record in Prefect is not complete; empty as long as it is.
    stopped_by
        Number of the signal that stopped the flow, if one did.
    insistence
        Tells a second wish to stop it, before, in and after the flow.
    are_stages_known
        Whether the flow has come as far as to know its stages.
    """

    stages: Mapping[str, Stage] = field(default_factory=dict)
    by_stage: dict[str, Outcome] = field(default_factory=dict)
    unrecorded: str = ""
    stopped_by: int | None = None
    insistence: Insistence = field(default_factory=Insistence)
    started: float = field(default_factory=time.monotonic)
    are_stages_known: bool = False

    def blocking(self, stage: Stage) -> str | None:
        """Return the stage whose failure keeps another from being run."""
        for parent in stage.parents:
            if parent in self.by_stage and not self._good(parent):
                return self.cause(parent)
        return None

    def cause(self, name: str) -> str:
        """Return the stage that decided of one that has ended: itself, unless it was not run."""
        return self.by_stage[name].cause or name

    def note_unrecorded(self, error: BaseException) -> None:
        """Note why the record in Prefect lacks something; the first reason is kept."""
        said = " ".join(str(error).split()) or "no reason given"
        self.unrecorded = self.unrecorded or f"{type(error).__name__}: {said}"

    def failed(self) -> list[str]:
        """Return the names of the stages that have failed themselves."""
        return [name for name, outcome in self.by_stage.items() if outcome.how == "failed"]

    @property
    def is_complete(self) -> bool:
        """Whether every stage is up to date."""
        return self.are_stages_known and all(self._good(name) for name in self.stages)

    def summary(self) -> str:
        """Return in a line how many stages ended how."""
        counts: dict[str, int] = {}
        for row in self.rows():
            counts[row["outcome"]] = counts.get(row["outcome"], 0) + 1
        ends = ", ".join(f"{count} {how}" for how, count in counts.items())
        return f"{self.num_stages()}: {ends}; {time.monotonic() - self.started:.1f} s"

    def num_stages(self) -> str:
        """Return how many stages there are, in words."""
        return "1 stage" if len(self.stages) == 1 else f"{len(self.stages)} stages"

    def rows(self) -> list[dict[str, str]]:
        """Return a row for each stage, for a table."""
        rows = []
        for name in self.stages:
            outcome = self.by_stage.get(name)
            row = {"stage": name, "outcome": "not begun", "seconds": "", "place": ""}
            if outcome is not None:
                row |= {
                    "outcome": outcome.how,
                    "seconds": f"{outcome.seconds:.1f}",
                    "place": outcome.place,
                }
            rows.append(row)
        return rows

    def _good(self, name: str) -> bool:
        return name in self.by_stage and self.by_stage[name].how in GOOD
