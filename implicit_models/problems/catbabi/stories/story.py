"""A story of bAbI: its lines, as they are written to files and as the words of CatbAbI.

A file has ``ID text.`` for a sentence and ``ID question? <TAB>answer<TAB>ids`` for a question, the
ids being those of the lines that the answer follows from. As words a story is lower-cased, without
ids; "." and "?" are words, and the answer follows "?" as one word, commas included (``n,w``).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

TASKS = tuple(range(1, 21))


@dataclass(frozen=True, slots=True)
class Sentence:
    """A fact, in words as they are written, without the full stop."""

    words: tuple[str, ...]

    def text(self) -> str:
        """Return the sentence as it stands in a file."""
        return f"{' '.join(self.words)}."

    def tokens(self) -> Iterator[str]:
        """Yield the words of CatbAbI."""
        yield from (word.lower() for word in self.words)
        yield "."


@dataclass(frozen=True, slots=True)
class Question:
    """A question, in words as they are written, without the question mark.

    Attributes
    ----------
    answer
        One word of CatbAbI; several things are joined by commas.
    support
        Ids of the lines that the answer follows from, in the order of the file.
    """

    words: tuple[str, ...]
    answer: str
    support: tuple[int, ...]

    def text(self) -> str:
        """Return the question as it stands in a file, with answer and ids."""
        return f"{' '.join(self.words)}? \t{self.answer}\t{' '.join(map(str, self.support))}"

    def tokens(self) -> Iterator[str]:
        """Yield the words of CatbAbI, the answer last."""
        yield from (word.lower() for word in self.words)
        yield "?"
        yield self.answer.lower()


Line = Sentence | Question


@dataclass(frozen=True, slots=True)
class Distances:
    """How far the supporting facts of a question are: in lines, between the two lines' ids."""

    nearest_lines: int
    furthest_lines: int


@dataclass(frozen=True, slots=True)
class Story:
    """A story with all its questions; the line at index i has the id i + 1.

    Attributes
    ----------
    task
        From 1 to 20.
    file, first_line
        Where it was read, for messages; empty and 0 if it was not. Two stories are equal wherever
        they were read.
    """

    task: int
    lines: tuple[Line, ...]
    file: str = field(default="", compare=False)
    first_line: int = field(default=0, compare=False)

    def questions(self) -> list[tuple[int, Question]]:
        """Return the questions, each with the id of its line."""
        numbered = enumerate(self.lines, 1)
        return [(number, line) for number, line in numbered if isinstance(line, Question)]

    def words(self) -> list[str]:
        """Return the words of CatbAbI, of all lines in a row."""
        return [token for line in self.lines for token in line.tokens()]

    def text(self) -> str:
        """Return the story as it stands in a file, with a line end after each line."""
        return "".join(f"{number} {line.text()}\n" for number, line in enumerate(self.lines, 1))

    def distances(self) -> list[Distances]:
        """Return how far the supporting facts of each question are."""
        return [
            Distances(number - max(question.support), number - min(question.support))
            for number, question in self.questions()
        ]

    def place(self, number: int) -> str:
        """Return where the line of an id was read, or which story it is of, for a message."""
        if self.file:
            return f"{self.file}:{self.first_line + number - 1}"
        return f"line {number} of a story of task {self.task}"


def render(stories: Iterable[Story]) -> str:
    """Return the content of a file with these stories."""
    return "".join(story.text() for story in stories)
