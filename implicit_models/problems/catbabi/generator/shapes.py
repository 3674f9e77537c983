"""Shapes above, below and beside each other: task 17."""

from implicit_models.problems.catbabi.generator.dice import Dice
from implicit_models.problems.catbabi.generator.telling import Teller

NUM_QUESTIONS = 8
SHAPES = (
    ("triangle",),
    ("blue", "square"),
    ("red", "square"),
    ("yellow", "square"),
    ("pink", "rectangle"),
    ("red", "sphere"),
)
ABOVE, BELOW, RIGHT, LEFT = (
    ("above",),
    ("below",),
    ("to", "the", "right", "of"),
    ("to", "the", "left", "of"),
)
SIDES = (ABOVE, BELOW, RIGHT, LEFT)
OPPOSITE = {ABOVE: BELOW, BELOW: ABOVE, RIGHT: LEFT, LEFT: RIGHT}
ACROSS = {ABOVE: (RIGHT, LEFT), BELOW: (RIGHT, LEFT), RIGHT: (ABOVE, BELOW), LEFT: (ABOVE, BELOW)}

MIDDLE_FIRST = 2 / 3  # is how often a fact names the shape first that both facts are about
ALONG = 2 / 3  # is how often, of shapes in a row, a false relation is the true one turned round

Side = tuple[str, ...]
Shape = tuple[str, ...]


def positional_reasoning(dice: Dice) -> Teller:
    """Write a story of task 17: two shapes on different sides of a third, and how they are."""
    teller = Teller()
    first, middle, second = dice.sample(SHAPES, 3)
    side = dice.one_of(SIDES)  # of the middle that the first one is on
    other_side = dice.other_than(SIDES, side)
    lines = {
        first: _tell(dice, teller, first, side, middle),
        second: _tell(dice, teller, second, other_side, middle),
    }
    from_second = {side, OPPOSITE[other_side]}  # sides of the second that the first one is on
    for _ in range(NUM_QUESTIONS):
        one, other = dice.shuffled((first, second))
        true = tuple(s for s in SIDES if (s if one is first else OPPOSITE[s]) in from_second)
        is_true = dice.happens(0.5)
        asked = dice.one_of(true)
        if not is_true:
            is_row = len(true) == 1
            turned = not is_row or dice.happens(ALONG)
            asked = OPPOSITE[asked] if turned else dice.one_of(ACROSS[asked])
        question = ("Is", "the", *one, *asked, "the", *other)
        teller.ask(question, "yes" if is_true else "no", (lines[one], lines[other]))
    return teller


def _tell(dice: Dice, teller: Teller, shape: Shape, side: Side, middle: Shape) -> int:
    if dice.happens(MIDDLE_FIRST):
        return teller.tell("The", *middle, "is", *OPPOSITE[side], "the", *shape)
    return teller.tell("The", *shape, "is", *side, "the", *middle)
