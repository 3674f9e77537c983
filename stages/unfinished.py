"""Where evaluations that have not ended keep what they have, and what tells them apart."""

from pathlib import Path
from typing import Any

import torch

import implicit_models
from implicit_models.evaluation.score_store import ScoreStore
from implicit_models.language_models.sources import digest_source
from implicit_models.parameters import digest, source_digest

FOLDER = Path("checkpoints", "evaluation")

_COMPUTING = ("backbones", "cost", "equilibrium", "evaluation", "kernels", "language_models")


def evaluation_identity(model: Path, *what: Any) -> str:
    """Digest everything that scores depend on: weights, data, parameters and code."""
    library = Path(implicit_models.__file__).parent
    code = source_digest(library / package for package in _COMPUTING)
    return digest(digest_source(str(model)), *what, code, torch.__version__)


def score_store(model: Path, what: Any) -> ScoreStore:
    """Give the store of an evaluation of a model's folder."""
    return ScoreStore(folder=FOLDER, identity=evaluation_identity(model, what))
