"""Phases that parameters and a model's configuration name."""

from dataclasses import asdict, replace
from typing import Any

from implicit_models.equilibrium.phase import SOLVERS, Phase, SearchSettings, bounded_phase
from implicit_models.language_models.configuration import ImplicitConfig
from implicit_models.language_models.forward import is_implicit
from implicit_models.language_models.language_model import LanguageModel
from implicit_models.language_models.parameters import SearchParameters
from implicit_models.parameters import ParameterError

# As many as docs/benchmarks.md allows searches of whole sequences.
WHOLE_MAX_STEPS = 512


def search_settings(
    parameters: SearchParameters, config: ImplicitConfig | None = None, **changes: Any
) -> SearchSettings:
    """Return the search that parameters describe.

    Parameters
    ----------
    config
        Of the model that is searched with, for what the parameters leave out; None where they
        describe how it is trained.
    changes
        In place of what the parameters have; ``window=None`` is a search of whole sequences.

    Raises
    ------
    ParameterError
        Naming what does not fit, such as a window for a model that was trained with Anderson.
    """
    given = {**parameters.search, **changes}
    found = {**_as_trained(config), **parameters.suitable, **given}
    is_whole = found.get("window", "whole") in ("whole", None)
    if not is_whole and "window" not in given:
        is_whole = not _is_tokenwise(found)
    if is_whole:
        found["window"] = found["patience"] = None
        if "max_steps" not in given and "max_steps" in found:
            found["max_steps"] = max(found["max_steps"], WHOLE_MAX_STEPS)
    else:
        found["patience"] = min(found["patience"], found["max_steps"])
    try:
        return SearchSettings(**found)
    except ValueError as error:
        raise ParameterError(str(error)) from None


def search_used(parameters: SearchParameters, model: LanguageModel) -> dict[str, Any] | None:
    """Return the search by its keys, as it is noted beside results; None for an explicit model."""
    return asdict(search_settings(parameters, model.config)) if is_implicit(model) else None


def search_modes(
    parameters: SearchParameters, config: ImplicitConfig, **changes: Any
) -> dict[str, Phase]:
    """Return the modes of a search by name; see `search_settings`.

    They are ``window``, ``simultaneous`` (over whole sequences) and ``sequential`` (token by
    token); a search that has no window is ``simultaneous`` alone.
    """
    search = search_settings(parameters, config, **changes)
    if search.window is None:
        return {"simultaneous": search.phase()}
    return {
        "window": search.phase(),
        "simultaneous": replace(search, window=None, patience=None).phase(),
        "sequential": replace(search, window=1).phase(),
    }


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
    its search ends at the first evaluation below the tolerance. Without a window whole texts may
    take `WHOLE_MAX_STEPS`. ``tolerance`` and ``max_self_iterations`` take the place of all that.

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
    changes: dict[str, Any] = {} if tolerance is None else {"tolerance": tolerance}
    if differentiable:
        changes.setdefault("tolerance", config.training_tolerance)
        changes["max_steps"] = max_self_iterations or config.training_max_self_iterations
        steps = {"phantom": config.phantom_steps, "unrolled": config.unrolled_steps}
        search = search_settings(_MODELS_OWN, config, window=None, **changes)
        return search.phase(config.gradient, steps.get(config.gradient))
    if max_self_iterations is not None:
        changes["max_steps"] = max_self_iterations
    if num_tokens == 1:
        changes.setdefault("max_steps", config.max_self_iterations)
        changes["window"] = None
    return search_settings(_MODELS_OWN, config, **changes).phase()


_MODELS_OWN = SearchParameters()


def _as_trained(config: ImplicitConfig | None) -> dict[str, Any]:
    if config is None:
        return {"solver": "picard", "best_so_far": False}
    names = ("solver", "best_so_far", "damping", "window", "patience", "tolerance")
    return {name: getattr(config, name) for name in names} | {
        "max_steps": config.max_self_iterations
    }


def _is_tokenwise(found: dict[str, Any]) -> bool:
    return SOLVERS[found["solver"]](found["damping"]).is_tokenwise and not found["best_so_far"]
