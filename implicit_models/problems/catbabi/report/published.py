"""What others have published on CatbAbI, of which every paper draws an order of its own."""

from typing import NamedTuple

_FWM = "Schlag et al. 2021"
_FP_RNN = "FP-RNN, NeurIPS 2025"


class PublishedRow(NamedTuple):
    """The accuracy of a published model in percent, by what was trained on.

    Attributes
    ----------
    num_layers
        None where the source's row does not tell.
    answers
        Trained on the answers alone, which the papers call question mode (QM).
    everything
        Trained on all tokens, language-modelling mode (LM); None where there is no such row.
    """

    model: str
    num_layers: int | None
    source: str
    answers: float
    everything: float | None = None

    def accuracy(self, objective: str) -> float | None:
        """Return the share of right answers after training on ``"answers"`` or ``"all"``."""
        found = {"answers": self.answers, "all": self.everything}.get(objective)
        return None if found is None else found / 100


PUBLISHED = (
    PublishedRow("FWM", None, _FWM, 96.75, 93.04),
    PublishedRow("Transformer-XL", None, _FWM, 87.66, 90.23),
    PublishedRow("LSTM (AWD)", None, _FWM, 80.88, 80.15),
    PublishedRow("Mamba", 1, _FP_RNN, 78.28),
    PublishedRow("Mamba", 2, _FP_RNN, 87.08),
    PublishedRow("Mamba", 4, _FP_RNN, 86.51),
    PublishedRow("FP-Mamba-Householder", 1, _FP_RNN, 81.60),
    PublishedRow("FP-Mamba-Householder", 2, _FP_RNN, 89.55),
)
"""The published rows, with what they are from."""

ELSEWHERE = "What others have published on CatbAbI is in docs/results.md"
"""The beginning of a sentence for stories that no published row fits."""
