"""What the stages left of a model of text."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from implicit_models.problems.text.parameters import CorpusParameters
from implicit_models.reporting.figures.style import RunStyle
from implicit_models.reporting.paper import perplexity_column
from implicit_models.reporting.parameters import ReportParameters
from implicit_models.reporting.results import RunResults
from implicit_models.reporting.sections import Section

MODES = ("window", "simultaneous", "sequential")


@dataclass(frozen=True, kw_only=True)
class PositionCurve:
    """Perplexity by position; each point is a range of positions.

    Attributes
    ----------
    positions
        The last position of each range, from 1.
    """

    positions: Int[np.ndarray, " S"]
    perplexity: Float[np.ndarray, " S"]


@dataclass(frozen=True, kw_only=True)
class ShownToken:
    """A token of the shown text.

    Attributes
    ----------
    nats
        Its surprise: minus the logarithm of its probability.
    self_iterations
        Evaluations of the cell at the token that it is predicted from; NaN for an explicit model.
    """

    text: str
    nats: float
    self_iterations: float


@dataclass(frozen=True, kw_only=True)
class TextResults(RunResults):
    """A run on a corpus: perplexity by document, domain, length and position."""

    @property
    def lengths(self) -> list[int]:
        """The lengths of the length extrapolation, in order."""
        return sorted(int(length) for length in self.evaluation["length_extrapolation"])

    @cached_property
    def perplexity_by_position(self) -> dict[int, PositionCurve]:
        """Perplexity by position, by length."""
        return _perplexity_by_position(self.position_rows)

    @cached_property
    def shown_tokens(self) -> list[ShownToken]:
        """The first tokens of the test text, one by one."""
        return _shown_tokens(self.evaluation.get("tokens", ()))

    def scores(self) -> dict[str, Any]:
        """Return what ``summary.json`` says of the run beside its costs."""
        evaluation = self.evaluation
        names = ("perplexity", "standard_error", "nats_per_token", "bits_per_byte")
        return {
            **{name: evaluation["perplexity"][name] for name in names},
            **self.paper_columns(),
            "length_extrapolation": {
                length: found["perplexity"]
                for length, found in evaluation["length_extrapolation"].items()
            },
            "self_iterations": evaluation["self_iterations"],
            "evaluations_per_token": evaluation["evaluations_per_token"],
        }

    @property
    def test_perplexity(self) -> float | None:
        """The perplexity of the test text; None where it is no number."""
        return self.evaluation["perplexity"]["perplexity"]

    @property
    def chance_loss(self) -> float | None:
        """The first training loss that was logged, where the weights began at random."""
        losses = self.history.get("loss")
        return None if losses is None or self.has_source else float(losses.values[0])

    def paper_columns(self) -> dict[str, float]:
        """Return the perplexity under the paper's name, where it is that of the paper's corpus."""
        column = perplexity_column(self.dataset)
        return {} if column is None else {column: self.evaluation["perplexity"]["perplexity"]}

    @classmethod
    def section(
        cls,
        runs: "Sequence[TextResults]",
        dataset: CorpusParameters,
        parameters: ReportParameters,
        styles: Mapping[str, RunStyle],
    ) -> Section:
        """Write the section of the runs on one corpus."""
        from implicit_models.problems.text.report.section import text_section

        return text_section(runs, dataset, styles)


def _perplexity_by_position(rows: Iterable[Mapping[str, str]]) -> dict[int, PositionCurve]:
    """Return the curve of each length from the rows of ``evaluation_by_position.csv``."""
    points: dict[int, list[tuple[int, float]]] = {}
    for row in rows:
        point = (int(row["position"]), _number(row["perplexity"]))
        points.setdefault(int(row["length"]), []).append(point)
    return {
        length: PositionCurve(
            positions=np.array([position for position, _ in found]),
            perplexity=np.array([perplexity for _, perplexity in found]),
        )
        for length, found in points.items()
    }


def _shown_tokens(rows: Iterable[Mapping[str, Any]]) -> list[ShownToken]:
    """Return the tokens under ``tokens`` in ``evaluation.json``, which may be none."""
    return [
        ShownToken(
            text=row["text"],
            nats=_number(row["nats"]),
            self_iterations=_number(row.get("self_iterations")),
        )
        for row in rows
    ]


def mean_of(value: Any) -> float | None:
    """Return the mean of a distribution, or a single number as it is."""
    return value["mean"] if isinstance(value, Mapping) else value


def _number(written: str | float | None) -> float:
    return np.nan if written is None or written == "" else float(written)
