"""Answers kept while an evaluation runs, so that it goes on where it was interrupted."""

import dataclasses
import hashlib
import logging
import math
import sqlite3
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from implicit_models.evaluation.search import Search

logger = logging.getLogger(__name__)

_FORMAT = 2  # of the file; one of another format is begun anew

_AT_ONCE = 500  # keys of one query: SQLite bounds how many it takes


class AnswerFileError(ValueError):
    """A file of answers cannot be read or written."""


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
    """Finished answers in an SQLite file; a batch is there whole, with its costs, or not at all.

    Parameters
    ----------
    path
        Created where it does not exist, with its folder.
    identity
        Of everything that decides an answer: weights, tokenizer, how the search is made. A file
        of another identity is begun anew.

    Raises
    ------
    AnswerFileError
        Where the file is none of answers, or cannot be written.
    """

    def __init__(self, path: Path, identity: str) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._database = sqlite3.connect(self.path)
            self._begin(identity)
        except sqlite3.Error as error:
            raise AnswerFileError(
                f"{self.path} cannot be used for answers ({error}); delete it to begin anew"
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._database.close()

    def find(self, continuations: Iterable[Continuation]) -> dict[Continuation, Answer]:
        """Give the answers that are there already."""
        keys = {continuation.key: continuation for continuation in continuations}
        found = {}
        columns = "key, log_likelihood, is_greedy"
        for key, log_likelihood, is_greedy in self._select(columns, keys):
            nats = math.nan if log_likelihood is None else log_likelihood  # SQLite's NaN
            found[keys[key]] = Answer(nats, bool(is_greedy))
        return found

    def cost_of(self, continuations: Iterable[Continuation]) -> ReadingCost:
        """Give what the batches cost in which these continuations were answered, each once."""
        found = ReadingCost()
        batches = {batch for (batch,) in self._select("batch", (one.key for one in continuations))}
        query = f"SELECT {', '.join(_COSTS)} FROM batches WHERE number = ?"
        for batch in sorted(batches):
            found.add_all(ReadingCost(*self._database.execute(query, (batch,)).fetchone()))
        return found

    def add(self, answers: Mapping[Continuation, Answer], cost: ReadingCost) -> None:
        """Keep a batch, and what it cost."""
        with self._database as database:
            names, places = ", ".join(_COSTS), ", ".join("?" * len(_COSTS))
            batch = database.execute(
                f"INSERT INTO batches ({names}) VALUES ({places})", dataclasses.astuple(cost)
            ).lastrowid
            rows: Sequence[tuple[bytes, float, bool, int | None]] = [
                (continuation.key, answer.log_likelihood, answer.is_greedy, batch)
                for continuation, answer in answers.items()
            ]
            database.executemany("INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?)", rows)

    def _select(self, columns: str, keys: Iterable[bytes]) -> Iterator[tuple[Any, ...]]:
        """Give some columns of the answers that have these keys."""
        wanted = list(keys)
        for start in range(0, len(wanted), _AT_ONCE):
            some = wanted[start : start + _AT_ONCE]
            query = f"SELECT {columns} FROM answers WHERE key IN ({','.join('?' * len(some))})"
            with closing(self._database.execute(query, some)) as rows:
                yield from rows

    def _begin(self, identity: str) -> None:
        database, name = self._database, f"{_FORMAT} {identity}"
        with database:
            database.execute("CREATE TABLE IF NOT EXISTS identity (name TEXT)")
            found = database.execute("SELECT name FROM identity").fetchone()
            if found == (name,):
                count = database.execute("SELECT COUNT(*) FROM answers").fetchone()[0]
                if count:
                    logger.info("%s: %d answers are there already", self.path, count)
                return
            if found is not None:
                logger.info("%s holds answers of another evaluation; begun anew", self.path)
            database.execute("DELETE FROM identity")
            database.execute("INSERT INTO identity VALUES (?)", (name,))
            for table in ("answers", "batches"):
                database.execute(f"DROP TABLE IF EXISTS {table}")
            names = ", ".join(_COSTS)  # of no type: SQLite gives back what it was given
            database.execute(f"CREATE TABLE batches (number INTEGER PRIMARY KEY, {names})")
            database.execute(
                "CREATE TABLE answers (key BLOB PRIMARY KEY, log_likelihood REAL, "
                "is_greedy INTEGER NOT NULL, batch INTEGER NOT NULL)"
            )
