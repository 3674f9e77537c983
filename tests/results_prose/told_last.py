"""What repeats an answer that its text has told has right, in texts that tell a state."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import yaml

from implicit_models.parameters.composition import compose
from implicit_models.problems.formal_language.data.language import IGNORED
from implicit_models.problems.formal_language.data.writing import draw_split, split_generator
from implicit_models.problems.formal_language.parameters import FormalLanguageParameters

ROOT = Path(__file__).parents[2]


def repeated(name: str, split: str, swaps: int = 0) -> float:
    """Return the percentage of a split's answers that are what was told last of the same thing.

    Parameters
    ----------
    swaps
        Of cups, how many of those that came since then are followed.
    """
    data = _data(name)
    strings, probabilities = data.splits[split]
    arrays = draw_split(
        data.drawn_with(probabilities), split_generator(data.seed, split), strings, data.answers
    )
    texts = zip(arrays["inputs"].tolist(), arrays["labels"].tolist(), strict=True)
    if name == "swapped_cups":
        swap = data.drawn.tokens.index("swap")
        pairs = [pair for text in texts for pair in _told_of_the_ball(*text, swap, swaps)]
    else:
        pairs = [pair for text in texts for pair in _told_of_each(*text, data.size)]
    return 100 * float(np.mean([guess == answer for guess, answer in pairs]))


def _data(name: str) -> FormalLanguageParameters:
    entry = yaml.safe_load(compose(ROOT, ["preset=formal_languages"]))["datasets"][name]
    return FormalLanguageParameters.model_validate(entry)


def _told_of_the_ball(
    inputs: list[int], labels: list[int], swap: int, swaps: int
) -> Iterator[tuple[int, int]]:
    guess, left = inputs[5], swaps  # the ball is under cup _
    for place, (token, label) in enumerate(zip(inputs, labels, strict=True)):
        if token == swap and left:  # swap _ and _
            one, other = inputs[place + 1], inputs[place + 3]
            guess, left = {one: other, other: one}.get(guess, guess), left - 1
        if label != IGNORED:
            yield guess, label
            guess, left = label, swaps


def _told_of_each(inputs: list[int], labels: list[int], size: int) -> Iterator[tuple[int, int]]:
    names, values = inputs[1 : 2 * size : 2], inputs[2 * size + 1 : 4 * size + 1 : 2]
    guesses = dict(zip(names, values, strict=True))  # >>> a , b = 2 , 1
    for place, label in enumerate(labels):
        if label != IGNORED:
            name = inputs[place - 1]
            yield guesses[name], label
            guesses[name] = label
