"""A reader that answers bAbI's questions from the words of a story alone.

It shares no code with the generator and is told no task: the form of a question chooses who
answers it. Persons, things and places are whatever stands where a form has a place for them.
"""

import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

GO = r"(?:went back|went|moved|journeyed|travelled) to the (?P<place>\w+)"
GET = r"(?:got|took|grabbed|picked up) the (?P<thing>\w+)"
DROP = r"(?:left|dropped|discarded|put down) the (?P<thing>\w+)"
HAND = r"(?:gave|passed|handed) the (?P<thing>\w+) to (?P<to>\w+)"
NUMBERS = ("none", "one", "two", "three")
TIMES = ("yesterday", "this morning", "this afternoon", "this evening")
STEPS = {"north": (0, 1), "south": (0, -1), "east": (1, 0), "west": (-1, 0)}
SIDES = {"above": (0, 1), "below": (0, -1), "to the right of": (1, 0), "to the left of": (-1, 0)}
WISHED = {
    "hungry": ("kitchen", "apple"),
    "thirsty": ("kitchen", "milk"),
    "tired": ("bedroom", "pajamas"),
    "bored": ("garden", "football"),
}


def answer(words: Sequence[str]) -> str:
    """Return the answer to the question that the words of a story end with."""
    *facts, question = _sentences(words)
    for form, solve in FORMS:
        if match := re.fullmatch(form, question):
            return solve(facts, **match.groupdict())
    raise AssertionError(f"no form of question: {question}")


def score(words: Sequence[str]) -> list[bool]:
    """Return which questions of a story are answered as the word after their "?" has it."""
    ends = [index for index, word in enumerate(words) if word == "?"]
    return [answer(words[: end + 1]) == words[end + 1] for end in ends]


def _sentences(words: Sequence[str]) -> list[str]:
    """Split words into facts and, as the last one, the question; others go with their answers."""
    facts, sentence, is_answer = [], [], False
    for word in words[:-1]:
        if is_answer:
            is_answer = False
        elif word == "?":
            sentence, is_answer = [], True
        elif word == ".":
            facts.append(" ".join(sentence))
            sentence = []
        else:
            sentence.append(word)
    assert words[-1] == "?"
    return [*facts, " ".join(sentence)]


def _matches(form: str, facts: Sequence[str]) -> Iterator[re.Match[str]]:
    compiled = re.compile(form)
    for fact in facts:
        if match := compiled.fullmatch(fact):
            yield match


# Persons who go about, with things in their hands: tasks 1 to 3, 5 to 8 and 11 to 13.


@dataclass
class _Hands:
    """Where persons are and what they hold; where things have been, one place after another."""

    places: dict[str, str | None]
    held: dict[str, list[str]]
    taken: dict[str, list[str]]  # in the order of the first time
    passed: dict[str, list[str]]
    given: list[tuple[str, str, str]]

    def go(self, who: str, place: str | None) -> None:
        self.places[who] = place
        for thing in self.held.setdefault(who, []):
            self.see(thing, place)

    def see(self, thing: str, place: str | None) -> None:
        passed = self.passed.setdefault(thing, [])
        if place is not None and passed[-1:] != [place]:
            passed.append(place)

    def get(self, who: str, thing: str) -> None:
        self.held.setdefault(who, []).append(thing)
        if thing not in self.taken.setdefault(who, []):
            self.taken[who].append(thing)
        self.see(thing, self.places.get(who))

    def drop(self, who: str, thing: str) -> None:
        if thing in self.held.setdefault(who, []):
            self.held[who].remove(thing)


def _follow(facts: Sequence[str]) -> _Hands:
    hands, last = _Hands({}, {}, {}, {}, []), []
    for fact in facts:
        if match := re.fullmatch(rf"(\w+) and (\w+) {GO}", fact):
            last = [match[1], match[2]]
        elif match := re.fullmatch(
            rf"(?:(?:after|following) that|afterwards|then) (?:he|she|they) {GO}", fact
        ):
            pass
        elif match := re.fullmatch(rf"(\w+) {GO}", fact):
            last = [match[1]]
        if match:
            for who in last:
                hands.go(who, match["place"])
        elif match := re.fullmatch(rf"(\w+) {GET}(?: there)?", fact):
            hands.get(match[1], match["thing"])
        elif match := re.fullmatch(rf"(\w+) {DROP}(?: there)?", fact):
            hands.drop(match[1], match["thing"])
        elif match := re.fullmatch(rf"(\w+) {HAND}", fact):
            hands.drop(match[1], match["thing"])
            hands.get(match["to"], match["thing"])
            hands.given.append((match[1], match["thing"], match["to"]))
    return hands


