"""Arrays on disk."""

from pathlib import Path

import numpy as np


def open_array(path: Path) -> np.ndarray:
    """Open a ``.npy`` file memory-mapped and read-only; nothing in it is executed.

    Raises
    ------
    FileNotFoundError
        Where there is none.
    ValueError
        Where it is truncated or something else: NumPy's own errors are of many kinds.
    """
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise
    except Exception as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None
