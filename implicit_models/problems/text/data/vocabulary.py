"""Does a text speak a model's language: both must have the same tokenizer."""

from pathlib import Path

from implicit_models.problems.text.data.tokenisation import TOKENIZER_FILE, load_tokenizer


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
    if found != digest:
        raise VocabularyError(
            f"{data} was made with another tokenizer (digest {digest[:12]}) than the model in "
            f"{model} knows ({found[:12]}): prepare the text with tokenizer: {model}, or train a "
            "model on it"
        )
