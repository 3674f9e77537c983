"""Where evaluations that have not ended keep what they have, and what tells them apart."""

from pathlib import Path
from typing import Any

import torch

from implicit_models.code_digest import NOT_COMPUTING, code_digests
from implicit_models.evaluation.score_store import ScoreStore
from implicit_models.language_models.sources import digest_source
from implicit_models.parameters import digest

FOLDER = Path("checkpoints", "evaluation")


def evaluation_identity(model: Path, *what: Any) -> str:
    """Digest everything that scores depend on: weights, data, parameters and code."""
    code = code_digests(without=(*NOT_COMPUTING, "training"))
    return digest(digest_source(str(model)), *what, code, torch.__version__)


def score_store(model: Path, what: Any) -> ScoreStore:
    """Return the store of an evaluation of a model's folder."""
    return ScoreStore(folder=FOLDER, identity=evaluation_identity(model, what))
