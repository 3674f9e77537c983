"""How well a model predicts each token of a text: the one way in which texts are read for scores.

Memory is bounded by the piece of the text that is read at once, and logits are made for a few
tokens at a time, whatever the length of the text and the size of the vocabulary.
"""

import dataclasses
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Integer
from torch import Tensor

from implicit_models.cost.flops import model_flops
from implicit_models.cost.reading import reading_flops
from implicit_models.equilibrium.phase import Phase
from implicit_models.evaluation.search import Search
from implicit_models.families.reader import Piece, Reader, reader_of
from implicit_models.language_models.forward import is_implicit
from implicit_models.language_models.language_model import LanguageModel

IGNORED = -100
"""A label that is not scored."""

# Logits made at once: 64 MiB of them in float32, and as much for their logarithms.
_MAX_LOGITS = 2**24


class TextError(ValueError):
    """A text cannot be read by the model."""


@dataclass(frozen=True, kw_only=True)
class Scores:
    """What a model thinks of each label.

    Attributes
    ----------
    nll
        Negative log-likelihood in nats; NaN at padding and where the label is `IGNORED`.
    most_likely
        The most likely token; `IGNORED` where there is no score.
    is_greedy
        Whether the label is that token; false where there is no score.
    self_iterations
        Evaluations of the cell that each token took part in, 0 at padding; None for a model that
        seeks no fixed point, like the next.
    search
        What the searches cost each sequence, and how they ended.
    flops
        Of all that was computed: padding, and logits where a score was wanted.
    seconds
        Wall time.
    """

    nll: Float[np.ndarray, "B L"]
    most_likely: Int[np.ndarray, "B L"]
    is_greedy: Bool[np.ndarray, "B L"]
    self_iterations: Int[np.ndarray, "B L"] | None
    search: Search | None
    flops: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Prefix:
    """What a model remembers of the tokens that texts begin with; it can be gone on from again.

    Attributes
    ----------
    memory
        The model's.
    rows
        Which of its sequences stand before each of the texts.
    search
        What it cost to read them, once; None for a model that seeks no fixed point.
    flops, seconds
        Of that, and its wall time.
    """

    memory: Any
    rows: Int[np.ndarray, " B"]
    search: Search | None
    flops: float
    seconds: float


def can_share_prefixes(model: LanguageModel) -> bool:
    """Return whether the model can continue from a `Prefix`."""
    return reader_of(model).remembers


@torch.inference_mode()
def score(
    model: LanguageModel,
    inputs: Integer[np.ndarray, "B L"],
    labels: Integer[np.ndarray, "B L"],
    *,
    phase: Phase | None,
    lengths: Integer[np.ndarray, " B"] | None = None,
    cache: Prefix | None = None,
    piece_length: int | None = None,
) -> Scores:
    """Score the label of every token of a batch.

    Parameters
    ----------
    labels
        What the model should predict at each token, aligned with them: the next token. `IGNORED`
        where no score is wanted, and then no logit is computed.
    phase
        How fixed points are searched; None for a model that has none (or for its configuration's
        choice).
    lengths
        Tokens of each sequence, where the rest of its row is padding on the right.
    cache
        What stands before the texts: of `prefix`, or `expand`.
    piece_length
        Tokens read at once, the model's memory of a piece being what the next goes on from; None
        reads whole texts. It bounds the memory. With a fixed number of self-iterations it changes
        what is computed: a piece's search ends before that of the next begins.

    Raises
    ------
    TextError
        Where a token id lies outside the model's vocabulary, or the model can only read whole texts
        and has to go on from something.
    SourceError
        Where a model of transformers has not as many positions.
    """
    started = time.perf_counter()
    text, labels = _Text.of(model, inputs, lengths, phase), np.asarray(labels)
    reader = text.reader
    memory = None if cache is None else _memory(cache, text)
    is_wanted = (labels != IGNORED) & text.inside
    if is_wanted.any():
        _check_tokens(labels[is_wanted], reader)
    nll = np.full(inputs.shape, np.nan)
    most_likely = np.full(inputs.shape, IGNORED)
    iterations: list[np.ndarray] = []
    search: Search | None = None
    flops = 0.0
    for part in text.parts(piece_length):
        goes_on = part.stop < inputs.shape[1]
        piece = text.read(part, memory, goes_on)
        memory = piece.memory
        wanted = is_wanted[:, part]
        flops += text.flops(part, piece, num_logits=int(wanted.sum()))
        found = _score_piece(piece, labels[:, part], wanted, reader.vocabulary_size)
        nll[:, part][wanted], most_likely[:, part][wanted] = found
        if piece.self_iterations is not None:
            iterations.append(piece.self_iterations.cpu().numpy())
        search = _longer(search, piece, text.inside[:, part])
    return Scores(
        nll=nll,
        most_likely=most_likely,
        is_greedy=is_wanted & (most_likely == labels),
        self_iterations=np.concatenate(iterations, axis=1) if iterations else None,
        search=search,
        flops=flops,
        seconds=time.perf_counter() - started,
    )


