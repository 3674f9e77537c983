"""Log-likelihoods of continuations: what stands before several of them is read once.

A question with four answers has four continuations of one context. Continuations whose contexts
begin alike form a *group*; its shared beginning is read once, and all of them go on from what the
model remembers of it. Groups of similar length are read together, and logits are made for the
continuations only.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from jaxtyping import Int, Integer

from implicit_models.bars import bar
from implicit_models.equilibrium.phase import Phase
from implicit_models.evaluation.scoring import IGNORED, Prefix, expand, prefix, score
from implicit_models.families.reader import reader_of
from implicit_models.language_models.language_model import LanguageModel
from implicit_models.problems.downstream.evaluation.answers import (
    Answer,
    Answers,
    Continuation,
    ReadingCost,
)


@dataclass(frozen=True)
class Group:
    """Continuations whose texts begin with the same tokens.

    Attributes
    ----------
    num_shared
        How many tokens that are. At least one token of each context comes after them: its state
        is what the continuation's first token is predicted from.
    """

    continuations: tuple[Continuation, ...]
    num_shared: int

    @property
    def shared(self) -> tuple[int, ...]:
        """The tokens that they share."""
        return self.continuations[0].context[: self.num_shared]

    @property
    def num_tokens(self) -> int:
        """Tokens of the longest text."""
        return max(each.num_tokens for each in self.continuations)


def group(continuations: Iterable[Continuation], max_members: int) -> list[Group]:
    """Put continuations together that share half of their contexts at least."""
    groups: list[Group] = []
    members: list[Continuation] = []
    num_shared = 0
    for each in sorted(continuations, key=lambda one: (one.context, one.tokens)):
        if members:
            common = min(num_shared, len(each.context) - 1)
            common = _num_common(members[-1].context, each.context, common)
            longest = max(len(each.context), max(len(one.context) for one in members))
            if len(members) < max_members and common and 2 * common >= longest - 1:
                members.append(each)
                num_shared = common
                continue
            groups.append(_grouped(members, num_shared))
        members, num_shared = [each], len(each.context) - 1
    return [*groups, _grouped(members, num_shared)] if members else groups


def _grouped(members: Sequence[Continuation], num_shared: int) -> Group:
    """Make a group; what a single text shares with none is read in one go with the rest of it."""
    return Group(tuple(members), num_shared if len(members) > 1 else 0)


def answer(
    model: LanguageModel,
    continuations: Sequence[Continuation],
    *,
    phase: Phase | None,
    batch_size: int,
    piece_length: int | None = None,
    kept: Answers | None = None,
    cost: ReadingCost | None = None,
    shares_beginnings: bool = True,
) -> list[Answer]:
    """Return the log-likelihood of each continuation.

    Parameters
    ----------
    phase
        How fixed points are searched; None for a model that has none.
    batch_size
        Texts read together.
    piece_length
        Tokens of a text that are read at once, which bounds the memory; None reads whole texts.
    kept
        Where finished batches are kept, and where those of an evaluation that was interrupted are.
        What is read together does not depend on it, so neither do the answers.
    cost
        Takes what was read, before an interruption too.
    shares_beginnings
        False reads each text by itself from its first token, once more for every answer.
    """
    cost = ReadingCost() if cost is None else cost
    reader = _GroupReader(model, phase, batch_size, piece_length)
    wanted = list(dict.fromkeys(continuations))
    groups = group(wanted, batch_size if shares_beginnings else 1)
    found = {} if kept is None else kept.find(wanted)
    read_before: list[Continuation] = []
    with bar(len(wanted), "continuations", "text") as counted:
        for batch in _batches(groups, batch_size):
            members = [each for one in batch for each in one.continuations]
            if all(each in found for each in members):
                read_before += members
            else:
                answers, spent = reader.read(batch)
                if kept is not None:
                    kept.add(answers, spent)
                found |= answers
                cost.add_all(spent)
            counted.update(len(members))
    if kept is not None:
        cost.add_all(kept.cost_of(read_before))
    return [found[each] for each in continuations]


@dataclass(frozen=True)
class _GroupReader:
    """Reads batches of groups: first what each group shares, then its continuations."""

    model: LanguageModel
    phase: Phase | None
    batch_size: int
    piece_length: int | None

    def read(self, groups: Sequence[Group]) -> tuple[dict[Continuation, Answer], ReadingCost]:
        """Answer the continuations of groups; either all or none of them share something."""
        cost, num_shared = ReadingCost(), self._num_shared(groups)
        remembered = self._read_shared(groups, num_shared, cost) if any(num_shared) else None
        # Of each its row in what is remembered; those with the longest rest come first.
        texts = [(row, each) for row, one in enumerate(groups) for each in one.continuations]
        texts.sort(key=lambda text: num_shared[text[0]] - text[1].num_tokens)
        answers: dict[Continuation, Answer] = {}
        while texts:
            some, texts = texts[: self.batch_size], texts[self.batch_size :]
            rows = np.array([row for row, _ in some])
            after = None if remembered is None else expand(remembered, rows)
            answers |= self._read_rest([each for _, each in some], num_shared[rows], after, cost)
        return answers, cost

    def _num_shared(self, groups: Sequence[Group]) -> Int[np.ndarray, " G"]:
        """Return how many of each group's shared tokens are read first, as far as the model can."""
        reader = reader_of(self.model)
        shared = np.array([one.num_shared for one in groups])
        if not reader.remembers:
            return np.zeros_like(shared)
        return shared if reader.takes_unequal_lengths else np.full_like(shared, shared.min())

    def _read_shared(
        self, groups: Sequence[Group], num_shared: Integer[np.ndarray, " G"], cost: ReadingCost
    ) -> Prefix:
        inputs = _padded([one.shared[:n] for one, n in zip(groups, num_shared, strict=True)], 0)
        found = prefix(
            self.model, inputs, self.phase, lengths=num_shared, piece_length=self.piece_length
        )
        cost.add(int(num_shared.sum()), found.search, found.flops, found.seconds)
        return found

    def _read_rest(
        self,
        continuations: Sequence[Continuation],
        num_shared: Integer[np.ndarray, " B"],
        after: Prefix | None,
        cost: ReadingCost,
    ) -> dict[Continuation, Answer]:
        texts, targets = [], []
        for each, start in zip(continuations, num_shared, strict=True):
            texts.append((each.context + each.tokens)[start:-1])
            unscored = len(each.context) - 1 - int(start)
            targets.append((*[IGNORED] * unscored, *each.tokens))
        lengths = np.array([len(text) for text in texts])
        labels = _padded(targets, IGNORED)
        found = score(
            self.model,
            _padded(texts, 0),
            labels,
            phase=self.phase,
            lengths=lengths,
            cache=after,
            piece_length=self.piece_length,
        )
        scored = labels != IGNORED
        cost.add(int(lengths.sum()), found.search, found.flops, found.seconds)
        cost.num_texts += len(continuations)
        cost.num_scored += int(scored.sum())
        sums = -np.where(scored, found.nll, 0.0).sum(1)
        greedy = (found.is_greedy | ~scored).all(1)
        return {
            each: Answer(float(nats), bool(is_greedy))
            for each, nats, is_greedy in zip(continuations, sums, greedy, strict=True)
        }


def _batches(groups: Iterable[Group], batch_size: int) -> Iterator[list[Group]]:
    """Put groups of similar length together, the longest first; those that share nothing apart."""
    ordered = sorted(groups, key=lambda one: (one.num_shared, one.num_tokens), reverse=True)
    for sharing in (True, False):
        rest = (one for one in ordered if bool(one.num_shared) is sharing)
        while batch := list(islice(rest, batch_size)):
            yield batch


def _num_common(first: Sequence[int], second: Sequence[int], most: int) -> int:
    for place in range(most):
        if first[place] != second[place]:
            return place
    return most


def _padded(rows: Sequence[Sequence[int]], padding: int) -> Int[np.ndarray, "B L"]:
    length = max(len(row) for row in rows)
    return np.array([[*row, *[padding] * (length - len(row))] for row in rows], dtype=np.int64)
