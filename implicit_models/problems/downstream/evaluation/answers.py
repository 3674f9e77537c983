"""Answers to continuations, what they cost, and those that an interrupted evaluation has kept."""

import dataclasses
import hashlib
import logging
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from implicit_models.evaluation.score_store import ScoreStore
from implicit_models.evaluation.search import Search

logger = logging.getLogger(__name__)

_PART = "answers"  # in the store of an evaluation


@dataclass(frozen=True)
class Continuation:
    """Tokens whose probability is asked for, and those before them."""

    context: tuple[int, ...]
    tokens: tuple[int, ...]

    @property
    def num_tokens(self) -> int:
        """Number of all of them."""
        return len(self.context) + len(self.tokens)

    @property
    def key(self) -> bytes:
        """Name it: a digest of its tokens and of where they begin."""
        numbers = array("q", (len(self.context), *self.context, *self.tokens))
        return hashlib.sha256(numbers.tobytes()).digest()


@dataclass(frozen=True)
class Answer:
    """Its log-likelihood in nats, and whether each token was the most likely one."""

    log_likelihood: float
    is_greedy: bool


@dataclass
class ReadingCost:
    """What was read; grows while continuations are answered.

    Attributes
    ----------
    num_texts
        Continuations answered.
    num_tokens
        Tokens read, a shared beginning once.
    num_scored
        Tokens of continuations, whose logits were computed.
    token_evaluations
        Evaluations of the cell on the tokens read, those that give the output included; 0 for a
        model that seeks no fixed point.
    num_searches, num_converged
        Searches, and those that reached the tolerance.
    flops
        Of all that was computed.
    seconds
        Wall time of the reading.
    """

    num_texts: int = 0
    num_tokens: int = 0
    num_scored: int = 0
    token_evaluations: int = 0
    num_searches: int = 0
    num_converged: int = 0
    flops: float = 0.0
    seconds: float = 0.0

    def add(self, num_tokens: int, search: Search | None, flops: float, seconds: float) -> None:
        """Count a reading."""
        self.num_tokens += num_tokens
        self.flops += flops
        self.seconds += seconds
        if search is not None:
            self.token_evaluations += int(search.token_evaluations.sum())
            self.num_searches += search.converged.size
            self.num_converged += int(search.converged.sum())

    def add_all(self, other: "ReadingCost") -> None:
        """Count all that another has counted."""
        for name in _COSTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))


_COSTS = tuple(field.name for field in dataclasses.fields(ReadingCost))


class Answers:
    """Finished answers of an evaluation, in its store: those of a batch all at once, with its cost.

    Parameters
    ----------
    store
        Open; see `ScoreStore`.
    """

    def __init__(self, store: ScoreStore) -> None:
        self._store = store
        # Of each answer's key, and the batch in which it was given.
        self._found: dict[bytes, tuple[Answer, int]] = {}
        self._costs: list[ReadingCost] = []
        for arrays in store.batches(_PART):
            self._take(arrays)
        if self._found:
            logger.info("%s: %d answers are there already", store.path, len(self._found))

    def find(self, continuations: Iterable[Continuation]) -> dict[Continuation, Answer]:
        """Return the answers that are there already."""
        known = ((each, self._found.get(each.key)) for each in continuations)
        return {each: found[0] for each, found in known if found is not None}

    def cost_of(self, continuations: Iterable[Continuation]) -> ReadingCost:
        """Return what the batches cost in which these continuations were answered, each once."""
        known = (self._found.get(each.key) for each in continuations)
        total = ReadingCost()
        for batch in sorted({found[1] for found in known if found is not None}):
            total.add_all(self._costs[batch])
        return total

    def add(self, answers: Mapping[Continuation, Answer], cost: ReadingCost) -> None:
        """Keep a batch, and what it cost."""
        arrays = {
            "key": np.frombuffer(b"".join(each.key for each in answers), np.uint8).reshape(-1, 32),
            "log_likelihood": np.array([each.log_likelihood for each in answers.values()], float),
            "is_greedy": np.array([each.is_greedy for each in answers.values()], bool),
            **{name: np.array(value) for name, value in dataclasses.asdict(cost).items()},
        }
        self._store.add(_PART, len(self._costs), arrays)
        self._take(arrays)

    def _take(self, arrays: Mapping[str, np.ndarray]) -> None:
        for key, log_likelihood, is_greedy in zip(
            arrays["key"], arrays["log_likelihood"], arrays["is_greedy"], strict=True
        ):
            answer = Answer(float(log_likelihood), bool(is_greedy))
            self._found[key.tobytes()] = answer, len(self._costs)
        self._costs.append(ReadingCost(**{name: arrays[name].item() for name in _COSTS}))
