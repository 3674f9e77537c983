"""Compare the stories of our own of bAbI's tasks with the real ones, as a table in Markdown.

python scripts/catbabi_statistics.py --real ../shared/data/babi/en-valid-10k

Without --real the table is of our own stories alone. The last column is the accuracy of logistic
regression on the words of the story so far and those of the question, each counted: what can be
known without reading. Where ours were easier, something would give the answers away.
"""

import argparse
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from implicit_models.problems.catbabi.generator.families import FAMILIES, generate, share_of_copies
from implicit_models.problems.catbabi.stories.reading import StoryError, read_folder
from implicit_models.problems.catbabi.stories.story import Question, Story
from implicit_models.problems.catbabi.tasks import numbered

TRAINING_STORIES = 1000
TEST_STORIES = 500

_STEPS, _RATE, _MOMENTUM, _DECAY = 300, 0.3, 0.9, 1e-3
_COLUMNS = (
    "lines, mean (range)",
    "questions",
    "words",
    "furthest fact, lines",
    "vocabulary",
    "entropy of answers, bits",
    "most frequent answer",
    "test copies",
    "bag of words",
)


@dataclass(frozen=True)
class Stories:
    """Stories of a task for training and for testing."""

    training: list[Story]
    test: list[Story]


@dataclass(frozen=True)
class Statistics:
    """What is told of the stories of a task."""

    lines: list[int]
    questions: float
    words: float
    furthest: float
    vocabulary: frozenset[str]
    answers: Counter[str]
    copies: float
    bag_of_words: float


def generated(task: int, num_training: int, num_test: int) -> Stories:
    """Return stories of our own."""
    return Stories(generate(task, num_training, 0), generate(task, num_test, 0, "test"))


def real(folder: Path, task: int, num_training: int, num_test: int) -> Stories:
    """Return real stories: of the training file, and for testing of the others, then of the rest.

    Where there is no training file, the stories of the validation file are taken for it.

    Raises
    ------
    StoryError
        If a file is missing or has no stories.
    """
    test = read_folder(folder, "test", {task})[task]
    valid = read_folder(folder, "valid", {task})[task]
    try:
        training = read_folder(folder, "train", {task})[task]
    except StoryError:
        training, valid = valid, []
    others = [*test, *valid, *training[num_training:]]
    return Stories(training[:num_training], others[:num_test])


def measure(stories: Stories) -> Statistics:
    """Return the statistics of a task's stories."""
    training = stories.training
    distances = [distance for story in training for distance in story.distances()]
    return Statistics(
        lines=[len(story.lines) for story in training],
        questions=float(np.mean([len(story.questions()) for story in training])),
        words=float(np.mean([len(story.words()) for story in training])),
        furthest=float(np.mean([distance.furthest_lines for distance in distances])),
        vocabulary=frozenset(word for story in training for word in story.words()),
        answers=Counter(question.answer for story in training for _, question in story.questions()),
        copies=share_of_copies(stories.test, training),
        bag_of_words=bag_of_words_accuracy(stories),
    )


def entropy(counts: Counter[str]) -> float:
    """Return the entropy of what was counted, in bits."""
    shares = np.array([*counts.values()]) / counts.total()
    return float(-(shares * np.log2(shares)).sum())


def bag_of_words_accuracy(stories: Stories) -> float:
    """Return how many test questions logistic regression answers that sees no order of words."""
    words: dict[str, int] = {}
    for story in stories.training:
        for word in story.words():
            words.setdefault(word, len(words))
    inputs, answers = _bags(stories.training, words)
    test_inputs, test_answers = _bags(stories.test, words)
    mean, scale = inputs.mean(0), inputs.std(0) + 1e-6
    known = sorted({*answers})
    labels = np.array([known.index(answer) for answer in answers])
    predict = _fit((inputs - mean) / scale, labels, len(known))
    predicted = predict((test_inputs - mean) / scale)
    hits = (known[label] == answer for label, answer in zip(predicted, test_answers, strict=True))
    return sum(hits) / len(test_answers)


