"""Test-time compute on stories: right answers against the computation that a model is allowed."""

import numpy as np

from implicit_models.equilibrium.phase import Phase
from implicit_models.evaluation import metrics
from implicit_models.evaluation.sweep import Measured, SweepResult, sweep
from implicit_models.language_models.language_model import LanguageModel
from implicit_models.problems.catbabi.data.streams import Stream
from implicit_models.problems.catbabi.evaluation.answers import read_rows
from implicit_models.problems.catbabi.parameters import CatbabiSweepParameters


def sweep_answers(
    model: LanguageModel, stream: Stream, parameters: CatbabiSweepParameters
) -> SweepResult:
    """Measure how many answers are right against the computation; see `sweep`.

    Raises
    ------
    ValueError
        Where the model is explicit, where there are too few sequences of this length that begin
        with a story, or none of them holds a question.
    """
    rows = _rows(stream, parameters.length, parameters.num_sequences)
    places = stream.questions[:, 0]
    read = np.zeros(len(stream.tokens), dtype=bool)
    for first, last in rows:
        read[first:last] = True
    asked = places[read[places]]
    if not len(asked):
        raise ValueError(
            f"sweep.catbabi.length = {parameters.length} is not allowed: the {len(rows)} sequences "
            "that are read hold no question; allowed is a length that stories have, such as 200"
        )

    def measure(phase: Phase, description: str) -> Measured:
        found = read_rows(
            model,
            stream,
            rows,
            phase=phase,
            at_once=parameters.batch_size,
            piece_length=None,
            description=description,
        )
        assert found.search is not None
        scores = {"accuracy": metrics.share(found.is_right[asked])}
        return Measured(
            scores=scores, search=found.search, flops=found.flops, seconds=found.seconds
        )

    return sweep(measure, parameters, model, num_sequences=len(rows))


def _rows(stream: Stream, length: int, num_sequences: int) -> list[tuple[int, int]]:
    """Return sequences that begin with a story, do not overlap and have a token behind them."""
    rows, free = [], 0
    for start in stream.starts.tolist():
        if start >= free and start + length < len(stream.tokens):
            rows.append((start, start + length))
            free = start + length
        if len(rows) == num_sequences:
            return rows
    raise ValueError(
        f"sweep.catbabi.num_sequences = {num_sequences} is not allowed; allowed is at most "
        f"{len(rows)}, the sequences of {length} tokens that the test stories hold: lower it or "
        "sweep.catbabi.length"
    )
