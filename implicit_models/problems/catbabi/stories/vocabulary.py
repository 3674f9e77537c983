"""The words of stories as numbers, in an order that depends on the words alone."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Int32

from implicit_models.problems.catbabi.stories.reading import StoryError
from implicit_models.problems.catbabi.stories.story import Question, Story

PAD, EOS = "<pad>", "<eos>"
SPECIAL = (PAD, EOS)


@dataclass(frozen=True)
class Vocabulary:
    """Words and their numbers: ``<pad>`` is 0, ``<eos>`` 1, then all words in sorted order."""

    words: tuple[str, ...]

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The number of each word."""
        return {word: number for number, word in enumerate(self.words)}

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, story: Story) -> Int32[np.ndarray, " num_words"]:
        """Return the numbers of a story's words.

        Raises
        ------
        StoryError
            Naming file, line and word, if a word is not in the vocabulary.
        """
        numbers = [self.numbers.get(word, -1) for word in story.words()]
        if -1 in numbers:
            raise StoryError(self._unknown(story))
        return np.array(numbers, dtype=np.int32)

    def _unknown(self, story: Story) -> str:
        for number, line in enumerate(story.lines, 1):
            for word in line.tokens():
                if word not in self.numbers:
                    return (
                        f"{story.place(number)}: has the word {word!r}, which none of the "
                        f"{len(self) - len(SPECIAL)} words of the vocabulary is; the vocabulary "
                        "is of all stories that were read for it"
                    )
        raise AssertionError("all words are known")


def vocabulary_of(stories: Iterable[Story]) -> Vocabulary:
    """Return the vocabulary of all words of some stories, whatever their order."""
    words: set[str] = set()
    seen: set[tuple[str, ...]] = set()  # most lines are told again and again
    for story in stories:
        for line in story.lines:
            key = (*line.words, line.answer) if isinstance(line, Question) else line.words
            if key not in seen:
                seen.add(key)
                words.update(line.tokens())
    return Vocabulary((*SPECIAL, *sorted(words)))
