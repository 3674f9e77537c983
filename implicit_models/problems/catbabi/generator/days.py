"""Visits at four times of two days, told out of order: task 14."""

from dataclasses import dataclass

from implicit_models.problems.catbabi.generator import words
from implicit_models.problems.catbabi.generator.dice import Dice
from implicit_models.problems.catbabi.generator.telling import FACTS, RECENT, Asked, Teller

NUM_QUESTIONS = 5
TIMES = (("yesterday",), ("this", "morning"), ("this", "afternoon"), ("this", "evening"))


@dataclass(slots=True)
class Visit:
    """Where a person was at one of the times, and in which line it was told."""

    person: str
    time: int
    place: str
    line: int = 0


class Diary:
    """All visits: each person's in the order of time, and all in the order of their making."""

    def __init__(self, dice: Dice) -> None:
        self.dice = dice
        self.visits: dict[str, list[Visit]] = {person: [] for person in words.TOWNSFOLK}
        self.clauses: list[Visit] = []

    @property
    def is_full(self) -> bool:
        """Whether nobody has a time left."""
        return all(len(visits) == len(TIMES) for visits in self.visits.values())

    def add(self) -> Visit:
        """Add the next visit of somebody."""
        free = [person for person, visits in self.visits.items() if len(visits) < len(TIMES)]
        person = self.dice.one_of(free)
        visits = self.visits[person]
        before = visits[-1].place if visits else None
        visit = Visit(person, len(visits), self.dice.other_than(words.TOWN, before))
        visits.append(visit)
        self.clauses.append(visit)
        return visit

    def followed(self) -> list[Visit]:
        """Return those of the last visits that the person made after another one."""
        return [visit for visit in self.clauses[-RECENT:] if visit.time]

    def ask(self) -> Asked:
        """Ask where somebody was before one of the last visits."""
        visit = self.dice.one_of(self.followed())
        visits = self.visits[visit.person]
        last = max(index for index, each in enumerate(visits) if each.place == visit.place)
        there, before = visits[last], visits[last - 1]
        question = ("Where", "was", visit.person, "before", "the", visit.place)
        return question, before.place, (there.line, before.line)


def time_reasoning(dice: Dice) -> Teller:
    """Write a story of task 14: some visits, out of order, and then a question about them."""
    diary, teller = Diary(dice), Teller()
    for _ in range(NUM_QUESTIONS):
        visits: list[Visit] = []
        while not diary.is_full and (not visits or not diary.followed()):
            visits += [diary.add() for _ in range(FACTS)]
        for visit in dice.cycled(visits):
            visit.line = teller.tell(*_words(dice, visit))
        teller.ask(*diary.ask())
    return teller


def _words(dice: Dice, visit: Visit) -> tuple[str, ...]:
    time = TIMES[visit.time]
    went = (visit.person, *dice.one_of(words.WENT), visit.place)
    if dice.happens(0.5):
        return (*went, *time)
    return (time[0].capitalize(), *time[1:], *went)
