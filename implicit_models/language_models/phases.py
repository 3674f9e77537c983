"""Phases that a model's configuration names, where a caller gives none."""

from implicit_models.equilibrium.phase import Phase, bounded_phase, free_phase, search_phase
from implicit_models.equilibrium.window import Window
from implicit_models.language_models.configuration import ImplicitConfig


def default_phase(
    config: ImplicitConfig,
    *,
    differentiable: bool,
    num_tokens: int,
    tolerance: float | None = None,
    max_self_iterations: int | None = None,
) -> Phase:
    """Return the phase of training where a gradient is wanted, and otherwise that of evaluation.

    Texts are read through the configuration's window. A single token, as in generation, needs none:
    its search ends at the first evaluation below the tolerance. ``tolerance`` and
    ``max_self_iterations`` take the place of the configuration's.

    Raises
    ------
    ValueError
        Where one of them is out of its range, or has no place in the phase.
    """
    if max_self_iterations is not None and max_self_iterations < 1:
        raise ValueError(f"max_self_iterations is {max_self_iterations}; it must be at least 1")
    if differentiable and config.training_phase == "bounded":
        if tolerance is not None:
            raise ValueError(f"tolerance is {tolerance}; the bounded phase of training has none")
        phantom = config.bounded_phantom_steps
        damping = 1.0 if phantom is None else config.damping
        num_self_iterations = max_self_iterations or config.bounded_self_iterations
        return bounded_phase(num_self_iterations, phantom, damping)
    if differentiable:
        return free_phase(
            config.training_tolerance if tolerance is None else tolerance,
            max_self_iterations or config.training_max_self_iterations,
            config.phantom_steps,
            config.damping,
        )
    max_steps = max_self_iterations or config.max_self_iterations
    window = Window(config.window, min(config.patience, max_steps)) if num_tokens > 1 else None
    tolerance = config.tolerance if tolerance is None else tolerance
    return search_phase(tolerance, max_steps, config.damping, window)
