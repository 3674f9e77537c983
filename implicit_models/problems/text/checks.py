"""What is known of a corpus, and of models of it, before anything runs."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from implicit_models.hub_access import datasets_refused_by, hub_refused_by
from implicit_models.parameters import ParameterError
from implicit_models.problems.text.parameters import (
    VOCABULARIES,
    CorpusParameters,
    HubCorpusParameters,
    TextEvaluationParameters,
    TextSweepParameters,
    vocabulary_size,
)

if TYPE_CHECKING:
    from implicit_models.problems.text.data.tokenisation import TextTokenizer

_MOST_FILES = 5000
_FILES = ".txt, .jsonl, .jsonl.zst or .parquet"


def missing(key: str, data: CorpusParameters) -> Iterator[str]:
    """Yield what is not there: of a local corpus the text, files of a split; the tokenizer."""
    yield from _missing_tokenizer(key, data)
    if isinstance(data, HubCorpusParameters):
        return
    source = _path(data.source)
    if not source.exists():
        yield (
            f"{key}.source = {data.source!r} is not there; put your own text ({_FILES}) "
            f"{_places(data)}, or name another folder: {key}.source=FOLDER (any text will do, "
            "such as novels of gutenberg.org; docs/pretraining.md has more)"
        )
    elif _files(data) is not None:
        yield from _missing_files(key, data)


def downloads(key: str, data: CorpusParameters) -> Iterator[tuple[str, bool]]:
    """Yield what has to come from the hub, tokenizer and corpus, and whether that may be asked."""
    if _is_on_the_hub_alone(data):
        what = f"{key}.tokenizer = {data.tokenizer!r} is not on this machine"
        if refused := hub_refused_by():
            yield (
                f"{what}, and {refused} keeps it from being downloaded; unset that, or take "
                f"bytes: {key}.tokenizer=bytes",
                False,
            )
        else:
            yield f"{what} yet; it will be downloaded from the Hugging Face hub", True
    refused = datasets_refused_by()
    if isinstance(data, HubCorpusParameters) and refused:
        yield (
            f"{key}.source = {data.source!r} is streamed from the Hugging Face hub, so that no "
            f"cache has it, and {refused} keeps the hub from being asked; unset that, or make an "
            f"entry of corpora of its files ({_FILES}) in a folder of this machine",
            False,
        )


def check_trained(key: str, length: int, evaluation: TextEvaluationParameters) -> None:
    """See nothing: the report of a text needs no length of its own."""


def longest_read(
    data: CorpusParameters | None, evaluation: TextEvaluationParameters | None
) -> Iterator[tuple[str, int]]:
    """Yield the length of the sequences that are validated with, and of what is evaluated."""
    if data is not None:
        yield "sequence_length", data.sequence_length
    if evaluation is not None:
        yield "context_length", evaluation.context_length
        if evaluation.lengths:
            yield "lengths", max(evaluation.lengths)
        yield "num_shown_tokens", evaluation.num_shown_tokens


def tokens_at_most(data: CorpusParameters) -> dict[str, int]:
    """Return the bytes of the files of each split, and an end for each: no tokenizer makes more.

    Nothing of a split that has compressed files, or a share of all others.
    """
    from implicit_models.problems.text.data.local_source import open_local_source
    from implicit_models.problems.text.data.shards import CorpusError

    source = _path(data.source)
    is_local = not isinstance(data, HubCorpusParameters) and source.exists()
    if not is_local or data.validation.share or data.test.share or _files(data) is None:
        return {}
    try:
        found = open_local_source(data, max_bytes=1)
    except (CorpusError, ParameterError):  # which is told elsewhere
        return {}
    return {
        split: sum((found.root / name).stat().st_size + 1 for name in names)
        for split, names in found.files.items()
        if all(name.lower().endswith((".txt", ".jsonl")) for name in names)
    }


def tokens_tested(
    parameters: TextEvaluationParameters | TextSweepParameters,
) -> tuple[str, int] | None:
    """Return what the sequences of the longest length take, each with the token after it."""
    is_sweep = isinstance(parameters, TextSweepParameters)
    length = parameters.length if is_sweep else max(parameters.lengths, default=0)
    return ("num_sequences", length * (parameters.num_sequences or 1) + 1) if length else None


def same_tokens(data: CorpusParameters, other: CorpusParameters) -> bool:
    """Return whether both have the same tokenizer; files that are not there yet may be the same."""
    if data.tokenizer == other.tokenizer:
        return True
    from implicit_models.problems.text.data.tokenisation import TokenizerError

    try:
        found = [_tokenizer_here(each) for each in (data, other)]
    except TokenizerError:  # which is told elsewhere
        return True
    known = [each for each in found if each is not None]
    if len(known) < 2:
        return not any(each.is_bytes for each in known)
    return known[0].digest == known[1].digest


def known_vocabulary(data: CorpusParameters) -> int | None:
    """Return the number of the tokenizer's tokens, where it is here."""
    if data.tokenizer in VOCABULARIES:
        return vocabulary_size(data)
    from implicit_models.problems.text.data.tokenisation import TokenizerError

    try:
        tokenizer = _tokenizer_here(data)
        return None if tokenizer is None else tokenizer.vocabulary_size
    except TokenizerError:  # which is told elsewhere
        return None


