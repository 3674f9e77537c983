"""Where evaluations that have not ended keep what they have, and what tells them apart."""

from pathlib import Path
from typing import Any

import torch

from implicit_models.code_digest import NOT_COMPUTING, code_digests, not_of_problem
from implicit_models.evaluation.score_store import ScoreStore
from implicit_models.language_models.sources import digest_source
from implicit_models.outside_code import outside_digests
from implicit_models.parameters import digest

FOLDER = Path("checkpoints", "evaluation")


def evaluation_identity(package: str, model: Path, *what: Any) -> str:
    """Digest everything that scores depend on: weights, data, parameters and code.

    Parameters
    ----------
    package
        Of the kind of problem: the code of others does not count.
    model
        Its folder or hub id.
    """
    code = code_digests(without=(*NOT_COMPUTING, "training", *not_of_problem(package)))
    code |= outside_digests(package, "evaluation")
    return digest(digest_source(str(model)), *what, code, torch.__version__)


def score_store(package: str, model: Path, *what: Any) -> ScoreStore:
    """Return the store of an evaluation of a model's folder; see `evaluation_identity`."""
    identity = evaluation_identity(package, model, *what)
    return ScoreStore(FOLDER / f"{identity[:16]}.sqlite", identity)
