"""Things that fit into each other: task 18."""

from dataclasses import dataclass
from itertools import combinations

from implicit_models.problems.catbabi.generator.dice import Dice
from implicit_models.problems.catbabi.generator.telling import RECENT, Teller

NUM_FACTS = 5  # told at once, again if they leave nothing to ask
NUM_QUESTIONS = 5

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
    while not (chains := _chains(facts)):
        for _ in range(NUM_FACTS):
            small, large = dice.one_of(pairs)
            facts.append(Larger(_tell(dice, teller, small, large), small, large))
    for _ in range(NUM_QUESTIONS):
        lower, upper = dice.one_of(chains)
        is_true = dice.happens(0.5)
        small, large = (lower.small, upper.large) if is_true else (upper.large, lower.small)
        if dice.happens(0.5):
            question = ("Is", "the", *large, "bigger", "than", "the", *small)
        else:
            question = ("Does", "the", *small, "fit", "in", "the", *large)
        support = (upper.line, lower.line) if is_true else (lower.line, upper.line)
        teller.ask(question, "yes" if is_true else "no", support)
    return teller


def _tell(dice: Dice, teller: Teller, small: Thing, large: Thing) -> int:
    if dice.happens(0.5):
        return teller.tell("The", *large, "is", "bigger", "than", "the", *small)
    return teller.tell("The", *small, "fits", "inside", "the", *large)


def _chains(facts: list[Larger]) -> list[tuple[Larger, Larger]]:
    """Return facts that follow on each other, one of the last among them.

    Of a fact that was told twice it is the first time that counts.
    """
    first: dict[tuple[Thing, Thing], Larger] = {}
    for fact in facts:
        first.setdefault((fact.small, fact.large), fact)
    recent = {(fact.small, fact.large) for fact in facts[-RECENT:]}
    return [
        (lower, upper)
        for lower in first.values()
        for upper in first.values()
        if lower.large == upper.small
        and not recent.isdisjoint(((lower.small, lower.large), (upper.small, upper.large)))
    ]
