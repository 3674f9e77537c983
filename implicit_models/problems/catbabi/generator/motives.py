"""Persons who go where they get what they wish for: task 20."""

from implicit_models.problems.catbabi.generator import words
from implicit_models.problems.catbabi.generator.dice import Dice
from implicit_models.problems.catbabi.generator.telling import Teller

SEEKERS: tuple[str, ...] = ("Antoine", "Jason", "Sumit", "Yann")
WISHES = {
    "bored": ("garden", "football"),
    "hungry": ("kitchen", "apple"),
    "thirsty": ("kitchen", "milk"),
    "tired": ("bedroom", "pajamas"),
}


def motivations(dice: Dice) -> Teller:
    """Write a story of task 20: each person has a mood, goes to a place and gets a thing.

    There is one of each thing, so of those in the same mood only the first one there gets it. A
    question follows on every fact.
    """
    teller = Teller()
    moods = {person: dice.one_of(tuple(WISHES)) for person in SEEKERS}
    lines: dict[str, int] = {}
    steps = dict.fromkeys(SEEKERS, 0)
    taken: set[str] = set()
    while True:
        able = [p for p in SEEKERS if steps[p] < 2 or (steps[p] == 2 and moods[p] not in taken)]
        if not able:
            return teller
        person = dice.one_of(able)
        name, mood = person.lower(), moods[person]
        place, thing = WISHES[mood]
        if steps[person] == 0:
            lines[person] = teller.tell(person, "is", mood)
            teller.ask(("Where", "will", name, "go"), place, (lines[person],))
        elif steps[person] == 1:
            teller.tell(person, *dice.one_of(words.WENT), place)
            teller.ask(("Why", "did", name, "go", "to", "the", place), mood, (lines[person],))
        else:
            taken.add(mood)
            teller.tell(person, *dice.one_of(words.GOT), thing, "there")
            teller.ask(("Why", "did", name, "get", "the", thing), mood, (lines[person],))
        steps[person] += 1
