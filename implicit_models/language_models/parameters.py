"""The parameters of searches for fixed points: the same keys wherever a section describes one."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from implicit_models.equilibrium.names import TOKENWISE_SOLVERS, SolverName
from implicit_models.parameters import Distinct, ParameterError, Parameters

# What suits data whose state every token changes: what is left of a token's error is handed on for
# ever, and a window narrower than its patience leaves little (docs/equilibrium.md).
STATE_SEARCH: Mapping[str, Any] = {"window": 8, "patience": 12, "max_steps": 64}


class SearchParameters(Parameters):
    """How fixed points are searched.

    A key that is left out is, of a trained model, as in its training (``solver``, ``best_so_far``
    and ``damping``), or what suits the section: its class has it in ``suitable``, and where it has
    nothing, the model's configuration.

    Attributes
    ----------
    solver
        ``picard`` iterates; ``anderson`` and ``broyden`` take steps that depend on earlier ones.
    best_so_far
        Whether the search returns the iterate that followed the smallest residual.
    damping
        How far each self-iteration goes towards the cell's value; 1 is all the way. Undamped
        searches of a trained model can end in cycles.
    window
        Tokens that are searched together, or ``whole``: all of a sequence. Windows are for
        ``picard`` without ``best_so_far``; other searches are over whole sequences anyway.
    patience
        Evaluations in a row whose residual must be below the tolerance before a token in a window
        counts as converged, but at a sequence's end; left out, at most ``max_steps``.
    tolerance
        Relative residual at which a token has converged; of whole sequences that of the worst
        token.
    max_steps
        Evaluations of the cell after which a token in a window is given up, counted from when all
        tokens before it have ended; of whole sequences, after which the sequence is.
    """

    suitable: ClassVar[Mapping[str, Any]] = {}

    solver: SolverName | None = None
    best_so_far: bool | None = None
    damping: float | None = Field(default=None, gt=0.0, lt=2.0)
    window: Annotated[int, Field(ge=1)] | Literal["whole"] | None = None
    patience: int | None = Field(default=None, ge=1)
    tolerance: float | None = Field(default=None, gt=0.0, lt=1.0)
    max_steps: int | None = Field(default=None, ge=1)

    def check(self) -> None:
        """Check that a window suits the solver, and that a token may be evaluated often enough."""
        for name in ("window", "patience"):
            value = getattr(self, name)
            if value not in (None, "whole") and self._is_whole_by is not None:
                allowed = "null or 'whole'" if name == "window" else "only null"
                raise ParameterError(
                    f"{name} = {value} is not allowed; allowed is {allowed} with "
                    f"{self._is_whole_by}, which searches whole sequences"
                )
        max_steps = self.max_steps or self.suitable.get("max_steps")
        if self.patience is not None and max_steps is not None and self.patience > max_steps:
            raise ParameterError(
                f"patience = {self.patience} is not allowed; allowed is at most max_steps, "
                f"{max_steps}"
            )

    @property
    def is_whole(self) -> bool:
        """Whether the keys that are given make it a search of whole sequences."""
        return self._is_whole_by is not None

    @property
    def _is_whole_by(self) -> str | None:
        """The key, with its value, by which whole sequences are searched."""
        if self.solver not in (None, *TOKENWISE_SOLVERS):
            return f"solver = {self.solver!r}"
        if self.best_so_far:
            return "best_so_far = True"
        return "window = 'whole'" if self.window == "whole" else None

    @property
    def search(self) -> dict[str, Any]:
        """The keys of the search that are given, with their values."""
        found = {name: getattr(self, name) for name in SearchParameters.model_fields}
        return {name: value for name, value in found.items() if value is not None}


class SweepParameters(SearchParameters):
    """How scores are measured against the computation allowed at test time.

    Attributes
    ----------
    length, num_sequences
        Tokens of the test sequences that are read, and how many of them.
    batch_size
        Sequences searched together.
    self_iterations
        Numbers of self-iterations (evaluations of the cell, the one that gives the output
        included), each run to its end whatever the residual, over whole sequences.
    tolerances
        Relative residuals, each searched for.
    tolerance
        Only null: a sweep has ``tolerances``.
    solver, best_so_far, damping, window, patience, max_steps
        As in `SearchParameters`; the last three are of the searches to a tolerance.
    """

    length: int = Field(ge=1)
    num_sequences: int = Field(ge=1)
    batch_size: int = Field(ge=1)
    self_iterations: Distinct[Annotated[int, Field(ge=1)]]
    tolerances: Distinct[Annotated[float, Field(gt=0.0, lt=1.0)]]

    def check(self) -> None:
        """Check that the tolerances stand where they belong."""
        super().check()
        if self.tolerance is not None:
            raise ParameterError(
                f"tolerance = {self.tolerance} is not allowed; allowed is null: a sweep has "
                "tolerances"
            )
