"""Questions about persons who carry things, and the stories that have them: tasks 1 to 3, 5 to 8.

A question is about one of the last events, whatever follows from it and from what was told before.
"""

from collections.abc import Callable

from implicit_models.problems.catbabi.generator import words
from implicit_models.problems.catbabi.generator.carrying import DROP, GET, GIVE, GO, Move, Stage
from implicit_models.problems.catbabi.generator.dice import Dice
from implicit_models.problems.catbabi.generator.telling import Asked, Teller, take_turns

NUM_QUESTIONS = 5
# Gifts are tried almost four times as often as anything else, for they are seldom possible.
WITH_GIFTS = (*(GO, GET, DROP) * 4, *(GIVE,) * 15)

Find = Callable[[Stage], Asked | None]


def where_person(stage: Stage) -> Asked | None:
    """Ask where a person is who has just gone there: task 1."""
    person = stage.dice.one_of(stage.recent(GO)).person
    move = stage.last_move[person]
    return ("Where", "is", person), move.place, (move.line,)


def where_thing(stage: Stage) -> Asked | None:
    """Ask where a thing is that was taken and carried away, or dropped: task 2."""
    found: list[tuple[str, Move]] = []
    for event in stage.recent(GET, DROP):
        move = stage.holds[event.thing].seen
        if move is not None:
            found.append((event.thing, move))
    if not found:
        return None
    thing, move = stage.dice.one_of(found)
    return ("Where", "is", "the", thing), move.place, (stage.holds[thing].changed, move.line)


def where_before(stage: Stage) -> Asked | None:
    """Ask where a thing was before, that was carried through two places: task 3."""
    found = [
        event.thing for event in stage.recent(GET, DROP) if len(stage.holds[event.thing].moves) > 1
    ]
    if not found:
        return None
    thing = stage.dice.one_of(found)
    hold = stage.holds[thing]
    moves = hold.moves
    place = moves[1 + stage.dice.below(len(moves) - 1)].place
    last = max(index for index, move in enumerate(moves) if move.place == place)
    before, there = moves[last - 1], moves[last]
    support = (hold.changed, there.line, before.line)
    return ("Where", "was", "the", thing, "before", "the", place), before.place, support


def who_gave(stage: Stage) -> Asked | None:
    """Ask who gave what to whom, each equally often the one asked for: task 5."""
    recent = stage.recent(GIVE)
    if not recent:
        return None
    gift = stage.gifts[stage.dice.one_of(recent).thing]
    giver, thing, receiver = gift.person, gift.thing, gift.receiver
    is_last_between = stage.gifts_between[giver, receiver] is gift
    form = stage.dice.below(6) if is_last_between else 2 + stage.dice.below(4)
    if form < 2:
        return ("What", "did", giver, "give", "to", receiver), thing, (gift.line,)
    if form == 2:
        return ("Who", "gave", "the", thing, "to", receiver), giver, (gift.line,)
    if form == 3:
        return ("Who", "gave", "the", thing), giver, (gift.line,)
    if form == 4:
        return ("Who", "received", "the", thing), receiver, (gift.line,)
    return ("Who", "did", giver, "give", "the", thing, "to"), receiver, (gift.line,)


def is_person_there(stage: Stage) -> Asked | None:
    """Ask whether a person is in a place, which is true of one half: task 6."""
    recent = stage.recent(GO)
    if not recent:
        return None
    person = stage.dice.one_of(recent).person
    move = stage.last_move[person]
    is_true = stage.dice.happens(0.5)
    place = move.place if is_true else stage.dice.other_than(words.ROOMS, move.place)
    return ("Is", person, "in", "the", place), "yes" if is_true else "no", (move.line,)


def how_many(stage: Stage) -> Asked | None:
    """Ask how many things a person carries: task 7."""
    recent = stage.recent(GET, DROP, GIVE)
    if not recent:
        return None
    person = stage.dice.one_of(recent).person
    number = words.NUMBERS[len(stage.carried(person))]
    return ("How", "many", "objects", "is", person, "carrying"), number, _handling(stage, person)


def which_things(stage: Stage) -> Asked | None:
    """Ask what a person carries: task 8."""
    recent = stage.recent(GET, DROP)
    if not recent:
        return None
    person = stage.dice.one_of(recent).person
    things = ",".join(stage.carried(person)) or "nothing"
    return ("What", "is", person, "carrying"), things, _handling(stage, person)


def _handling(stage: Stage, person: str) -> tuple[int, ...]:
    return tuple(line for lines in stage.handled[person].values() for line in lines)


def tell(stage: Stage, find: Find) -> Teller:
    """Write a story of a stage."""
    take_turns(stage.teller, stage.happen, lambda: find(stage), NUM_QUESTIONS)
    return stage.teller


def single_fact(dice: Dice) -> Teller:
    """Write a story of task 1, a single supporting fact."""
    return tell(Stage(dice, actions=(GO,)), where_person)


def two_facts(dice: Dice) -> Teller:
    """Write a story of task 2, two supporting facts."""
    return tell(Stage(dice), where_thing)


def three_facts(dice: Dice) -> Teller:
    """Write a story of task 3, three supporting facts."""
    return tell(Stage(dice, always_there=False), where_before)


def three_arguments(dice: Dice) -> Teller:
    """Write a story of task 5, relations of three arguments."""
    return tell(Stage(dice, people=words.GIVERS, actions=WITH_GIFTS), who_gave)


def yes_or_no(dice: Dice) -> Teller:
    """Write a story of task 6, questions of yes or no."""
    return tell(Stage(dice), is_person_there)


def counting(dice: Dice) -> Teller:
    """Write a story of task 7, counting."""
    return tell(Stage(dice, actions=WITH_GIFTS), how_many)


def listing(dice: Dice) -> Teller:
    """Write a story of task 8, lists."""
    return tell(Stage(dice), which_things)
