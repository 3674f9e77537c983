"""What others have published on these languages; each has a setting of its own."""

from typing import NamedTuple

from implicit_models.problems.formal_language.names import LanguageName

_CHOMSKY = "Delétang et al. 2023: trained to length 40, tested at 41 to 500"
_MAMBA_3 = "Mamba-3 (arXiv:2603.15569): trained to length 40, tested to 256, scaled"
_UNDO = "Zhou 2026 (arXiv:2604.05923), under adversarial retraction at trained lengths"


class PublishedRow(NamedTuple):
    """An accuracy that was published, in percent.

    Attributes
    ----------
    is_scaled
        Whether a guess counts as 0.
    """

    language: LanguageName
    model: str
    accuracy: float
    is_scaled: bool
    source: str


PUBLISHED = (
    PublishedRow("parity", "Transformer", 52.0, False, _CHOMSKY),
    PublishedRow("parity", "Mamba-3", 100.0, True, _MAMBA_3),
    PublishedRow("parity", "Mamba-2", 0.90, True, _MAMBA_3),
    PublishedRow("parity", "Gated DeltaNet [-1, 1]", 100.0, True, _MAMBA_3),
    PublishedRow("modular_arithmetic", "RNN", 100.0, False, _CHOMSKY),
    PublishedRow("modular_arithmetic", "LSTM", 100.0, False, _CHOMSKY),
    PublishedRow("modular_arithmetic", "Transformer", 24.2, False, _CHOMSKY),
    PublishedRow("modular_arithmetic", "Mamba-3", 98.51, True, _MAMBA_3),
    PublishedRow("modular_arithmetic", "Mamba-2", 47.81, True, _MAMBA_3),
    PublishedRow("modular_arithmetic", "Gated DeltaNet [-1, 1]", 99.25, True, _MAMBA_3),
    PublishedRow("bracketed_arithmetic", "Mamba-3", 87.75, True, _MAMBA_3),
    PublishedRow("bracketed_arithmetic", "Mamba-2", 0.88, True, _MAMBA_3),
    PublishedRow("bracketed_arithmetic", "Gated DeltaNet [-1, 1]", 93.50, True, _MAMBA_3),
    PublishedRow("reverse_string", "RNN", 62.0, False, _CHOMSKY),
    PublishedRow("reverse_string", "Stack-RNN", 100.0, False, _CHOMSKY),
    PublishedRow("reverse_string", "Transformer", 62.3, False, _CHOMSKY),
    PublishedRow("reverse_string", "LSTM", 60.9, False, _CHOMSKY),
    PublishedRow("undo_flip_flop", "Mamba-2, 2 layers", 41.10, False, _UNDO),
)
"""Some of the published rows, not all that there are: of some languages none."""


def published_on(language: str) -> list[PublishedRow]:
    """Return the rows on a language."""
    return [row for row in PUBLISHED if row.language == language]
