"""How right a model's answers are, over streams of stories of any length."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from implicit_models.bars import bar
from implicit_models.equilibrium.phase import Phase
from implicit_models.evaluation import metrics
from implicit_models.evaluation.scoring import IGNORED, score
from implicit_models.evaluation.search import Search, join
from implicit_models.evaluation.statistics import finite, perplexity
from implicit_models.language_models.forward import is_implicit
from implicit_models.language_models.language_model import LanguageModel, num_parameters
from implicit_models.language_models.phases import search_settings
from implicit_models.problems.catbabi.data.streams import Stream
from implicit_models.problems.catbabi.parameters import CatbabiEvaluationParameters

_TASK, _FURTHEST = 1, 3  # columns of the questions
_DISTANCES = ((1, 1), (2, 2), (3, 4), (5, 8), (9, None))


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a model makes of each token of a stream, or of its first stories.

    Attributes
    ----------
    nll
        Of the next token in nats; NaN where it was not asked for.
    is_right
        Whether the next token is the likeliest.
    self_iterations
        Evaluations of the cell that each token took part in; None for an explicit model.
    search
        What the searches cost each row that was read, and how they ended.
    """

    nll: Float[np.ndarray, " T"]
    is_right: Bool[np.ndarray, " T"]
    self_iterations: Int[np.ndarray, " T"] | None
    search: Search | None
    flops: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class AnswersResult:
    """What the evaluation of a model on a stream of stories finds.

    Attributes
    ----------
    words
        The vocabulary.
    """

    kind: str
    num_parameters: int
    stream: Stream
    words: list[str]
    reading: Reading

    @property
    def questions(self) -> Int[np.ndarray, "Q 4"]:
        """Those of the stories that were read."""
        questions = self.stream.questions
        return questions[questions[:, 0] < len(self.reading.nll)]

    @property
    def is_right(self) -> Bool[np.ndarray, " Q"]:
        """Of each question, whether the likeliest word is the answer."""
        return self.reading.is_right[self.questions[:, 0]]

    @property
    def chance(self) -> float:
        """Accuracy of always giving the answer that is most frequent in the task."""
        answers = self.stream.tokens[self.questions[:, 0] + 1]
        tasks = self.questions[:, _TASK]
        most = (np.bincount(answers[tasks == task]).max() for task in np.unique(tasks))
        return float(sum(most) / len(answers))

    def metrics(self) -> dict[str, Any]:
        """Return the content of ``evaluation.json``."""
        search, reading, tasks = self.reading.search, self.reading, self.questions[:, _TASK]
        by_task = {str(task): self.is_right[tasks == task] for task in np.unique(tasks)}
        return {
            "data": "catbabi",
            "kind": self.kind,
            "num_parameters": self.num_parameters,
            "num_questions": len(self.questions),
            "chance": {"accuracy": self.chance},
            "accuracy": metrics.share(self.is_right),
            "accuracy_by_task": {task: metrics.share(right) for task, right in by_task.items()},
            "num_questions_by_task": {task: len(right) for task, right in by_task.items()},
            "accuracy_by_distance": self._by_distance(),
            "perplexity": finite(perplexity(float(reading.nll.sum()), len(reading.nll))),
            "self_iterations": metrics.spread(reading.self_iterations)
            if reading.self_iterations is not None
            else None,
            "self_iterations_by_task": self._iterations_by_task(),
            "self_iterations_by_word": self._iterations_by_word(),
            "evaluations_per_token": metrics.spread(search.evaluations_per_token)
            if search
            else None,
            "relative_residual": metrics.distribution(search.residual) if search else None,
            "share_converged": metrics.share(search.converged) if search else None,
            "flops_per_token": reading.flops / len(reading.nll),
            "seconds": reading.seconds,
        }

    def position_rows(self) -> list[dict[str, Any]]:
        """Return the rows of ``evaluation_by_position.csv``: by the place of "?" in its story.

        Places count from 1, in words; the length is that of the furthest.
        """
        places, starts = self.questions[:, 0], self.stream.starts
        inside = places - starts[np.searchsorted(starts, places, side="right") - 1]
        return [
            {
                "length": int(inside.max()),
                "position": int(position),
                "num_questions": int((inside == position).sum()),
                "accuracy": metrics.share(self.is_right[inside == position]),
            }
            for position in np.unique(inside)
        ]

    def _by_distance(self) -> dict[str, dict[str, float | int]]:
        """Return the accuracy by how many lines the furthest supporting fact is back."""
        furthest, found = self.questions[:, _FURTHEST], {}
        for first, last in _DISTANCES:
            inside = (furthest >= first) & (furthest <= (last or furthest.max(initial=0)))
            if inside.any():
                name = f">{first - 1}" if last is None else f"{first}-{last}"
                found[str(first) if last == first else name] = {
                    "accuracy": metrics.share(self.is_right[inside]),
                    "num_questions": int(inside.sum()),
                }
        return found

    def _iterations_by_task(self) -> dict[str, float] | None:
        """Return the mean over the tokens of each task's stories."""
        iterations = self.reading.self_iterations
        if iterations is None:
            return None
        starts = self.stream.starts
        starts = starts[starts < len(iterations)]
        # A story's task is that of its first question.
        first = np.searchsorted(self.questions[:, 0], starts)
        tasks = self.questions[np.minimum(first, len(self.questions) - 1), _TASK]
        lengths = np.diff(np.append(starts, len(iterations)))
        sums = np.add.reduceat(iterations, starts)
        return {
            str(task): float(sums[tasks == task].sum() / lengths[tasks == task].sum())
            for task in np.unique(tasks)
        }

    def _iterations_by_word(self) -> dict[str, dict[str, float | int]] | None:
        """Return the mean over the tokens that are a word, and how many these are."""
        iterations = self.reading.self_iterations
        if iterations is None:
            return None
        tokens = np.asarray(self.stream.tokens[: len(iterations)])
        counts = np.bincount(tokens, minlength=len(self.words))
        sums = np.bincount(tokens, weights=iterations, minlength=len(self.words))
        return {
            word: {"mean": float(sums[number] / counts[number]), "num_tokens": int(counts[number])}
            for number, word in enumerate(self.words)
            if counts[number]
        }


