"""What is known of where persons are, though not always all of it: tasks 9 and 10.

Persons go from place to place. Of a move is told where to, or only where from (task 9), or where
to and one more place (task 10).
"""

from dataclasses import dataclass

from implicit_models.problems.catbabi.generator import words
from implicit_models.problems.catbabi.generator.dice import Dice
from implicit_models.problems.catbabi.generator.telling import RECENT, Asked, Teller, take_turns

NUM_QUESTIONS = 5


@dataclass(frozen=True, slots=True)
class Known:
    """What the last fact about a person says.

    Attributes
    ----------
    place
        Where the person is; for a fact that only says no, where not.
    others
        Places that are not ruled out by it.
    """

    line: int
    place: str
    is_left: bool = False
    others: tuple[str, ...] = ()


class Rumours:
    """Where persons are, and what was told of it."""

    def __init__(self, dice: Dice, people: tuple[str, ...], rooms: tuple[str, ...]) -> None:
        self.dice, self.people, self.rooms = dice, people, rooms
        self.teller = Teller()
        self.places = {person: dice.one_of(rooms) for person in people}
        self.known: dict[str, Known] = {}
        self.clauses: list[str] = []

    def move(self) -> tuple[str, str, str]:
        """Move a person, and return who it was, where from and where to."""
        person = self.dice.one_of(self.people)
        start = self.places[person]
        end = self.places[person] = self.dice.other_than(self.rooms, start)
        self.clauses.append(person)
        return person, start, end

    def tell_plainly(self, person: str, place: str) -> Known:
        """Write where a person is now: as a move, and half as often as a state."""
        if self.dice.happens(2 / 3):
            line = self.teller.tell(person, *self.dice.one_of(words.WENT), place)
        else:
            line = self.teller.tell(person, "is", "in", "the", place)
        return Known(line, place)

    def ask(self) -> Asked:
        """Ask whether the person of one of the last clauses is where one half of them is."""
        person = self.dice.one_of(self.clauses[-RECENT:])
        known = self.known[person]
        if known.is_left:
            return ("Is", person, "in", "the", known.place), "no", (known.line,)
        place = known.place
        if self.dice.happens(0.5):
            place = self.dice.other_than(self.rooms, place)
        possible = (known.place, *known.others)
        answer = "no" if place not in possible else "maybe" if known.others else "yes"
        return ("Is", person, "in", "the", place), answer, (known.line,)


def negation(dice: Dice) -> Teller:
    """Write a story of task 9, in which one fact of four says where somebody is not."""
    rumours = Rumours(dice, words.PEOPLE, words.ROOMS)

    def happen() -> None:
        person, start, end = rumours.move()
        if dice.happens(0.25):
            denial = dice.one_of((("is", "not"), ("is", "no", "longer")))
            line = rumours.teller.tell(person, *denial, "in", "the", start)
            rumours.known[person] = Known(line, start, is_left=True)
        else:
            rumours.known[person] = rumours.tell_plainly(person, end)

    take_turns(rumours.teller, happen, rumours.ask, NUM_QUESTIONS)
    return rumours.teller


def indefinite_knowledge(dice: Dice) -> Teller:
    """Write a story of task 10, in which one fact of four says that somebody may be elsewhere."""
    rumours = Rumours(dice, words.TOWNSFOLK, words.TOWN)

    def happen() -> None:
        person, _, end = rumours.move()
        if dice.happens(0.25):
            other = dice.one_of(words.TOWN)  # may be the same
            first, second = dice.shuffled((end, other))
            line = rumours.teller.tell(
                person, "is", "either", "in", "the", first, "or", "the", second
            )
            rumours.known[person] = Known(line, end, others=(other,))
        else:
            rumours.known[person] = rumours.tell_plainly(person, end)

    take_turns(rumours.teller, happen, rumours.ask, NUM_QUESTIONS)
    return rumours.teller