def _bags(stories: Sequence[Story], words: dict[str, int]) -> tuple[np.ndarray, list[str]]:
    """Count the words of the story before each question, and those of the question."""
    rows, answers = [], []
    for story in stories:
        before = np.zeros(len(words))
        for line in story.lines:
            own = np.zeros(len(words))
            for word in line.words:
                if word.lower() in words:
                    own[words[word.lower()]] += 1
            if isinstance(line, Question):
                rows.append(np.concatenate([before, own]))
                answers.append(line.answer.lower())
            else:
                before = before + own
    return np.array(rows), answers


def _fit(inputs: np.ndarray, labels: np.ndarray, num_labels: int) -> Callable[..., np.ndarray]:
    """Fit a softmax by gradient descent with momentum, and return what it predicts."""
    inputs = np.hstack([inputs, np.ones((len(inputs), 1))])
    weights = np.zeros((inputs.shape[1], num_labels))
    speed = np.zeros_like(weights)
    wanted = np.eye(num_labels)[labels]
    for _ in range(_STEPS):
        scores = inputs @ weights
        scores = np.exp(scores - scores.max(1, keepdims=True))
        gradient = inputs.T @ (scores / scores.sum(1, keepdims=True) - wanted) / len(inputs)
        speed = _MOMENTUM * speed - _RATE * 0.1 * (gradient + _DECAY * weights)
        weights += speed

    def predict(others: np.ndarray) -> np.ndarray:
        return np.argmax(np.hstack([others, np.ones((len(others), 1))]) @ weights, axis=1)

    return predict


def cells(own: Statistics, other: Statistics | None) -> list[str]:
    """Return the cells of a row: ours, and after a stroke the real ones."""

    def pair(show: Callable[[Statistics], str]) -> str:
        return " / ".join(show(each) for each in (own, other) if each is not None)

    def vocabulary(each: Statistics) -> str:
        return str(len(each.vocabulary))

    shared = "" if other is None else f" ({len(own.vocabulary & other.vocabulary)} shared)"
    return [
        pair(lambda s: f"{np.mean(s.lines):.1f} ({min(s.lines)} to {max(s.lines)})"),
        pair(lambda s: f"{s.questions:.2f}"),
        pair(lambda s: f"{s.words:.0f}"),
        pair(lambda s: f"{s.furthest:.1f}"),
        pair(vocabulary) + shared,
        pair(lambda s: f"{entropy(s.answers):.2f}"),
        pair(lambda s: f"{s.answers.most_common(1)[0][1] / s.answers.total():.1%}"),
        pair(lambda s: f"{s.copies:.1%}"),
        pair(lambda s: f"{s.bag_of_words:.1%}"),
    ]


def table(folder: Path | None, tasks: Sequence[int], num_training: int, num_test: int) -> str:
    """Return the table, of our stories and, where a folder is given, of as many real ones."""
    lines = [
        f"| task | {' | '.join(_COLUMNS)} |",
        f"|---|{'--:|' * len(_COLUMNS)}",
    ]
    for task in tasks:
        theirs = None if folder is None else real(folder, task, num_training, num_test)
        num = (num_training, num_test)
        if theirs is not None:
            num = (len(theirs.training), len(theirs.test))
        own = measure(generated(task, *num))
        row = cells(own, None if theirs is None else measure(theirs))
        lines.append(f"| {numbered(task)} | {' | '.join(row)} |")
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--real", type=Path, help="a folder of real files, such as en-valid-10k")
    parser.add_argument("--tasks", type=int, nargs="+", default=[*FAMILIES], help="by their number")
    parser.add_argument("--training", type=int, default=TRAINING_STORIES, help="stories of a task")
    parser.add_argument("--test", type=int, default=TEST_STORIES, help="stories of a task")
    given = parser.parse_args()
    try:
        print(table(given.real, given.tasks, given.training, given.test))
    except (StoryError, ValueError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
