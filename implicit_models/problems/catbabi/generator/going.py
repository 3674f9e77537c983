"""Persons who go from place to place, named alone, in pairs or by a pronoun: tasks 11 to 13."""

from implicit_models.problems.catbabi.generator import words
from implicit_models.problems.catbabi.generator.dice import Dice
from implicit_models.problems.catbabi.generator.telling import RECENT, Asked, Teller, take_turns

NUM_QUESTIONS = 5


class Walkers:
    """Where persons are, and the clauses that said so: a person for each, the latest last."""

    def __init__(self, dice: Dice) -> None:
        self.dice = dice
        self.teller = Teller()
        self.places: dict[str, str] = {}
        self.support: dict[str, tuple[int, ...]] = {}
        self.clauses: list[str] = []

    def go(self, people: tuple[str, ...], subject: tuple[str, ...], before: tuple[int, ...]) -> int:
        """Write that persons go where none of them is, called as said.

        Parameters
        ----------
        before
            Ids of lines without which nobody would know who they are.
        """
        where = [self.places.get(person) for person in people]
        place = self.dice.other_than(words.ROOMS, *where)
        line = self.teller.tell(*subject, *self.dice.one_of(words.WENT), place)
        for person in people:
            self.places[person], self.support[person] = place, (*before, line)
        self.clauses += people
        return line

    def where(self) -> Asked:
        """Ask where the person of one of the last clauses is."""
        person = self.dice.one_of(self.clauses[-RECENT:])
        return ("Where", "is", person), self.places[person], self.support[person]


def coreference(dice: Dice) -> Teller:
    """Write a story of task 11, in which every other sentence has a pronoun."""
    return _in_twos(Walkers(dice), 1)


def conjunction(dice: Dice) -> Teller:
    """Write a story of task 12, in which persons go in pairs."""
    walkers = Walkers(dice)

    def happen() -> None:
        pair = tuple(dice.sample(words.PEOPLE, 2))
        walkers.go(pair, (pair[0], "and", pair[1]), ())

    take_turns(walkers.teller, happen, walkers.where, NUM_QUESTIONS)
    return walkers.teller


def compound_coreference(dice: Dice) -> Teller:
    """Write a story of task 13, in which every other sentence says "they" of a pair."""
    return _in_twos(Walkers(dice), 2)


def _in_twos(walkers: Walkers, number: int) -> Teller:
    """Write a story whose facts come in twos, the second about the same persons as the first."""
    dice = walkers.dice
    named: list[tuple[tuple[str, ...], int]] = []

    def happen() -> None:
        if named:
            people, line = named.pop()
            pronoun = words.PRONOUNS[people[0]] if number == 1 else "they"
            walkers.go(people, (*dice.one_of(words.NEXT), pronoun), (line,))
        else:
            people = tuple(dice.sample(words.PEOPLE, number))
            subject = people if number == 1 else (people[0], "and", people[1])
            named.append((people, walkers.go(people, subject, ())))

    take_turns(walkers.teller, happen, walkers.where, NUM_QUESTIONS)
    return walkers.teller