def evaluate_answers(
    model: LanguageModel,
    stream: Stream,
    words: list[str],
    parameters: CatbabiEvaluationParameters,
    *,
    all_tokens: bool,
) -> AnswersResult:
    """Read a stream of stories with a model, and judge its answers.

    Parameters
    ----------
    all_tokens
        Whether all tokens are scored, and not the answers alone.
    """
    phase = search_settings(parameters, model.config).phase() if is_implicit(model) else None
    return AnswersResult(
        kind="implicit" if is_implicit(model) else "explicit",
        num_parameters=num_parameters(model),
        stream=stream,
        words=words,
        reading=_read(model, stream, phase, parameters, all_tokens),
    )


def read_rows(
    model: LanguageModel,
    stream: Stream,
    rows: list[tuple[int, int]],
    *,
    phase: Phase | None,
    at_once: int,
    piece_length: int | None,
    all_tokens: bool = False,
    description: str = "stories",
) -> Reading:
    """Read some stretches of a stream, each as a text of its own, ``at_once`` side by side.

    What the reading has of tokens outside of them is NaN, false and 0.
    """
    total = max(stop for _, stop in rows)
    tokens = np.asarray(stream.tokens[: total + 1], dtype=np.int64)
    labels = np.full(total, IGNORED)
    wanted = np.arange(total) if all_tokens else stream.questions[:, 0]
    wanted = wanted[wanted < total]
    labels[wanted] = tokens[(wanted + 1) % len(tokens)]
    nll, is_right = np.full(total, np.nan), np.zeros(total, dtype=bool)
    iterations = np.zeros(total, dtype=np.int64) if phase is not None else None
    searches, flops, seconds = [], 0.0, 0.0
    with bar(len(rows), description, "row") as counted:
        for start in range(0, len(rows), at_once):
            some = rows[start : start + at_once]
            lengths = np.array([last - first for first, last in some])
            inside = np.arange(lengths.max()) < lengths[:, None]
            places = np.where(inside, np.array([each[0] for each in some])[:, None], 0)
            places = np.where(inside, places + np.arange(lengths.max()), 0)
            found = score(
                model,
                np.where(inside, tokens[places], 0),
                np.where(inside, labels[places], IGNORED),
                phase=phase,
                lengths=None if inside.all() else lengths,
                piece_length=piece_length,
            )
            nll[places[inside]] = found.nll[inside]
            is_right[places[inside]] = found.is_greedy[inside]
            if iterations is not None and found.self_iterations is not None:
                iterations[places[inside]] = found.self_iterations[inside]
            if found.search is not None:
                searches.append(found.search)
            flops, seconds = flops + found.flops, seconds + found.seconds
            counted.update(len(some))
    return Reading(
        nll=nll,
        is_right=is_right,
        self_iterations=iterations,
        search=join(searches) if searches else None,
        flops=flops,
        seconds=seconds,
    )


def _read(
    model: LanguageModel,
    stream: Stream,
    phase: Phase | None,
    parameters: CatbabiEvaluationParameters,
    all_tokens: bool,
) -> Reading:
    """Read all of a stream, or its first stories."""
    starts, total = stream.starts, len(stream.tokens)
    if parameters.num_stories is not None and parameters.num_stories < len(starts):
        starts, total = starts[: parameters.num_stories], int(starts[parameters.num_stories])
    if parameters.carry == "passed":
        rows = side_by_side(starts, total, parameters.num_streams)
        piece_length = parameters.piece_length
    else:
        length = parameters.piece_length
        rows = [(first, min(first + length, total)) for first in range(0, total, length)]
        piece_length = None
    return read_rows(
        model,
        stream,
        rows,
        phase=phase,
        at_once=parameters.num_streams,
        piece_length=piece_length,
        all_tokens=all_tokens,
    )


def side_by_side(
    starts: Int[np.ndarray, " S"], total: int, num_streams: int
) -> list[tuple[int, int]]:
    """Divide a stream among several of about equal length, each of whole stories.

    Raises
    ------
    ValueError
        Where there are fewer stories than streams.
    """
    if num_streams > len(starts):
        raise ValueError(
            f"evaluation.catbabi.num_streams = {num_streams} is not allowed; allowed is at most "
            f"{len(starts)}, the stories that are read"
        )
    wanted = np.arange(num_streams) * total / num_streams
    chosen = np.searchsorted(starts, wanted)
    for number in range(num_streams):  # each has a story at least
        least, most = (chosen[number - 1] + 1 if number else 0), len(starts) - num_streams + number
        chosen[number] = min(max(chosen[number], least), most)
    firsts = starts[chosen].tolist()
    return list(zip(firsts, [*firsts[1:], total], strict=True))
