"""Writing of the strings of a formal language. What is written is said in `splits`."""

import re
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from implicit_models.bars import bar
from implicit_models.data.folders import digest, written_whole
from implicit_models.data.manifests import write_manifest
from implicit_models.problems.formal_language.data.language import IGNORED, Language, Strings
from implicit_models.problems.formal_language.data.splits import (
    ARRAYS,
    FORMAT_VERSION,
    METADATA,
    StringsError,
)
from implicit_models.problems.formal_language.parameters import (
    FormalLanguageParameters,
    StringsParameters,
)

_SPLIT = re.compile(r"train|validation|test(_(ignoring|asking)_[\w.+-]+_percent)?")


def write_strings(parameters: FormalLanguageParameters, folder: Path) -> dict[str, Any]:
    """Draw the splits of a formal language and write them.

    Each split has its own stream of random numbers, seeded by the data set's seed and the split's
    name. Splits may share strings: short ones are few. Files appear under their names only when all
    are complete, the metadata last.

    Returns
    -------
    dict
        The metadata, as written.

    Raises
    ------
    StringsError
        As `draw_split`.
    """
    splits = {}
    with written_whole(Path(folder), METADATA, _is_split) as partial:
        with bar(len(parameters.splits), "formal language", "split") as counted:
            for name, (strings, probabilities) in parameters.splits.items():
                generator = split_generator(parameters.seed, name)
                drawn = parameters.drawn_with(probabilities)
                arrays = draw_split(drawn, generator, strings, parameters.answers)
                (partial / name).mkdir()
                for kind, array in arrays.items():
                    np.save(partial / name / f"{kind}.npy", array)
                splits[name] = {
                    "num_sequences": strings.num_sequences,
                    "most_tokens": int(arrays["inputs"].shape[1]),
                    "ignore_probability": getattr(drawn, "ignore_probability", None),
                    "ask_probability": getattr(drawn, "ask_probability", None),
                    **{f"{kind}_digest": digest(array) for kind, array in arrays.items()},
                }
                counted.update()
        metadata = {
            "format_version": FORMAT_VERSION,
            "kind": parameters.kind,
            "language": parameters.language,
            "size": parameters.size,
            "answers": parameters.answers,
            "objective": parameters.objective,
            "seed": parameters.seed,
            "tokens": list(parameters.drawn.tokens),
            "num_answers": parameters.drawn.num_answers,
            "tests": parameters.test_names,
            "splits": splits,
        }
        write_manifest(partial / METADATA, metadata)
    return metadata


def split_generator(seed: int, name: str) -> np.random.Generator:
    """Return the random numbers of a split."""
    return np.random.default_rng([seed, *name.encode()])


def draw_lengths(
    generator: np.random.Generator, strings: StringsParameters
) -> Int[np.ndarray, " N"]:
    """Draw the lengths of a split's strings, which come before anything else of it."""
    return generator.integers(strings.shortest, strings.longest + 1, size=strings.num_sequences)


def draw_split(
    language: Language,
    generator: np.random.Generator,
    strings: StringsParameters,
    answers: str,
) -> dict[str, np.ndarray]:
    """Return the arrays of a split, by their names; see `splits`.

    Raises
    ------
    StringsError
        Where the language has too many tokens, or draws what is none of them.
    """
    most_kept = np.iinfo(ARRAYS["inputs"]).max + 1
    if len(language.tokens) > most_kept:
        raise StringsError(
            f"{type(language).__name__} has {len(language.tokens)} tokens; at most {most_kept} are "
            "supported"
        )
    lengths = draw_lengths(generator, strings)
    most = language.most_tokens(strings.longest)
    inputs = np.zeros((len(lengths), most), dtype=ARRAYS["inputs"])
    labels = np.full((len(lengths), most), IGNORED, dtype=ARRAYS["labels"])
    sizes = np.empty((len(lengths), 2), dtype=ARRAYS["sizes"])
    sizes[:, 0] = lengths
    for length in np.unique(lengths).tolist():
        rows = np.flatnonzero(lengths == length)
        found = language.draw(generator, len(rows), length)
        _check_drawn(language, found, length)
        width = found.inputs.shape[1]
        inputs[rows, :width] = found.inputs
        labels[rows, :width] = found.labels
        sizes[rows, 1] = found.num_tokens
    if language.is_prefix_closed and answers == "last":
        is_last = np.arange(most) == sizes[:, 1:] - 1
        labels[~is_last] = IGNORED
    return {"inputs": inputs, "labels": labels, "sizes": sizes}


def _check_drawn(language: Language, found: Strings, length: int) -> None:
    labels = found.labels[found.labels != IGNORED]
    highest = len(language.tokens) - 1
    for what, ids in (("token", found.inputs), ("label", labels)):
        wrong = ids[(ids < 0) | (ids > highest)]
        if wrong.size:
            raise StringsError(
                f"{type(language).__name__}.draw gives the {what} {wrong[0]} in a string of length "
                f"{length}; its tokens are 0 to {highest}, and a label is one of them, or "
                f"{IGNORED} where nothing is asked"
            )


def _is_split(name: str) -> bool:
    return _SPLIT.fullmatch(name) is not None
