"""The residual of every token at every self-iteration of a search."""

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure


def residual_front(
    residuals: Float[np.ndarray, "S L"], tolerance: float, window: int | None = None
) -> Figure:
    """Draw the residual of each token at each self-iteration of a search, and where it settles.

    The line is each token's first self-iteration from which its residual stays below the
    tolerance: the converged front. Tokens that a window has not reached yet (NaN), or has left for
    good, stay blank.

    Parameters
    ----------
    window
        How many tokens are searched at once; None is all of them.
    """
    num_steps, length = residuals.shape
    figure = Figure(figsize=(8.5, 4.8))
    axis = figure.subplots()
    axis.grid(False)
    floor = max(float(np.min(residuals[residuals > 0], initial=1.0)), tolerance * 1e-2)
    shown = residuals if window is None else _while_computed(residuals)
    picture = axis.imshow(
        np.log10(np.clip(shown, floor, 1.0)),
        aspect="auto",
        origin="lower",
        interpolation="nearest",
        cmap="viridis",
        extent=(0.5, length + 0.5, 0.5, num_steps + 0.5),
    )
    front = settled_steps(residuals, tolerance)
    axis.step(
        np.arange(1, length + 1), front, where="mid", color="#ffffff", linewidth=3.2, alpha=0.55
    )
    axis.step(np.arange(1, length + 1), front, where="mid", color="#e0312f", linewidth=1.8)
    axis.set_xlabel("token")
    axis.set_ylabel("self-iteration of the search")
    is_cut = bool((shown < floor).any()), bool((shown > 1.0).any())
    extend = {(True, False): "min", (False, True): "max", (True, True): "both"}
    bar = figure.colorbar(picture, ax=axis, pad=0.02, extend=extend.get(is_cut, "neither"))
    bar.set_label("relative residual")
    bar.outline.set_visible(False)
    low = int(np.ceil(np.log10(floor)))
    bar.set_ticks(range(low, 1), labels=[f"{10.0**power:g}" for power in range(low, 1)])
    settled = np.isfinite(front)
    mode = "All tokens at once" if window is None else f"A window of {window} tokens"
    if settled.all():
        told = (
            f"the converged front (red) moves through all {length} tokens "
            f"in {int(front.max())} self-iterations"
        )
    else:
        told = f"{int(settled.sum())} of {length} tokens settle (red)"
    axis.set_title(f"{mode}, tolerance {tolerance:g}:\n{told}")
    return figure


def _while_computed(residuals: Float[np.ndarray, "S L"]) -> Float[np.ndarray, "S L"]:
    """Return the residuals with NaN after the last change of each token."""
    before = np.vstack([np.full_like(residuals[:1], np.nan), residuals[:-1]])
    changes = ~np.isnan(residuals) & (residuals != before)
    is_over = np.flip(np.cumsum(np.flip(changes, 0), 0), 0) == 0
    return np.where(is_over, np.nan, residuals)


def settled_steps(residuals: Float[np.ndarray, "S L"], tolerance: float) -> Float[np.ndarray, " L"]:
    """Return each token's first self-iteration (from 1) from which its residual stays below.

    NaN for a token that is not below the tolerance at the end.
    """
    above = ~(residuals < tolerance)
    last_above = np.where(above.any(0), len(above) - np.argmax(above[::-1], axis=0), 0)
    return np.where(last_above == len(above), np.nan, last_above + 1.0)
