"""What follows from the kind that somebody is of: tasks 15 and 16."""

from implicit_models.problems.catbabi.generator.dice import Dice
from implicit_models.problems.catbabi.generator.telling import Teller

NUM_QUESTIONS = 4  # of task 15
PLURALS = {"mouse": "mice", "cat": "cats", "wolf": "wolves", "sheep": "sheep"}
ANIMALS = ("Emily", "Gertrude", "Jessica", "Winona")

BEASTS = ("frog", "lion", "rhino", "swan")
COLORS = ("gray", "green", "white", "yellow")
NAMES: tuple[str, ...] = ("Bernhard", "Brian", "Greg", "Julius", "Lily")
# Of task 16: how many are of one kind, that of the one asked about first, and how often.
HERDS = (
    ((2, 2, 1), 0.595),
    ((2, 1, 1, 1), 0.199),
    ((4, 1), 0.101),
    ((2, 3), 0.097),
    ((5,), 0.008),
)
ALIKE = 0.51  # is how often somebody is of the first one's color, and otherwise of any
LATE = 1.9  # the power that makes the kind of the one asked about stand late


def deduction(dice: Dice) -> Teller:
    """Write a story of task 15: what kinds are afraid of, and of which kind somebody is.

    What a kind is afraid of is told before anybody is of it.
    """
    teller = Teller()
    kinds = tuple(PLURALS)
    feared = {kind: dice.other_than(kinds, kind) for kind in kinds}
    kind_of: dict[str, str] = {}
    lines: dict[str, int] = {}
    left = [*kinds, *ANIMALS]
    while left:
        each = dice.one_of(left)
        if each in feared:
            plural = PLURALS[each].capitalize()
            lines[each] = teller.tell(plural, "are", "afraid", "of", PLURALS[feared[each]])
            left.remove(each)
        elif (kind := dice.one_of(kinds)) in lines:
            kind_of[each] = kind
            lines[each] = teller.tell(each, "is", "a", kind)
            left.remove(each)
    for _ in range(NUM_QUESTIONS):
        animal = dice.one_of(ANIMALS)
        kind = kind_of[animal]
        question = ("What", "is", animal.lower(), "afraid", "of")
        teller.ask(question, feared[kind], (lines[animal], lines[kind]))
    return teller


def induction(dice: Dice) -> Teller:
    """Write a story of task 16: kinds and colors of some, and the kind of one more.

    Asked is its color. Where others of its kind are of several colors, it is the color of the one
    whose kind was told last.
    """
    teller = Teller()
    asked, *others = dice.shuffled(NAMES)
    kind_of, color_of = _herds(dice, asked, others)
    kind_lines: dict[str, int] = {}
    color_lines: dict[str, int] = {}
    for name in _order(dice, asked, others):
        if name not in kind_lines:
            kind_lines[name] = teller.tell(name, "is", "a", kind_of[name])
        else:
            color_lines[name] = teller.tell(name, "is", color_of[name])
    alike = [name for name in others if kind_of[name] == kind_of[asked]]
    model = max(alike, key=lambda name: kind_lines[name])
    support = (kind_lines[asked], kind_lines[model], color_lines[model])
    teller.ask(("What", "color", "is", asked), color_of[model], support)
    return teller


def _order(dice: Dice, asked: str, others: list[str]) -> list[str]:
    """Draw about whom each fact is: once about the one asked about, twice about the others."""
    left = dict.fromkeys(others, 2)
    order: list[str] = []
    while left:
        name = dice.one_of(tuple(left))
        left[name] -= 1
        if not left[name]:
            del left[name]
        order.append(name)
    from_end = int((len(order) + 1) * dice.fraction() ** LATE)
    order.insert(len(order) - from_end, asked)
    return order


def _herds(dice: Dice, asked: str, others: list[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Draw everybody's kind, and the others' colors."""
    kind_of: dict[str, str] = {}
    color_of: dict[str, str] = {}
    waiting = [asked, *others]
    sizes = _sizes(dice)
    for size, kind in zip(sizes, dice.sample(BEASTS, len(sizes)), strict=True):
        color = dice.one_of(COLORS)
        for name in waiting[:size]:
            kind_of[name] = kind
            is_alike = name == waiting[0] or dice.happens(ALIKE)
            color_of[name] = color if is_alike else dice.one_of(COLORS)
        waiting = waiting[size:]
    return kind_of, color_of


def _sizes(dice: Dice) -> tuple[int, ...]:
    left = dice.fraction()
    for sizes, probability in HERDS:
        left -= probability
        if left < 0:
            return sizes
    return HERDS[0][0]