@torch.inference_mode()
def prefix(
    model: LanguageModel,
    inputs: Integer[np.ndarray, "B L"],
    phase: Phase | None,
    *,
    lengths: Integer[np.ndarray, " B"] | None = None,
    piece_length: int | None = None,
) -> Prefix:
    """Read what several texts begin with, once.

    Parameters are those of `score`. Only our Mamba2 and Llama take sequences of unequal lengths.

    Raises
    ------
    TextError
        As in `score`, or where the model cannot go on from anything (see `can_share_prefixes`).
    """
    started = time.perf_counter()
    if not can_share_prefixes(model):
        raise TextError(f"a {type(model).__name__} remembers no prefix: read whole texts with it")
    text = _Text.of(model, inputs, lengths, phase)
    if not (text.reader.takes_unequal_lengths or text.inside.all()):
        raise TextError(
            f"prefixes of a {type(model).__name__} must be of one length; found lengths "
            f"{sorted(set(text.inside.sum(1).tolist()))}"
        )
    memory, search, flops = None, None, 0.0
    for part in text.parts(piece_length):
        piece = text.read(part, memory, True)
        memory, search = piece.memory, _longer(search, piece, text.inside[:, part])
        flops += text.flops(part, piece, num_logits=0)
    return Prefix(
        memory=memory,
        rows=np.arange(len(inputs)),
        search=search,
        flops=flops,
        seconds=time.perf_counter() - started,
    )


def expand(cache: Prefix, rows: Integer[np.ndarray, " R"]) -> Prefix:
    """Return the prefix of other texts: for each, the row of ``cache`` that it continues.

    Nothing is copied before it is read on.
    """
    return dataclasses.replace(cache, rows=cache.rows[np.asarray(rows)])


