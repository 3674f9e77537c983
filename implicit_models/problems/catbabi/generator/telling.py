"""How a story comes to be: its lines, one after another, and when questions are asked."""

from collections.abc import Callable

from implicit_models.problems.catbabi.stories.story import Line, Question, Sentence

RECENT = 5  # a question is about one of the last clauses, as many as this
FACTS = 2  # are told before a question is asked, or looked for again

Asked = tuple[tuple[str, ...], str, tuple[int, ...]]  # words, answer, ids of supporting facts


class Teller:
    """The lines that were told so far."""

    def __init__(self) -> None:
        self.lines: list[Line] = []

    def tell(self, *words: str) -> int:
        """Add a fact and return its id."""
        self.lines.append(Sentence(words))
        return len(self.lines)

    def ask(self, words: tuple[str, ...], answer: str, support: tuple[int, ...]) -> None:
        """Add a question."""
        self.lines.append(Question(words, answer, support))


def take_turns(
    teller: Teller, happen: Callable[[], None], find: Callable[[], Asked | None], num_questions: int
) -> None:
    """Write two facts and ask a question if there is one to ask, until there were enough."""
    asked = 0
    while asked < num_questions:
        for _ in range(FACTS):
            happen()
        question = find()
        if question is not None:
            teller.ask(*question)
            asked += 1
