"""Persons who go about, and take, drop and give things: tasks 1 to 3 and 5 to 8.

Where persons and things are at first is not told; a thing can only be taken, and given, where it
is. A random person tries a random action until one is possible. Of several things the first is
given, to the first of several persons, in the order of `words`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from implicit_models.problems.catbabi.generator import words
from implicit_models.problems.catbabi.generator.dice import Dice
from implicit_models.problems.catbabi.generator.telling import RECENT, Teller

THERE = 0.2  # is how often a fact says "there" where it may as well not

GO, GET, DROP, GIVE = "go", "get", "drop", "give"


@dataclass(slots=True)
class Move:
    """A person's move, by the id of its line and where to."""

    line: int
    place: str


@dataclass(slots=True)
class Hold:
    """Who has a thing, or had it last.

    Attributes
    ----------
    changed
        The line in which it was last taken or dropped.
    moves
        Of the person, while the thing was held.
    seen
        The move that says where the thing is: the last of these, or for a thing that was dropped
        the person's last one; None if that is not told.
    """

    person: str
    changed: int
    moves: list[Move] = field(default_factory=list)
    seen: Move | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """A fact: who did what, with which thing, to whom; "" where there is none."""

    kind: str
    line: int
    person: str
    thing: str = ""
    receiver: str = ""


class Stage:
    """A small world: where persons and things are, and what has been told of them."""

    def __init__(
        self,
        dice: Dice,
        *,
        people: Sequence[str] = words.PEOPLE,
        actions: Sequence[str] = (GO, GET, DROP),
        always_there: bool = True,
    ) -> None:
        self.dice, self.people, self.actions = dice, people, actions
        self.always_there = always_there
        self.teller = Teller()
        self.events: list[Event] = []
        self.places = {person: dice.one_of(words.ROOMS) for person in people}
        self.lying = {thing: dice.one_of(words.ROOMS) for thing in words.THINGS}
        self.holder: dict[str, str] = {}
        self.last_move: dict[str, Move] = {}
        self.holds: dict[str, Hold] = {}
        self.gifts: dict[str, Event] = {}  # the last of each thing
        self.gifts_between: dict[tuple[str, str], Event] = {}
        self.handled: dict[str, dict[str, list[int]]] = {person: {} for person in people}

    def happen(self) -> None:
        """Make one thing happen, and write it."""
        while not self._try(self.dice.one_of(self.people), self.dice.one_of(self.actions)):
            pass

    def recent(self, *kinds: str) -> list[Event]:
        """Return those of the last events that are of some kinds."""
        return [event for event in self.events[-RECENT:] if event.kind in kinds]

    def carried(self, person: str) -> list[str]:
        """Return what a person carries, in the order in which it was first taken."""
        return [thing for thing in self.handled[person] if self.holder.get(thing) == person]

    def _try(self, person: str, action: str) -> bool:
        if action == GO:
            return self._go(person)
        if action == GET:
            place = self.places[person]
            things = [thing for thing, where in self.lying.items() if where == place]
            return bool(things) and self._get(person, self.dice.one_of(things))
        things = [thing for thing in words.THINGS if self.holder.get(thing) == person]
        if not things:
            return False
        if action == DROP:
            return self._drop(person, self.dice.one_of(things))
        place = self.places[person]
        others = [other for other in self.people if self.places[other] == place and other != person]
        return bool(others) and self._give(person, things[0], others[0])

    def _go(self, person: str) -> bool:
        place = self.dice.one_of(words.ROOMS)
        if place == self.places[person]:
            return False
        line = self.teller.tell(person, *self.dice.one_of(words.WENT), place)
        move = Move(line, place)
        self.places[person], self.last_move[person] = place, move
        for thing, holder in self.holder.items():
            if holder == person:
                self.holds[thing].moves.append(move)
                self.holds[thing].seen = move
        self.events.append(Event(GO, line, person))
        return True

    def _get(self, person: str, thing: str) -> bool:
        there = ("there",) if self.always_there or self.dice.happens(THERE) else ()
        line = self.teller.tell(person, *self.dice.one_of(words.GOT), thing, *there)
        del self.lying[thing]
        self.holder[thing] = person
        self.holds[thing] = Hold(person, line)
        self._handle(Event(GET, line, person, thing))
        return True

    def _drop(self, person: str, thing: str) -> bool:
        there = ("there",) if self.dice.happens(THERE) else ()
        line = self.teller.tell(person, *self.dice.one_of(words.DROPPED), thing, *there)
        del self.holder[thing]
        self.lying[thing] = self.places[person]
        self.holds[thing].changed = line
        self.holds[thing].seen = self.last_move.get(person)
        self._handle(Event(DROP, line, person, thing))
        return True

    def _give(self, person: str, thing: str, receiver: str) -> bool:
        verb = self.dice.one_of(words.GAVE)
        line = self.teller.tell(person, verb, "the", thing, "to", receiver)
        self.holder[thing] = receiver
        self.holds[thing] = Hold(receiver, line)
        event = Event(GIVE, line, person, thing, receiver)
        self.gifts[thing] = self.gifts_between[person, receiver] = event
        self._handle(event)
        return True

    def _handle(self, event: Event) -> None:
        self.events.append(event)
        self.handled[event.person].setdefault(event.thing, []).append(event.line)
        if event.receiver:
            self.handled[event.receiver].setdefault(event.thing, []).append(event.line)
