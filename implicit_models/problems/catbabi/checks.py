"""What is known of streams of stories, and of models of them, before anything runs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from implicit_models.problems.catbabi.parameters import (
    FILES,
    CatbabiEvaluationParameters,
    CatbabiParameters,
    FilesParameters,
    GeneratedParameters,
)
from implicit_models.problems.catbabi.stories.words import WORDS

_LEAST_TOKENS = 8  # of a question with its answer and its facts


def missing(key: str, data: CatbabiParameters) -> Iterator[str]:
    """Yield the tasks whose file is not in the folder, and of a few files where they are wrong."""
    if not isinstance(data, FilesParameters):
        return
    from implicit_models.problems.catbabi.amounts import MOST_BYTES
    from implicit_models.problems.catbabi.stories.reading import StoryError, find_files, read_file

    folder = Path(data.source)
    found: list[tuple[Path, int]] = []
    for split in FILES.values():
        try:
            found += [(path, n) for n, path in find_files(folder, split, data.tasks).items()]
        except StoryError as error:
            yield f"{key}.source: {error}"
            if not folder.is_dir():
                return
    if sum(path.stat().st_size for path, _ in found) > MOST_BYTES:
        return
    for path, task in found:
        try:
            read_file(path, task)
        except StoryError as error:
            yield f"{key}.source: {error}"


def downloads(key: str, data: CatbabiParameters) -> tuple[tuple[str, bool], ...]:
    """Return nothing: stories are generated, or lie in a folder."""
    return ()


def check_trained(key: str, length: int, evaluation: CatbabiEvaluationParameters) -> None:
    """Accept all: a stream has no length."""


def longest_read(
    data: CatbabiParameters | None, evaluation: CatbabiEvaluationParameters | None
) -> Iterator[tuple[str, int]]:
    """Yield the length of what is validated with, and of the pieces of streams."""
    if data is not None:
        yield "sequence_length", data.sequence_length
    if evaluation is not None:
        yield "piece_length", evaluation.piece_length


def tokens_at_most(data: CatbabiParameters) -> dict[str, int]:
    """Return what each split has at most; see `amounts.tokens_at_most`."""
    from implicit_models.problems.catbabi import amounts

    return amounts.tokens_at_most(data)


def tokens_tested(parameters: Any) -> tuple[str, int] | None:
    """Return what a sweep reads; an evaluation reads what there is."""
    if hasattr(parameters, "num_sequences"):
        return "num_sequences", parameters.length * parameters.num_sequences
    return None


def same_tokens(data: CatbabiParameters, other: CatbabiParameters) -> bool:
    """Return whether both are generated, or of the same files."""
    return type(data) is type(other) and (
        getattr(data, "source", None) == getattr(other, "source", None)
    )


def known_vocabulary(data: CatbabiParameters) -> int:
    """Return the number of words of bAbI's release, generated stories or files, with two more."""
    return 2 + len(WORDS)


def data_bytes(data: CatbabiParameters) -> int:
    """Return what the stories take at least."""
    if not isinstance(data, GeneratedParameters):
        return 0
    return _LEAST_TOKENS * len(data.tasks) * sum(data.num_questions.model_dump().values())
