"""The twenty families of stories, and how many stories are drawn of one.

Story i of a seed, a task and a split depends on these four numbers alone, however many are drawn.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np

from implicit_models.problems.catbabi.generator import (
    carrying_questions,
    days,
    going,
    kinds,
    knowing,
    motives,
    rooms,
    shapes,
    sizes,
)
from implicit_models.problems.catbabi.generator.dice import Dice
from implicit_models.problems.catbabi.generator.telling import Teller
from implicit_models.problems.catbabi.stories.reading import SPLITS
from implicit_models.problems.catbabi.stories.story import Story

_MAX_TRIES = 20  # stories drawn for each that is wanted, before there are taken to be no more


_QUESTIONS = 9000  # of a full training, in as many stories as a family says


@dataclass(frozen=True)
class Family:
    """A task: how a story of it is told, and how many stories have 9,000 questions."""

    tell: Callable[[Dice], Teller]
    num_stories: int


FAMILIES = {
    1: Family(carrying_questions.single_fact, 1800),
    2: Family(carrying_questions.two_facts, 1800),
    3: Family(carrying_questions.three_facts, 1800),
    4: Family(rooms.two_arguments, 9000),
    5: Family(carrying_questions.three_arguments, 1800),
    6: Family(carrying_questions.yes_or_no, 1800),
    7: Family(carrying_questions.counting, 1800),
    8: Family(carrying_questions.listing, 1800),
    9: Family(knowing.negation, 1800),
    10: Family(knowing.indefinite_knowledge, 1800),
    11: Family(going.coreference, 1800),
    12: Family(going.conjunction, 1800),
    13: Family(going.compound_coreference, 1800),
    14: Family(days.time_reasoning, 1800),
    15: Family(kinds.deduction, 2250),
    16: Family(kinds.induction, 9000),
    17: Family(shapes.positional_reasoning, 1125),
    18: Family(sizes.size_reasoning, 1781),
    19: Family(rooms.path_finding, 9000),
    20: Family(motives.motivations, 840),
}


def num_stories(task: int, questions: int) -> int:
    """Return how many stories of a task have about so many questions."""
    return max(1, round(questions / _QUESTIONS * FAMILIES[task].num_stories))


def generate(
    task: int,
    num_stories: int,
    seed: int,
    split: str = "train",
    *,
    other_than: Collection[Story] = (),
) -> list[Story]:
    """Draw stories of a task.

    Parameters
    ----------
    split
        ``train``, ``valid`` or ``test``; each has stories of its own.
    other_than
        Stories that are passed over where they are drawn again, such as those of the training.

    Raises
    ------
    ValueError
        If the task or split is unknown, a number is negative, or ``other_than`` leaves too few.
    """
    if task not in FAMILIES:
        raise ValueError(f"task is {task!r}; allowed are numbers from 1 to {len(FAMILIES)}")
    if split not in SPLITS:
        raise ValueError(f"split is {split!r}; allowed is {', '.join(SPLITS)}")
    for name, number in (("num_stories", num_stories), ("seed", seed)):
        if number < 0:
            raise ValueError(f"{name} is {number}; allowed is 0 or more")
    passed_over = frozenset(other_than)
    stories: list[Story] = []
    for index in range(_MAX_TRIES * num_stories + 1):
        if len(stories) == num_stories:
            break
        story = _story(task, seed, SPLITS.index(split), index)
        if story not in passed_over:
            stories.append(story)
    if len(stories) < num_stories:
        raise ValueError(
            f"task {task} has too few stories: {_MAX_TRIES * num_stories} drawn have "
            f"{len(stories)} of {num_stories} that are none of the {len(passed_over)} others; "
            "ask for fewer, or for fewer others"
        )
    return stories


def share_of_copies(stories: Collection[Story], others: Collection[Story]) -> float:
    """Return the share of some stories that are among others, word for word."""
    known = frozenset(others)
    return sum(story in known for story in stories) / max(1, len(stories))


def _story(task: int, seed: int, split: int, index: int) -> Story:
    generator = np.random.default_rng((seed, task, split, index))
    return Story(task, tuple(FAMILIES[task].tell(Dice(generator)).lines))
