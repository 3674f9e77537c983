"""Does a text speak a model's language: both must have the same tokenizer."""

import logging
from pathlib import Path

from implicit_models.language_models.source_names import is_hub_id
from implicit_models.problems.text.data.tokenisation import (
    TOKENIZER_FILE,
    TokenizerError,
    load_tokenizer,
)

log = logging.getLogger(__name__)


class VocabularyError(ValueError):
    """A text was tokenised with another tokenizer than the model's."""


def tokenizer_digest(folder: Path) -> str | None:
    """Return the digest of the ``tokenizer.json`` in a folder; None where there is none.

    Raises
    ------
    TokenizerError
        If the file is there and is not a tokenizer's.
    """
    path = Path(folder) / TOKENIZER_FILE
    return load_tokenizer(path).digest if path.is_file() else None


def check_source(source: Path, digest: str, data: Path) -> None:
    """Compare the tokenizer of a model that is trained on, a folder or a hub id, with that of data.

    Of a model without one nothing tells which tokens its weights know, which is warned of.

    Raises
    ------
    VocabularyError
        Where they differ.
    TokenizerError
        Where the file in a folder is not a tokenizer's.
    """
    found = _digest_on_hub(str(source)) if is_hub_id(str(source)) else tokenizer_digest(source)
    if found is None:
        log.warning(
            "%s has no %s that tells whether its weights know the tokens of %s; if they know "
            "others, they begin with embeddings that mean something else",
            *(source, TOKENIZER_FILE, data),
        )
    else:
        _compare(source, found, digest, data)


def check_tokenizer(model: Path, digest: str, data: Path) -> None:
    """Compare the tokenizer in a model's folder with the one that data were made with.

    Raises
    ------
    VocabularyError
        Where they differ, or the model has none.
    """
    found = tokenizer_digest(model)
    if found is None:
        raise VocabularyError(
            f"{model / TOKENIZER_FILE} is missing; a model of text is saved with it: copy it "
            "there, or name another model"
        )
    _compare(model, found, digest, data)


def _digest_on_hub(name: str) -> str | None:
    try:
        return load_tokenizer(name).digest
    except TokenizerError:  # of a model that was read all the same
        return None


def _compare(model: Path, found: str, digest: str, data: Path) -> None:
    if found != digest:
        raise VocabularyError(
            f"{data} was made with another tokenizer (digest {digest[:12]}) than the model in "
            f"{model} knows ({found[:12]}): prepare the text with tokenizer: {model}, or train a "
            "model on it"
        )
