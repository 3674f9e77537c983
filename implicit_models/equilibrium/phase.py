"""A phase: every choice that a forward pass of an implicit model leaves open, as one value.

`SearchSettings` holds these choices as strings and numbers, as they stand in a file; `SOLVERS` and
`GRADIENTS` say what the names in `names` mean.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from implicit_models.equilibrium.anderson import Anderson
from implicit_models.equilibrium.broyden import Broyden
from implicit_models.equilibrium.checks import check_count
from implicit_models.equilibrium.gradients import Gradient, ImplicitFunction, Phantom, Unrolled
from implicit_models.equilibrium.jacobian import JacobianPenalty
from implicit_models.equilibrium.solvers import BestSoFar, Picard, Solver
from implicit_models.equilibrium.stopping import FixedSteps, ResidualBelow, Stopping
from implicit_models.equilibrium.window import Window

SOLVERS: Mapping[str, Callable[[float], Solver]] = {
    "picard": Picard,
    "anderson": lambda damping: Anderson(damping=damping),
    "broyden": lambda damping: Broyden(damping=damping),
}


@dataclass(frozen=True)
class Phase:
    """How the fixed point is searched and how the gradient is taken.

    The bounded and the free phase of training, and evaluation, differ in nothing else.

    Attributes
    ----------
    solver, stopping, window
        Of the search; ``window`` None searches whole sequences (the simultaneous mode).
    gradient
        None where none is wanted: a model's hidden states and its cache then have none.
    penalty
        Added to the loss of training, where gradients are enabled; None where none is wanted.
    """

    solver: Solver
    stopping: Stopping
    gradient: Gradient | None
    window: Window | None = None
    penalty: JacobianPenalty | None = None

    @property
    def num_following(self) -> int:
        """Evaluations of the cell that follow the search and give the output."""
        return 1 if self.gradient is None else self.gradient.num_steps

    def with_checkpointing(self) -> "Phase":
        """Return the phase whose gradient keeps the least for the backward pass."""
        if self.gradient is None:
            return self
        return dataclasses.replace(self, gradient=self.gradient.with_checkpointing())


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """A search in plain values, from which phases are built with one damping throughout.

    Attributes
    ----------
    solver
        A name in `SOLVERS`.
    damping
        Of the search, of phantom steps and of the backward solve: more than 0, less than 2.
    best_so_far
        Whether the search returns the iterate that followed the smallest residual.
    tolerance
        Residual below which a search has converged; None makes ``max_steps`` evaluations whatever
        the residual.
    max_steps
        The most evaluations of a sequence; in a window of a token, counted from when all tokens
        before it have ended.
    window
        Tokens that are searched together; None for whole sequences.
    patience
        Evaluations in a row below the tolerance before a token in a window is committed; needed
        with a window, and None without.

    Raises
    ------
    ValueError
        Where a value is out of its range, or two do not fit each other; it names the key, the value
        and what is allowed.
    """

    solver: str = "picard"
    damping: float = 1.0
    best_so_far: bool = False
    tolerance: float | None
    max_steps: int
    window: int | None = None
    patience: int | None = None

    def __post_init__(self) -> None:
        _check_name("solver", self.solver, SOLVERS)
        check_count("max_steps", self.max_steps, minimum=0 if self.tolerance is None else 1)
        if self.window is not None:
            check_count("window", self.window)
        if (self.window is None) != (self.patience is None):
            allowed = "a number with a window, and None without"
            raise ValueError(
                f"patience is {self.patience} and window is {self.window}; allowed is {allowed}"
            )
        if self.window is not None and self.tolerance is None:
            raise ValueError(
                f"window is {self.window} and tolerance is None; a window commits tokens as they "
                "converge and needs a tolerance"
            )
        if self.window is not None and not self._solver().is_tokenwise:
            tokenwise = ", ".join(name for name in SOLVERS if SOLVERS[name](1.0).is_tokenwise)
            raise ValueError(
                f"solver is {self.solver!r}, best_so_far is {self.best_so_far} and window is "
                f"{self.window}; with a window, allowed is solver {tokenwise} without best_so_far"
            )
        self.phase()

    def phase(
        self,
        gradient: str | None = None,
        gradient_steps: int | None = None,
        penalty: JacobianPenalty | None = None,
    ) -> Phase:
        """Build the phase that searches so and then takes a gradient.

        Parameters
        ----------
        gradient
            A name in `GRADIENTS`; None takes no gradient.
        gradient_steps
            Evaluations that ``phantom`` and ``unrolled`` differentiate; None for the others.
        penalty
            Of the loss.

        Raises
        ------
        ValueError
            As above, of the gradient.
        """
        solver, stopping = self._solver(), self._stopping()
        window = None
        if self.window is not None and self.patience is not None:
            window = Window(self.window, self.patience)
            window.check(solver, stopping)
        taken = None
        if gradient is not None:
            _check_name("gradient", gradient, GRADIENTS)
            taken = GRADIENTS[gradient](self, gradient_steps)
        elif gradient_steps is not None:
            raise ValueError(
                f"gradient_steps is {gradient_steps} and gradient is None; allowed is None"
            )
        return Phase(solver, stopping, taken, window, penalty)

    def _solver(self) -> Solver:
        solver = SOLVERS[self.solver](self.damping)
        return BestSoFar(solver) if self.best_so_far else solver

    def _stopping(self) -> Stopping:
        if self.tolerance is None:
            return FixedSteps(self.max_steps)
        return ResidualBelow(self.tolerance, self.max_steps)


def _phantom(search: SearchSettings, steps: int | None) -> Gradient:
    return Phantom(_steps("phantom", steps), search.damping)


def _unrolled(search: SearchSettings, steps: int | None) -> Gradient:
    if search.damping != 1.0:
        raise ValueError(
            f"gradient is 'unrolled' and damping is {search.damping}; unrolled iterations are "
            "plain: allowed is damping 1.0, or gradient phantom, whose steps are damped"
        )
    return Unrolled(_steps("unrolled", steps))


def _implicit_function(search: SearchSettings, steps: int | None) -> Gradient:
    """Solve backward as the search does forward: ``J^T`` has the eigenvalues of ``J``."""
    if steps is not None:
        raise ValueError(
            f"gradient_steps is {steps} and gradient is 'implicit_function', which evaluates the "
            "cell once; allowed is None"
        )
    if search.tolerance is None:
        raise ValueError(
            "tolerance is None and gradient is 'implicit_function', which is that of a fixed "
            "point; allowed is a positive number"
        )
    whole = dataclasses.replace(search, window=None, patience=None).phase()
    return ImplicitFunction(whole.solver, whole.stopping)


GRADIENTS: Mapping[str, Callable[[SearchSettings, int | None], Gradient]] = {
    "phantom": _phantom,
    "unrolled": _unrolled,
    "implicit_function": _implicit_function,
}


def _steps(gradient: str, steps: int | None) -> int:
    if steps is None:
        raise ValueError(
            f"gradient_steps is None and gradient is {gradient!r}; allowed is 1 or more"
        )
    check_count("gradient_steps", steps)
    return steps


def _check_name(key: str, name: str, allowed: Iterable[str]) -> None:
    if name not in allowed:
        raise ValueError(f"{key} is {name!r}; allowed are {', '.join(sorted(allowed))}")


def bounded_phase(
    num_self_iterations: int, phantom_steps: int | None = None, damping: float = 1.0
) -> Phase:
    """Return the bounded phase: always as many iterations from zero.

    Without ``phantom_steps`` the gradient goes through all of them. With some it goes through these
    alone, which follow the others, damped alike: (4+1) in the paper is four and one.
    """
    if phantom_steps is None:
        search = SearchSettings(tolerance=None, max_steps=0)
        return search.phase("unrolled", num_self_iterations)
    search = SearchSettings(damping=damping, tolerance=None, max_steps=num_self_iterations)
    return search.phase("phantom", phantom_steps)


def free_phase(
    tolerance: float,
    max_steps: int,
    phantom_steps: int,
    damping: float,
    window: Window | None = None,
    penalty: JacobianPenalty | None = None,
) -> Phase:
    """Return the free phase: search to the tolerance, then phantom steps, damped alike."""
    search = _search(tolerance, max_steps, damping, window)
    return search.phase("phantom", phantom_steps, penalty)


def search_phase(
    tolerance: float, max_steps: int, damping: float, window: Window | None = None
) -> Phase:
    """Return the phase of evaluation: search to the tolerance, no gradient.

    ``damping`` is best the one the model was trained with: undamped, the search of a trained
    model can end in a cycle.
    """
    return _search(tolerance, max_steps, damping, window).phase()


def _search(
    tolerance: float, max_steps: int, damping: float, window: Window | None
) -> SearchSettings:
    return SearchSettings(
        damping=damping,
        tolerance=tolerance,
        max_steps=max_steps,
        window=None if window is None else window.width,
        patience=None if window is None else window.patience,
    )