def _where(facts: Sequence[str], what: str) -> str:
    hands = _follow(facts)
    return str(hands.places[what]) if what in hands.places else hands.passed[what][-1]


def _where_before(facts: Sequence[str], what: str, place: str) -> str:
    hands = _follow(facts)
    if what not in hands.passed:
        return _when_before(facts, what, place)
    passed = hands.passed[what]
    last = max(index for index, each in enumerate(passed) if each == place)
    return passed[last - 1]


def _gift(facts: Sequence[str], **wanted: str) -> tuple[str, str, str]:
    names = ("who", "thing", "to")
    for gift in reversed(_follow(facts).given):
        if all(gift[names.index(name)] == value for name, value in wanted.items()):
            return gift
    raise AssertionError(f"nothing was given: {wanted}")


def _count(facts: Sequence[str], who: str) -> str:
    return NUMBERS[len(_follow(facts).held.get(who, []))]


def _carrying(facts: Sequence[str], who: str) -> str:
    hands = _follow(facts)
    held = hands.held.get(who, [])
    return ",".join(thing for thing in hands.taken.get(who, []) if thing in held) or "nothing"


# What is known of a place: tasks 6, 9 and 10.


def _is_in(facts: Sequence[str], who: str, place: str) -> str:
    forms = rf"{who} (?:{GO}|is in the (?P<there>\w+)|is (?:not|no longer) in the (?P<gone>\w+)|"
    forms += r"is either in the (?P<one>\w+) or the (?P<other>\w+))"
    *_, last = _matches(forms, facts)
    if last["one"]:
        return "maybe" if place in (last["one"], last["other"]) else "no"
    if last["gone"]:
        return "no" if place == last["gone"] else "maybe"
    return "yes" if place == (last["place"] or last["there"]) else "no"


# Times of a day: task 14.


def _when_before(facts: Sequence[str], who: str, place: str) -> str:
    times = "|".join(TIMES)
    visits = []
    for match in _matches(rf"(?:(?P<first>{times}) )?{who} {GO}(?: (?P<last>{times}))?", facts):
        visits.append((TIMES.index(match["first"] or match["last"]), match["place"]))
    visits.sort()
    last = max(index for index, each in enumerate(visits) if each[1] == place)
    return visits[last - 1][1]


# Places side by side: tasks 4, 17 and 19.


def _beside(facts: Sequence[str], place: str, side: str, turned: bool = False) -> str:
    form = r"the (?P<one>\w+) is (?P<side>\w+) of the (?P<other>\w+)"
    x, y = STEPS[side]
    sought = (-x, -y) if turned else (x, y)
    for match in _matches(form, facts):
        x, y = STEPS[match["side"]]
        if match["other"] == place and (x, y) == sought:
            return match["one"]
        if match["one"] == place and (-x, -y) == sought:
            return match["other"]
    raise AssertionError(f"nothing is {side} of {place}")


def _path(facts: Sequence[str], start: str, end: str) -> str:
    ways: dict[str, list[tuple[str, str]]] = {}
    opposite = {"north": "south", "south": "north", "east": "west", "west": "east"}
    for match in _matches(r"the (\w+) is (\w+) of the (\w+)", facts):
        ways.setdefault(match[3], []).append((match[2], match[1]))
        ways.setdefault(match[1], []).append((opposite[match[2]], match[3]))
    waiting, seen = deque([(start, ())]), {start}
    while waiting:
        place, path = waiting.popleft()
        if place == end:
            return ",".join(path)
        for way, other in ways.get(place, []):
            if other not in seen:
                seen.add(other)
                waiting.append((other, (*path, way[0])))
    raise AssertionError(f"no way from {start} to {end}")


def _relation(facts: Sequence[str], one: str, side: str, other: str) -> str:
    """Lay shapes on a grid, a step for each fact; then compare in the direction asked about."""
    found = {other: (0, 0)}
    form = rf"the (?P<one>.+) is (?P<side>{'|'.join(SIDES)}) the (?P<other>.+)"
    known = list(_matches(form, facts))
    for _ in known:
        for match in known:
            (x, y), first, second = SIDES[match["side"]], match["one"], match["other"]
            if second in found:
                found[first] = (found[second][0] + x, found[second][1] + y)
            elif first in found:
                found[second] = (found[first][0] - x, found[first][1] - y)
    (x, y), (own_x, own_y) = SIDES[side], found[one]
    return "yes" if x * own_x + y * own_y > 0 else "no"


