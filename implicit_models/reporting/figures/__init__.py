"""Figures: from results to matplotlib figures, for the report and the notebook alike.

Draw them inside ``theme(...)``. A run has one colour and one dash in all of them: see `run_styles`.
"""

from implicit_models.reporting.figures.hard_tokens import hard_tokens
from implicit_models.reporting.figures.residual_front import residual_front, settled_steps
from implicit_models.reporting.figures.style import RunStyle, run_styles, theme
from implicit_models.reporting.figures.text import (
    perplexity_by_compute,
    perplexity_by_length,
    perplexity_by_position,
)
from implicit_models.reporting.figures.text_training import text_training_curves
from implicit_models.reporting.figures.training import training_curves
from implicit_models.reporting.figures.word_problem import (
    accuracy_by_compute,
    accuracy_by_length,
    accuracy_by_position,
)

__all__ = [
    "RunStyle",
    "accuracy_by_compute",
    "accuracy_by_length",
    "accuracy_by_position",
    "hard_tokens",
    "perplexity_by_compute",
    "perplexity_by_length",
    "perplexity_by_position",
    "residual_front",
    "run_styles",
    "settled_steps",
    "text_training_curves",
    "theme",
    "training_curves",
]
