"""Things that fit into each other: task 18."""

from dataclasses import dataclass
from itertools import combinations

from implicit_models.problems.catbabi.generator.dice import Dice
from implicit_models.problems.catbabi.generator.telling import RECENT, Asked, Teller

NUM_FACTS = 5  # told at once, again where they leave too little to ask
NUM_QUESTIONS = 5  # in a row
TRIES = 35  # to find a question

CHOCOLATES = (("chocolate",), ("box", "of", "chocolates"))  # the small ones, in this order
BOXES = (("box",), ("chest",), ("container",), ("suitcase",))

Thing = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Larger:
    """A fact: one thing is larger than another."""

    line: int
    small: Thing
    large: Thing


def size_reasoning(dice: Dice) -> Teller:
    """Write a story of task 18: which things are larger, and what follows by way of a third one."""
    teller = Teller()
    things = (*CHOCOLATES, *dice.shuffled(BOXES))
    pairs = tuple(combinations(things, 2))
    facts: list[Larger] = []
    asked = 0
    while asked < NUM_QUESTIONS:
        for _ in range(NUM_FACTS):
            small, large = dice.one_of(pairs)
            facts.append(Larger(_tell(dice, teller, small, large), small, large))
        asked = 0
        while asked < NUM_QUESTIONS and (found := _follow(dice, facts)):
            teller.ask(*_question(dice, *found))
            asked += 1
    return teller


def _tell(dice: Dice, teller: Teller, small: Thing, large: Thing) -> int:
    if dice.happens(0.5):
        return teller.tell("The", *large, "is", "bigger", "than", "the", *small)
    return teller.tell("The", *small, "fits", "inside", "the", *large)


def _follow(dice: Dice, facts: list[Larger]) -> tuple[Larger, Larger] | None:
    """Draw one of the last facts, and the first one told that something follows from with it.

    The second is the first other fact about one of the two things; there may be none, or nothing
    may follow from it, and after some tries it is left at that.
    """
    for _ in range(TRIES):
        fact = dice.one_of(facts[-RECENT:])
        by = dice.one_of((fact.small, fact.large))
        others = (each for each in facts if each is not fact and by in (each.small, each.large))
        other = next(others, None)
        if other is not None and (fact.large == other.small or other.large == fact.small):
            return fact, other
    return None


def _question(dice: Dice, fact: Larger, other: Larger) -> Asked:
    """Ask whether the one thing of the first fact is larger than the other thing of the second."""
    is_true = fact.small == other.large
    large, small = (fact.large, other.small) if is_true else (fact.small, other.large)
    if dice.happens(0.5):
        question = ("Is", "the", *large, "bigger", "than", "the", *small)
    else:
        question = ("Does", "the", *small, "fit", "in", "the", *large)
    return question, "yes" if is_true else "no", (fact.line, other.line)
