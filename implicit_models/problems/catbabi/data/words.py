"""The words of stories as a tokenizer beside a model, so that it can be asked in words."""

import json
from pathlib import Path

from implicit_models.problems.catbabi.stories.vocabulary import SPECIAL

TOKENIZER_FILE = "tokenizer.json"


class WordsError(ValueError):
    """A model was trained on other words, or its tokenizer cannot be read."""


def save_words(vocabulary: list[str], folder: Path) -> None:
    """Write a tokenizer of these words, which are separated by spaces, into a model's folder."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.normalizers import Lowercase
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    numbers = {word: number for number, word in enumerate(vocabulary)}
    tokenizer = Tokenizer(WordLevel(numbers))
    tokenizer.normalizer = Lowercase()  # type: ignore[assignment]
    tokenizer.pre_tokenizer = WhitespaceSplit()  # type: ignore[assignment]
    pad, eos = SPECIAL
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=pad, eos_token=eos
    ).save_pretrained(folder)


def check_words(model: Path, vocabulary: list[str], data: Path) -> None:
    """Compare the words of a model's tokenizer, where it has one, with those of data.

    Raises
    ------
    WordsError
        Where they differ, or the file is damaged.
    """
    path = Path(model) / TOKENIZER_FILE
    if not path.exists():
        return
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["model"]["vocab"]
    except (ValueError, KeyError, TypeError) as error:
        raise WordsError(
            f"{path} is damaged ({type(error).__name__}: {error}); `dvc checkout --force` "
            "restores it, or training the entry again"
        ) from None
    if found != {word: number for number, word in enumerate(vocabulary)}:
        raise WordsError(
            f"{path} has {len(found)} words, and they are not the {len(vocabulary)} of {data}: "
            "name a model that was trained on these stories, or data with its words"
        )