@dataclass(frozen=True)
class _Text:
    """A batch on the model's device, and how it is read."""

    model: LanguageModel
    reader: Reader
    phase: Phase | None
    tokens: Int[Tensor, "B L"]
    inside: Bool[np.ndarray, "B L"]

    @classmethod
    def of(
        cls,
        model: LanguageModel,
        inputs: Integer[np.ndarray, "B L"],
        lengths: Integer[np.ndarray, " B"] | None,
        phase: Phase | None,
    ) -> "_Text":
        if phase is not None and not is_implicit(model):
            raise ValueError(f"phase is {phase}; a {type(model).__name__} seeks no fixed point")
        array, reader = np.array(inputs, dtype=np.int64), reader_of(model)
        if not array.size:
            raise TextError(f"there is no token to read: the input has the shape {array.shape}")
        _check_tokens(array, reader)
        inside = np.ones(array.shape, dtype=bool)
        if lengths is not None:
            inside = np.arange(array.shape[1]) < np.asarray(lengths)[:, None]
        device = next((tensor.device for tensor in model.parameters()), torch.device("cpu"))
        return cls(model, reader, phase, torch.from_numpy(array).to(device), inside)

    def parts(self, piece_length: int | None) -> list[slice]:
        """Cut the text into pieces that the model can read."""
        reader, (batch, length) = self.reader, self.tokens.shape
        if piece_length is None or not reader.remembers:
            piece_length = length
        if reader.remembers and reader.makes_all_logits:
            most = max(1, 4 * _MAX_LOGITS // (batch * reader.vocabulary_size))
            piece_length = min(piece_length, most)
        return [slice(i, min(i + piece_length, length)) for i in range(0, length, piece_length)]

    def read(self, part: slice, memory: Any, keeps_memory: bool) -> Piece:
        inside = self.inside[:, part]
        mask = None if inside.all() else torch.from_numpy(inside).to(self.tokens.device)
        return self.reader.read(
            self.tokens[:, part],
            mask=mask,
            memory=memory,
            keeps_memory=keeps_memory,
            phase=self.phase,
        )

    def flops(self, part: slice, piece: Piece, *, num_logits: int) -> float:
        """Return what a piece took, and the logits that were wanted of it."""
        inside, costs = self.inside[:, part], model_flops(self.model)
        batch, length = inside.shape
        num_logits = inside.size if self.reader.makes_all_logits else num_logits
        return float(num_logits * costs.head) + reading_flops(
            costs,
            num_sequences=batch,
            length=length,
            past=piece.past,
            search=piece.search,
            window=piece.window,
            num_tokens=inside.sum(1),
        )


def _check_tokens(tokens: Integer[np.ndarray, "..."], reader: Reader) -> None:
    least, most = tokens.min(), tokens.max()
    if least < 0 or most >= reader.vocabulary_size:
        raise TextError(
            f"the text holds the token {least if least < 0 else most}, and the model knows those "
            f"from 0 to {reader.vocabulary_size - 1}: it was tokenised for another model"
        )


def _memory(cache: Prefix, text: _Text) -> Any:
    """Copy what stands before each text."""
    if len(cache.rows) != len(text.tokens):
        raise TextError(
            f"the prefix is of {len(cache.rows)} texts, and there are {len(text.tokens)}: expand it"
        )
    return text.reader.select(cache.memory, torch.from_numpy(cache.rows).to(text.tokens.device))


def _longer(search: Search | None, piece: Piece, inside: Bool[np.ndarray, "B L"]) -> Search | None:
    if piece.search is None:
        return None
    found = Search.of(piece.search, inside.sum(1))
    return found if search is None else search.and_then(found)


def _score_piece(
    piece: Piece,
    labels: Integer[np.ndarray, "B L"],
    wanted: Bool[np.ndarray, "B L"],
    vocabulary_size: int,
) -> tuple[Float[np.ndarray, " K"], Int[np.ndarray, " K"]]:
    """Return the nats of the wanted labels, and the most likely tokens there."""
    if not wanted.any():
        return np.zeros(0), np.zeros(0, dtype=np.int64)
    device = piece.states.device
    flat = torch.from_numpy(wanted.ravel().nonzero()[0]).to(device)
    states = piece.states.flatten(0, 1)
    targets = torch.from_numpy(labels[wanted].astype(np.int64)).to(device)
    nats, most_likely = [], []
    size = max(1, _MAX_LOGITS // vocabulary_size)
    for some, expected in zip(flat.split(size), targets.split(size), strict=True):
        logits = piece.logits(states[some])
        dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
        likelihoods = logits.log_softmax(-1, dtype=dtype)
        nats.append(-likelihoods.gather(1, expected[:, None])[:, 0])
        most_likely.append(likelihoods.argmax(-1))
    return torch.cat(nats).double().cpu().numpy(), torch.cat(most_likely).cpu().numpy()
