"""Writing streams of stories: of our generator, or of bAbI's files."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from implicit_models.bars import bar
from implicit_models.data.folders import digest, written_whole
from implicit_models.data.manifests import write_manifest
from implicit_models.problems.catbabi.data.streams import EOS, FORMAT_VERSION, METADATA, SPLITS
from implicit_models.problems.catbabi.generator.families import (
    generate,
    num_stories,
    share_of_copies,
)
from implicit_models.problems.catbabi.parameters import (
    FILES,
    CatbabiParameters,
    FilesParameters,
    GeneratedParameters,
)
from implicit_models.problems.catbabi.stories.reading import read_folder
from implicit_models.problems.catbabi.stories.story import Story
from implicit_models.problems.catbabi.stories.vocabulary import SPECIAL, Vocabulary, vocabulary_of
from implicit_models.problems.catbabi.stories.words import WORDS


def write_streams(parameters: CatbabiParameters, folder: Path) -> dict[str, Any]:
    """Read or generate stories, put those of all tasks into a random order, and write them.

    Files appear under their names only when all are complete, the metadata last.

    Returns
    -------
    dict
        The metadata, as written.

    Raises
    ------
    StoryError
        If a file of bAbI is missing or not in its form.
    """
    with written_whole(Path(folder), METADATA, SPLITS.__contains__) as partial:
        stories, vocabulary = _stories(parameters)
        metadata = {
            "format_version": FORMAT_VERSION,
            "kind": parameters.kind,
            "source": "files" if isinstance(parameters, FilesParameters) else "generated",
            "objective": parameters.objective,
            "seed": parameters.seed,
            "vocabulary": list(vocabulary.words),
            "splits": {
                name: _write(
                    partial / name,
                    of_tasks,
                    stories["train"],
                    vocabulary,
                    (parameters.seed, number),
                )
                for number, (name, of_tasks) in enumerate(stories.items())
            },
        }
        write_manifest(partial / METADATA, metadata)
    return metadata


def _stories(
    parameters: CatbabiParameters,
) -> tuple[dict[str, dict[int, list[Story]]], Vocabulary]:
    """Return the stories of each split by task, and the words: bAbI's and others."""
    found = {name: _of_split(parameters, name) for name in SPLITS}
    known = Vocabulary((*SPECIAL, *WORDS))
    if isinstance(parameters, GeneratedParameters):
        return found, known
    everything = (s for of_tasks in found.values() for each in of_tasks.values() for s in each)
    others = [word for word in vocabulary_of(everything).words if word not in known.numbers]
    return found, Vocabulary((*known.words, *others))


def _of_split(parameters: CatbabiParameters, split: str) -> dict[int, list[Story]]:
    if isinstance(parameters, FilesParameters):
        return read_folder(Path(parameters.source), FILES[split], parameters.tasks)
    assert isinstance(parameters, GeneratedParameters)
    asked, stories = getattr(parameters.num_questions, split), dict[int, list[Story]]()
    with bar(len(parameters.tasks), f"{split} stories", "task") as counted:
        for task in parameters.tasks:
            count = num_stories(task, asked)
            stories[task] = generate(task, count, parameters.seed, FILES[split])
            counted.update()
    return stories


def _write(
    folder: Path,
    stories: Mapping[int, Sequence[Story]],
    trained_on: Mapping[int, Sequence[Story]],
    vocabulary: Vocabulary,
    seed: tuple[int, int],
) -> dict[str, Any]:
    """Write a split; return its entry of the metadata.

    It says, among other things, which share of its stories the training has word for word.
    """
    ordered = [story for task in sorted(stories) for story in stories[task]]
    order = np.random.default_rng(seed).permutation(len(ordered))
    question_mark = vocabulary.numbers["?"]
    tokens: list[np.ndarray] = []
    questions: list[tuple[int, int, int, int]] = []
    words: Counter[int] = Counter()
    position = 0
    dtype = np.min_scalar_type(len(vocabulary) - 1)
    for number in order:
        story = ordered[number]
        own = np.concatenate(([EOS], vocabulary.encode(story))).astype(dtype)
        asked = position + np.flatnonzero(own == question_mark)
        for place, far in zip(asked.tolist(), story.distances(), strict=True):
            questions.append((place, story.task, far.nearest_lines, far.furthest_lines))
        tokens.append(own)
        words[story.task] += len(own) - 1
        position += len(own)
    arrays = {
        "tokens": np.concatenate(tokens),
        "questions": np.array(questions, dtype=np.int64).reshape(-1, 4),
    }
    folder.mkdir(parents=True)
    for kind, array in arrays.items():
        with (folder / f"{kind}.npy").open("wb") as file:
            np.save(file, array)
    of_task = Counter(arrays["questions"][:, 1].tolist())
    return {
        "num_tokens": len(arrays["tokens"]),
        "num_questions": len(questions),
        "tasks": {
            str(task): {
                "stories": len(stories[task]),
                "questions": of_task[task],
                "words": words[task],
                "share_in_train": share_of_copies(stories[task], trained_on[task]),
            }
            for task in sorted(stories)
        },
        **{f"{kind}_digest": digest(array) for kind, array in arrays.items()},
    }
