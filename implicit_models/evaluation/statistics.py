"""Perplexity and how sure of it one can be; numpy only."""

import math

import numpy as np
from jaxtyping import Float, Int, Integer

# Numbers drawn at once for the bootstrap: 32 MiB of them.
_MAX_DRAWN = 2**22


def perplexity(nats: float, num_tokens: int) -> float:
    """Return the exponential of the mean nats of a token; infinite where that is too large."""
    try:
        return math.exp(nats / num_tokens)
    except OverflowError:
        return math.inf


def bits_per_byte(nats: float, num_bytes: float) -> float:
    """Return the bits that each byte of the text takes."""
    return nats / num_bytes / math.log(2)


def perplexity_error(
    nats: Float[np.ndarray, " N"],
    num_tokens: Integer[np.ndarray, " N"],
    *,
    num_samples: int,
    generator: np.random.Generator,
) -> float | None:
    """Estimate the standard error of a perplexity by the bootstrap.

    The units (documents, sequences, blocks of tokens) are drawn again with replacement; a token's
    neighbours in its unit may depend on it as they like.

    Parameters
    ----------
    nats, num_tokens
        Of each unit.
    num_samples
        Resamplings.

    Returns
    -------
    None where there is but one unit, or a perplexity that is not finite.
    """
    units = len(nats)
    if units < 2 or not np.isfinite(nats).all():
        return None
    sums = np.stack((nats.astype(np.float64), num_tokens.astype(np.float64)), axis=1)
    at_once = max(1, _MAX_DRAWN // units)
    found = []
    for start in range(0, num_samples, at_once):
        size = min(at_once, num_samples - start)
        drawn: Int[np.ndarray, "S N"] = generator.multinomial(
            units, np.full(units, 1 / units), size
        )
        found.append(drawn @ sums)
    total = np.concatenate(found)
    with np.errstate(over="ignore"):
        error = np.exp(total[:, 0] / total[:, 1]).std(ddof=1)
    return float(error) if np.isfinite(error) else None


def finite(number: float | None) -> float | None:
    """Return a number, or None in place of what JSON has no number for."""
    return number if number is not None and math.isfinite(number) else None