# What follows from what: tasks 15, 16, 18 and 20.

ONE_OF = {"mice": "mouse", "cats": "cat", "wolves": "wolf", "sheep": "sheep"}


def _afraid_of(facts: Sequence[str], who: str) -> str:
    (kind,) = (match[1] for match in _matches(rf"{who} is a (\w+)", facts))
    (feared,) = {
        match[2]
        for match in _matches(r"(\w+) are afraid of (\w+)", facts)
        if ONE_OF[match[1]] == kind
    }
    return ONE_OF[feared]


def _color(facts: Sequence[str], who: str) -> str:
    """Return the color of the one of the same kind whose kind was told last."""
    kinds = {match[1]: match[2] for match in _matches(r"(\w+) is a (\w+)", facts)}
    (*_, model) = (other for other in kinds if other != who and kinds[other] == kinds[who])
    (color,) = (match[1] for match in _matches(rf"{model} is (\w+)", facts))
    return color


def _is_bigger(facts: Sequence[str], big: str, small: str) -> str:
    above: dict[str, set[str]] = {}
    for match in _matches(r"the (.+) is bigger than the (.+)", facts):
        above.setdefault(match[2], set()).add(match[1])
    for match in _matches(r"the (.+) fits inside the (.+)", facts):
        above.setdefault(match[1], set()).add(match[2])
    waiting, seen = [small], set()
    while waiting:
        for other in above.get(waiting.pop(), set()) - seen:
            seen.add(other)
            waiting.append(other)
    return "yes" if big in seen else "no"


def _mood(facts: Sequence[str], who: str) -> str:
    *_, last = _matches(rf"{who} is (\w+)", facts)
    return last[1]


def _will_go(facts: Sequence[str], who: str) -> str:
    return WISHED[_mood(facts, who)][0]


def _why(facts: Sequence[str], who: str, what: str) -> str:
    mood = _mood(facts, who)
    assert what in WISHED[mood]
    return mood


FORMS: tuple[tuple[str, Callable[..., str]], ...] = (
    (r"where is (?:the )?(?P<what>\w+)", _where),
    (r"where was (?:the )?(?P<what>\w+) before the (?P<place>\w+)", _where_before),
    (r"what is (?P<side>\w+) of the (?P<place>\w+)", _beside),
    (
        r"what is the (?P<place>\w+) (?P<side>\w+) of",
        lambda facts, **asked: _beside(facts, **asked, turned=True),
    ),
    (r"what did (?P<who>\w+) give to (?P<to>\w+)", lambda *a, **asked: _gift(*a, **asked)[1]),
    (r"who gave the (?P<thing>\w+) to (?P<to>\w+)", lambda *a, **asked: _gift(*a, **asked)[0]),
    (r"who gave the (?P<thing>\w+)", lambda *a, **asked: _gift(*a, **asked)[0]),
    (r"who received the (?P<thing>\w+)", lambda *a, **asked: _gift(*a, **asked)[2]),
    (r"who did (?P<who>\w+) give the (?P<thing>\w+) to", lambda *a, **asked: _gift(*a, **asked)[2]),
    (r"is (?P<who>\w+) in the (?P<place>\w+)", _is_in),
    (r"how many objects is (?P<who>\w+) carrying", _count),
    (r"what is (?P<who>\w+) carrying", _carrying),
    (r"what is (?P<who>\w+) afraid of", _afraid_of),
    (r"what color is (?P<who>\w+)", _color),
    (rf"is the (?P<one>.+) (?P<side>{'|'.join(SIDES)}) the (?P<other>.+)", _relation),
    (r"is the (?P<big>.+) bigger than the (?P<small>.+)", _is_bigger),
    (r"does the (?P<small>.+) fit in the (?P<big>.+)", _is_bigger),
    (r"how do you go from the (?P<start>\w+) to the (?P<end>\w+)", _path),
    (r"where will (?P<who>\w+) go", _will_go),
    (r"why did (?P<who>\w+) (?:go to|get) the (?P<what>\w+)", _why),
)
