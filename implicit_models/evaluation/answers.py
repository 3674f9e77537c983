"""Answers kept while an evaluation runs, so that it goes on where it was interrupted."""

import hashlib
import logging
import math
import sqlite3
from array import array
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Self

logger = logging.getLogger(__name__)

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


class Answers:
    """Finished answers in an SQLite file; a batch is there whole or not at all.

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
        wanted = list(keys)
        for start in range(0, len(wanted), _AT_ONCE):
            some = wanted[start : start + _AT_ONCE]
            query = f"SELECT * FROM answers WHERE key IN ({','.join('?' * len(some))})"
            with closing(self._database.execute(query, some)) as rows:
                for key, log_likelihood, is_greedy in rows:
                    nats = math.nan if log_likelihood is None else log_likelihood  # SQLite's NaN
                    found[keys[key]] = Answer(nats, bool(is_greedy))
        return found

    def add(self, answers: Mapping[Continuation, Answer]) -> None:
        """Keep a batch."""
        rows: Sequence[tuple[bytes, float, bool]] = [
            (continuation.key, answer.log_likelihood, answer.is_greedy)
            for continuation, answer in answers.items()
        ]
        with self._database:
            self._database.executemany("INSERT OR REPLACE INTO answers VALUES (?, ?, ?)", rows)

    def _begin(self, identity: str) -> None:
        database = self._database
        with database:
            database.execute("CREATE TABLE IF NOT EXISTS identity (name TEXT)")
            database.execute(
                "CREATE TABLE IF NOT EXISTS answers "
                "(key BLOB PRIMARY KEY, log_likelihood REAL, is_greedy INTEGER NOT NULL)"
            )
            found = database.execute("SELECT name FROM identity").fetchone()
            if found is not None and found[0] != identity:
                logger.info("%s holds answers of another evaluation; begun anew", self.path)
                database.execute("DELETE FROM answers")
                database.execute("DELETE FROM identity")
            if found is None or found[0] != identity:
                database.execute("INSERT INTO identity VALUES (?)", (identity,))
            else:
                count = database.execute("SELECT COUNT(*) FROM answers").fetchone()[0]
                if count:
                    logger.info("%s: %d answers are there already", self.path, count)