def data_bytes(data: CorpusParameters) -> int:
    """Return what the ids of a local text take at least, a fifth of a byte for each of its own."""
    if isinstance(data, HubCorpusParameters):
        return 0
    files = _files(data) or ()
    return sum(file.stat().st_size for file in files if file.is_file()) // 5


def _path(text: str) -> Path:
    """Return a path of the parameters; its ``~`` stands for a home where there is one."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        return Path(text)


def _files(data: CorpusParameters) -> list[Path] | None:
    """Return what is at a source; None of so much that only the preparation looks at it."""
    from implicit_models.problems.text.data.finding import walk_files

    source = _path(data.source)
    if source.is_file():
        return [source]
    found = list(islice(walk_files(source, data.tokenizer), _MOST_FILES + 1))
    return found if len(found) <= _MOST_FILES else None


def _places(data: CorpusParameters) -> str:
    """Return where the files of each split belong, by the patterns of a corpus."""
    held_out = (*data.validation.files, *data.test.files)
    folders = [pattern.rpartition("/")[0] for pattern in held_out]
    if not folders or not all(folders):
        return f"into the folder {data.source}"
    places = dict.fromkeys(["train", *folders])
    return "under " + ", ".join(f"{data.source}/{each}" for each in places)


def _other_tokenizers(key: str, data: CorpusParameters) -> str:
    """Return how to come by a tokenizer that is allowed: a file of them lies in the source."""
    take_bytes, source = f"take bytes: {key}.tokenizer=bytes", _path(data.source)
    if source.is_file():
        return take_bytes
    path, given = Path(data.source, "tokenizer.json"), Path(data.tokenizer)
    if source.resolve() in _path(data.tokenizer).resolve().parents:
        path, setting = given, ""
    else:
        setting = f" and name it so, {key}.tokenizer={path},"
    text = source if source.exists() and not (source / "train").is_dir() else source / "train"
    return (
        f"make it of the text, `python scripts/train_tokenizer.py {text} {path}`,{setting} or "
        f"{take_bytes}"
    )


def _missing_files(key: str, data: CorpusParameters) -> Iterator[str]:
    from implicit_models.problems.text.data.local_source import open_local_source
    from implicit_models.problems.text.data.shards import CorpusError

    try:
        files = open_local_source(data, max_bytes=1).files
    except CorpusError as error:
        yield f"{key}.source: {error}"
    except ParameterError as error:
        yield f"{key}.{error}"
    else:
        if not files["train"]:
            yield (
                f"{key}.source = {data.source!r} holds no text to train on; validation.files and "
                f"test.files name all of it: put more text {_places(data)}"
            )


def _missing_tokenizer(key: str, data: CorpusParameters) -> Iterator[str]:
    from implicit_models.problems.text.data.tokenisation import TokenizerError

    path, name = _path(data.tokenizer), data.tokenizer
    if name.endswith(".json") and not path.exists():
        yield f"{key}.tokenizer = {name!r} is not there; {_other_tokenizers(key, data)}"
        return
    try:
        tokenizer: Any = _tokenizer_here(data)
        if tokenizer is not None:
            _ = tokenizer.end_of_text, tokenizer.vocabulary_size
    except TokenizerError as error:
        yield f"{key}.tokenizer: {error}"


def _tokenizer_here(data: CorpusParameters) -> "TextTokenizer | None":
    """Load the tokenizer, without asking the hub; None where it is not on this machine.

    Raises
    ------
    TokenizerError
        Where it is not a tokenizer's, or can be no name on the hub.
    """
    from implicit_models.problems.text.data.tokenisation import find_tokenizer

    if data.tokenizer.endswith(".json") and not _path(data.tokenizer).exists():
        return None
    return find_tokenizer(data.tokenizer)


def _is_on_the_hub_alone(data: CorpusParameters) -> bool:
    from implicit_models.problems.text.data.tokenisation import TokenizerError

    try:
        return not data.tokenizer.endswith(".json") and _tokenizer_here(data) is None
    except TokenizerError:
        return False
