"""Rooms beside each other, and the ways between them: tasks 4 and 19."""

from implicit_models.problems.catbabi.generator import words
from implicit_models.problems.catbabi.generator.dice import Dice
from implicit_models.problems.catbabi.generator.telling import Teller

STEPS = {"north": (0, 1), "south": (0, -1), "east": (1, 0), "west": (-1, 0)}
OPPOSITE = {"north": "south", "south": "north", "east": "west", "west": "east"}
DIRECTIONS = tuple(STEPS)

MIDDLE_LAST = 2 / 3  # is how often a fact of task 4 names the room in the middle last
EXTRA_ROOMS = 3  # beside the three of the path
PATH_WEIGHT = 2 / 3  # of a fact about the path to be told next, where that of another is 1

Way = tuple[str, str, str]  # room, direction, other room: from the first to the second


def two_arguments(dice: Dice) -> Teller:
    """Write a story of task 4: three rooms in a row, and which is beside which."""
    teller = Teller()
    one, middle, other = dice.sample(words.ROOMS, 3)
    direction = dice.one_of(DIRECTIONS)
    ends = dice.shuffled(((one, direction), (other, OPPOSITE[direction])))
    facts: list[Way] = []
    for room, side in ends:
        last = dice.happens(MIDDLE_LAST)
        facts.append((room, side, middle) if last else (middle, OPPOSITE[side], room))
    lines = [_tell(teller, fact) for fact in facts]
    asked = dice.below(len(facts))
    room, side, beside = facts[asked]
    if dice.happens(0.5):
        question = ("What", "is", side, "of", "the", beside)
    else:
        question = ("What", "is", "the", beside, OPPOSITE[side], "of")
    teller.ask(question, room, (lines[asked],))
    return teller


def path_finding(dice: Dice) -> Teller:
    """Write a story of task 19: a path of two steps, and three more rooms beside its rooms."""
    path, others = _map(dice)
    teller = Teller()
    lines: dict[Way, int] = {}
    waiting = [(dice.fraction() ** (1 / PATH_WEIGHT), way) for way in path]
    waiting += [(dice.fraction(), way) for way in others]
    for _, way in sorted(waiting, reverse=True):
        start, direction, end = way
        is_turned = dice.happens(0.5)
        fact = (start, OPPOSITE[direction], end) if is_turned else (end, direction, start)
        lines[way] = _tell(teller, fact)
    (start, first, _), (_, second, end) = path
    question = ("How", "do", "you", "go", "from", "the", start, "to", "the", end)
    teller.ask(question, f"{first[0]},{second[0]}", (lines[path[0]], lines[path[1]]))
    return teller


def _tell(teller: Teller, fact: Way) -> int:
    room, side, other = fact
    return teller.tell("The", room, "is", side, "of", "the", other)


def _map(dice: Dice) -> tuple[list[Way], list[Way]]:
    """Draw rooms on a grid, no two at one spot: the ways of the path, and those to other rooms."""
    while True:
        start, middle, end, *extra = dice.shuffled(words.ROOMS)
        first = dice.one_of(DIRECTIONS)
        second = dice.other_than(DIRECTIONS, OPPOSITE[first])
        spots = {start: (0, 0), middle: STEPS[first]}
        spots[end] = _beside(spots[middle], second)
        taken = {(start, first), (middle, OPPOSITE[first]), (middle, second)}
        taken.add((end, OPPOSITE[second]))
        free = [(room, way) for room in spots for way in DIRECTIONS if (room, way) not in taken]
        slots = dice.sample(free, EXTRA_ROOMS)
        others = [(*slot, room) for slot, room in zip(slots, extra, strict=True)]
        for room, way, other in others:
            spots[other] = _beside(spots[room], way)
        if len({*spots.values()}) == len(spots):
            return [(start, first, middle), (middle, second, end)], others


def _beside(spot: tuple[int, int], direction: str) -> tuple[int, int]:
    x, y = STEPS[direction]
    return spot[0] + x, spot[1] + y
