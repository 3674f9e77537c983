"""Figures that several problems draw, and how all of them look.

Draw them inside ``theme(...)``. A run has one colour and one dash in all of its data set's, and a
model one colour on all data sets: see `run_styles`.
"""

from implicit_models.reporting.figures.residual_front import residual_front, settled_steps
from implicit_models.reporting.figures.style import TO_INK, RunStyle, inked, run_styles, theme
from implicit_models.reporting.figures.training import training_curves

__all__ = [
    "TO_INK",
    "RunStyle",
    "inked",
    "residual_front",
    "run_styles",
    "settled_steps",
    "theme",
    "training_curves",
]
