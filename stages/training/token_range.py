"""Whether what is trained on are tokens that a model has, looked at before the first step.

Training reads it as it comes, and an embedding or a loss that meets another number ends in the
depths of torch, on a GPU long after. So the first millions of each split are looked at, which takes
moments, and with small data, as those of a new kind of problem are, that is all of it.
"""

from typing import Any

import numpy as np

from implicit_models.language_models.losses import IGNORED
from implicit_models.parameters import ParameterError
from implicit_models.problems.answers import TrainingData
from stages.common import Data

LOOKED_AT = 2**22  # tokens of a split


def check_tokens(key: str, read: Data, data: TrainingData) -> None:
    """See that tokens and answers are below the size of the vocabulary.

    Parameters
    ----------
    key
        Of the entry that is trained.
    read, data
        The entry of what it is trained on, and that as it was opened.

    Raises
    ------
    ParameterError
        With the first number that is not.
    """
    size = data.vocabulary_size
    counted = (
        f"vocabulary_size, here {size}, counts tokens and answers alike, and stands in "
        f"parameters.py, checks.py and data/interface.py of the kind {read.kind!r}: mend it there, "
        f"or what data/interface.py gives; where nothing is asked, labels of a signed dtype hold "
        f"{IGNORED}"
    )
    for split, sequences in (("train", data.train), ("validation", data.validation)):
        rows = slice(max(1, LOOKED_AT // sequences.inputs.shape[1]))
        for what, array in (("inputs", sequences.inputs), ("labels", sequences.labels)):
            is_label = what == "labels"
            found = _first_outside(np.asarray(array[rows]), size, is_label)
            if found is not None:
                allowed = f"{IGNORED} and 0 to {size - 1}" if is_label else f"0 to {size - 1}"
                raise ParameterError(
                    f"{key}: {read.key}, in {read.folder}, has {found} among the {what} of its "
                    f"split {split}; allowed are {allowed}. {counted}"
                )


def _first_outside(array: np.ndarray, size: int, is_label: bool) -> Any:
    if not array.size or (array.min() >= 0 and array.max() < size):  # most often, in one pass each
        return None
    wrong = (array < 0) | (array >= size)
    if is_label:
        wrong &= array != IGNORED
    return array[wrong][0] if wrong.any() else None
