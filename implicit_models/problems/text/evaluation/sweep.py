"""Test-time compute on text: perplexity against the computation that a model is allowed."""

import dataclasses

import numpy as np

from implicit_models.equilibrium.phase import Phase
from implicit_models.evaluation.score_store import ScoreStore, measure_batches
from implicit_models.evaluation.scoring import score
from implicit_models.evaluation.search import Search
from implicit_models.evaluation.statistics import finite, perplexity, perplexity_error
from implicit_models.evaluation.sweep import (
    Measured,
    SweepResult,
    sweep,
)
from implicit_models.language_models.language_model import LanguageModel
from implicit_models.problems.text.evaluation.stream import Tokens, cut, num_sequences
from implicit_models.problems.text.parameters import TextSweepParameters


def sweep_text(
    model: LanguageModel,
    stream: Tokens,
    parameters: TextSweepParameters,
    *,
    store: ScoreStore | None = None,
) -> SweepResult:
    """Measure a model's perplexity against the allowed self-iterations and the tolerance.

    Self-iterations are allowed to whole sequences; a tolerance is searched for in each of the
    `search_modes`.

    Parameters
    ----------
    stream
        Documents one after another, each followed by the end of text.
    store
        Where finished batches are kept, and continued from.

    Raises
    ------
    ValueError
        Where the model is explicit.
    TextError
        Where the text is shorter than a sequence, or not in the model's vocabulary.
    ParameterError
        Where it holds fewer sequences than asked for.
    """
    length, at_once = parameters.length, parameters.batch_size
    count = num_sequences(stream, length, parameters.num_sequences)

    def measure(phase: Phase, description: str) -> Measured:
        def batch(first: int) -> dict[str, np.ndarray]:
            inputs, labels = cut(stream, length, first, min(first + at_once, count))
            scores = score(model, inputs, labels, phase=phase)
            assert scores.search is not None
            sums = {"flops": np.array([scores.flops]), "seconds": np.array([scores.seconds])}
            answers = {
                "nats": scores.nll.sum(axis=1),
                "predictions": scores.most_likely.astype(np.int32),
            }
            return answers | sums | vars(scores.search)

        measured = measure_batches(
            range(0, count, at_once),
            batch,
            store=store,
            part=f"sweep {description}".replace(" ", "_"),
            description=description,
        )
        names = (field.name for field in dataclasses.fields(Search))
        scores = {
            "perplexity": finite(perplexity(float(measured["nats"].sum()), count * length)),
            "standard_error": perplexity_error(
                measured["nats"],
                np.full(count, length),
                num_samples=parameters.bootstrap_samples,
                generator=np.random.default_rng(0),
            ),
        }
        search = Search(**{name: measured[name] for name in names})
        return Measured(
            scores=scores,
            search=search,
            flops=float(measured["flops"].sum()),
            seconds=float(measured["seconds"].sum()),
            predictions=measured["predictions"],
        )

    return sweep(measure, parameters, model, num_sequences=count, in_all_modes=True)
