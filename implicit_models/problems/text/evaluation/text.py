"""What a language model makes of a test text: perplexity, length extrapolation, hard tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int, Integer

from implicit_models.equilibrium.phase import Phase
from implicit_models.evaluation.score_store import ScoreStore
from implicit_models.evaluation.scoring import score
from implicit_models.evaluation.statistics import finite
from implicit_models.language_models.forward import is_implicit
from implicit_models.language_models.language_model import LanguageModel, num_parameters
from implicit_models.language_models.phases import search_settings
from implicit_models.problems.text.evaluation.length_extrapolation import (
    LengthScores,
    evaluate_length_extrapolation,
)
from implicit_models.problems.text.evaluation.perplexity import (
    PerplexityResult,
    evaluate_perplexity,
)
from implicit_models.problems.text.evaluation.stream import Tokens
from implicit_models.problems.text.evaluation.totals import Totals
from implicit_models.problems.text.parameters import TextEvaluationParameters


@dataclass(frozen=True, kw_only=True)
class ShownTokens:
    """The beginning of a text, token by token.

    Attributes
    ----------
    tokens
        Ids.
    nats
        What each cost, given those before it.
    self_iterations
        Evaluations of the cell at the token before it, from which it is predicted; None for a
        model that seeks no fixed point.
    """

    tokens: Int[np.ndarray, " T"]
    nats: Float[np.ndarray, " T"]
    self_iterations: Int[np.ndarray, " T"] | None

    def rows(self) -> list[dict[str, object]]:
        """Return the rows of ``tokens.csv``; positions count from 1."""
        iterations = self.self_iterations
        return [
            {
                "position": index + 1,
                "token": int(token),
                "nats": finite(float(self.nats[index])),
                "self_iterations": None if iterations is None else int(iterations[index]),
            }
            for index, token in enumerate(self.tokens)
        ]


@dataclass(frozen=True, kw_only=True)
class TextResult:
    """One model on one text.

    Attributes
    ----------
    kind
        ``"implicit"`` or ``"explicit"``.
    num_parameters
        Trained numbers in the model, tied ones counted once.
    perplexity
        Of documents and domains.
    lengths
        Of the length extrapolation.
    shown
        The first tokens of the text; None where none was asked for.
    """

    kind: str
    num_parameters: int
    perplexity: PerplexityResult
    lengths: dict[int, LengthScores]
    shown: ShownTokens | None

    @property
    def totals(self) -> Totals:
        """What reading the documents took."""
        return self.perplexity.totals

    def metrics(self) -> dict[str, object]:
        """Return the content of ``evaluation.json``; lengths are keys, strings as JSON has them.

        Self-iterations, evaluations per token and the share that converged are those of the
        documents.
        """
        return {
            "data": "text",
            "kind": self.kind,
            "num_parameters": self.num_parameters,
            "perplexity": self.perplexity.metrics(),
            "domains": self.perplexity.domain_metrics(),
            "length_extrapolation": {str(n): found.metrics() for n, found in self.lengths.items()},
            "self_iterations": self.totals.self_iterations,
            "evaluations_per_token": self.totals.evaluations_per_token,
            "share_converged": self.totals.share_converged,
            "seconds": self.totals.seconds,
        }

    def document_rows(self) -> list[dict[str, object]]:
        """Return the rows of ``evaluation_documents.csv``."""
        return self.perplexity.document_rows()

    def position_rows(self) -> list[dict[str, object]]:
        """Return the rows of ``evaluation_by_position.csv``: the last position of each bucket."""
        return [
            {"length": length} | row
            for length, found in self.lengths.items()
            for row in found.position_rows()
        ]

    def token_rows(self) -> list[dict[str, object]]:
        """Return the rows of ``tokens.csv``."""
        return [] if self.shown is None else self.shown.rows()


def evaluate_text(
    model: LanguageModel,
    documents: Sequence[Integer[np.ndarray, " n"]],
    stream: Tokens,
    parameters: TextEvaluationParameters,
    *,
    start_token: int,
    names: Sequence[str] | None = None,
    domains: Sequence[str] | None = None,
    num_bytes: Integer[np.ndarray, " D"] | None = None,
    store: ScoreStore | None = None,
) -> TextResult:
    """Evaluate a model on a text, an implicit one with the search of the parameters.

    Parameters
    ----------
    model
        What `serialisation.load_model` gives; it is neither changed nor moved.
    documents, names, domains, num_bytes
        As in `evaluate_perplexity`.
    stream
        The documents one after another, each followed by the end of text.
    start_token
        The end of text: it stands before each document too.
    store
        Where finished batches are kept, and continued from.

    Raises
    ------
    TextError
        Where a document is empty, the text is too short for a length, or it was tokenised for
        another model.
    """
    phase = search_settings(parameters, model.config).phase() if is_implicit(model) else None
    generator = np.random.default_rng(0)
    shown = _show(model, stream, parameters, phase, start_token)  # first: it takes a moment
    return TextResult(
        kind="implicit" if is_implicit(model) else "explicit",
        num_parameters=num_parameters(model),
        perplexity=evaluate_perplexity(
            model,
            documents,
            start_token=start_token,
            context_length=parameters.context_length,
            stride=parameters.stride,
            batch_size=parameters.batch_size,
            phase=phase,
            generator=generator,
            names=names,
            domains=domains,
            num_bytes=num_bytes,
            piece_length=parameters.piece_length,
            max_tokens=parameters.max_tokens,
            bootstrap_samples=parameters.bootstrap_samples,
            store=store,
        ),
        lengths=evaluate_length_extrapolation(
            model,
            stream,
            parameters.lengths,
            phase=phase,
            batch_size=parameters.batch_size,
            piece_length=parameters.piece_length,
            generator=generator,
            max_sequences=parameters.num_sequences,
            bootstrap_samples=parameters.bootstrap_samples,
            store=store,
        ),
        shown=shown,
    )


def _show(
    model: LanguageModel,
    stream: Tokens,
    parameters: TextEvaluationParameters,
    phase: Phase | None,
    start_token: int,
) -> ShownTokens | None:
    tokens = np.asarray(stream[: parameters.num_shown_tokens], dtype=np.int64)
    if not len(tokens):
        return None
    inputs = np.concatenate(([start_token], tokens[:-1]))
    scores = score(
        model, inputs[None], tokens[None], phase=phase, piece_length=parameters.piece_length
    )
    iterations = scores.self_iterations
    return ShownTokens(
        tokens=tokens,
        nats=scores.nll[0],
        self_iterations=None if iterations is None else iterations[0],
    )
