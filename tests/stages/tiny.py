"""Any preset made so small that all of it runs in seconds, on text and tasks that are made up."""

import json
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from implicit_models.problems.catbabi.generator.families import FAMILIES, generate
from implicit_models.problems.catbabi.stories.story import render

LENGTH = 8
WORDS = ("the", "river", "was", "slow", "and", "a", "boat", "went", "down", "with", "no", "oar")
MODEL = {
    "num_layers": 2,
    "d_model": 16,
    "d_state": 4,
    "head_dim": 8,
    "num_heads": 2,
    "d_feed_forward": 16,
    "hidden_size": 8,
    "sliding_window": 5,
}
LENGTHS = {"minimum": LENGTH // 2, "start": LENGTH // 2, "end": LENGTH, "growth_steps": 1}
WHOLE = LENGTHS | {"minimum": LENGTH, "start": LENGTH, "growth_steps": 0}
SEARCH = {"window": 8, "patience": 1, "max_steps": 3}
SIZES: dict[str, dict[str, Any]] = {
    "optimisation": {"batch_size": 4, "batch_tokens": 4 * LENGTH, "warmup_steps": 1},
    "bounded": {"num_training_steps": 2, "total_training_steps": 5, "lengths": LENGTHS},
    "free": {
        "num_training_steps": 2,
        "max_steps": 3,
        "decay_steps": 1,
        "lengths": LENGTHS,
        "carry_steps": 1,
    },
    "training": {"num_training_steps": 3, "decay_steps": 1, "lengths": LENGTHS},
    "monitoring": {
        "log_every": 1,
        "validate_every": 1,
        "validation_sequences": 2,
        "checkpoint_every": 2,
    },
    "datasets": {
        "train": {"num_sequences": 64, "length": LENGTH},
        "validation": {"num_sequences": 4, "length": LENGTH},
        "test": {"num_sequences": 4, "lengths": [LENGTH, 2 * LENGTH]},
        "sequence_length": LENGTH,
        "num_questions": {"train": 20, "validation": 5, "test": 5},
    },
    "corpora": {"sequence_length": LENGTH},
    "hub_corpora": {
        "sequence_length": LENGTH,
        "tokenizer": "bytes",  # others are on the hub
        "validation": {"share": 0.3},
        "test": {"share": 0.3},
    },
    "evaluation": {
        "lengths": [LENGTH, 2 * LENGTH],
        "num_sequences": 2,
        "num_mode_sequences": 1,
        "num_past_sequences": 8,
        "batch_size": 2,
        "context_length": LENGTH,
        "stride": LENGTH // 2,
        "piece_length": LENGTH,
        "max_tokens": 24,
        "num_streams": 2,
        **SEARCH,
    },
    "sweep": {
        "length": LENGTH,
        "num_sequences": 2,
        "batch_size": 2,
        "self_iterations": [1, 3],
        "tolerances": [0.3, 0.1],
        **SEARCH,
    },
    "benchmarks": SEARCH,
}
# Of these the defaults are large.
ADDED = {
    "evaluation": {"bootstrap_samples": 4, "num_shown_tokens": 4},
    "sweep": {"bootstrap_samples": 4},
    "benchmarks": {
        "bootstrap_samples": 4,
        "max_length": 64,
        "names": ["lambada_openai", "piqa"],  # all seven: tests/test_text_pipeline.py
    },
}


# Stories have no questions in their first words.
OF_STORIES = {"evaluation": {"num_stories": 2}, "sweep": {"length": 100}, "benchmarks": {}}
# All strings of a formal language, which have lengths and no length.
STRINGS = {
    "train": {"num_sequences": 64, "shortest": 4, "longest": LENGTH},
    "validation": {"num_sequences": 8, "shortest": 4, "longest": LENGTH},
    "test": {"num_sequences": 4, "shortest": LENGTH + 1, "longest": 2 * LENGTH},
}
# A statement of a trace takes several tokens.
STATEMENTS = {name: split | {"shortest": 1, "longest": 1} for name, split in STRINGS.items()}


def shrink(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of params.yaml with small sizes in place of its own, of few seeds."""
    small = {name: section for name, section in parameters.items() if name != "report"}
    for table in ("runs", "upcycled", "baselines", "matched"):
        small[table] = {name: _entry(entry) for name, entry in _two_seeds(parameters[table])}
    for table in ("datasets", "corpora", "hub_corpora"):
        small[table] = {n: _replaced(e, _sizes(table, e)) for n, e in parameters[table].items()}
    for section in ("evaluation", "sweep", "benchmarks"):
        small[section] = {n: _replaced(e, SIZES[section]) for n, e in parameters[section].items()}
        for name, part in small[section].items():
            if name == "catbabi":
                part |= OF_STORIES[section]
            elif name not in ("word_problem", "formal_language"):
                part |= ADDED[section]
    # Some differ in it alone.
    allowed = {name: e.get("max_steps") or 0 for name, e in parameters["benchmarks"].items()}
    for name in filter(allowed.get, allowed):
        rank = sum(each <= allowed[name] for each in {*allowed.values()} - {0})
        small["benchmarks"][name]["max_steps"] = min(rank, SEARCH["max_steps"])
    small["monitoring"] = _replaced(parameters["monitoring"], SIZES["monitoring"])
    return small | {"report": parameters["report"]}


def _sizes(table: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    if entry.get("kind") == "formal_language":
        is_trace = entry["language"] in ("swapped_cups", "variable_trace")
        return STATEMENTS if is_trace else STRINGS
    return SIZES[table]


def _two_seeds(entries: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield two of the entries that differ in their seed alone."""
    times = Counter()
    for name, entry in entries.items():
        match = entry.get("match") or {}
        alike = {"run": re.sub(r"_seed_\d+$", "", match.get("run", ""))}
        others = json.dumps({**entry, "seed": None, "match": match | alike}, sort_keys=True)
        times[others] += 1
        if times[others] <= 2:
            yield name, entry


def _entry(entry: Mapping[str, Any]) -> dict[str, Any]:
    sizes = {"model": MODEL} | {name: SIZES[name] for name in entry if name in SIZES}
    for name in ("bounded", "free", "training"):
        phase = entry.get(name, {})
        if phase.get("carry") == "passed" and phase.get("carry_steps") is None:
            sizes[name] = sizes[name] | {"lengths": WHOLE}  # a text goes on where they end
    return {
        name: _replaced(part, sizes[name]) if name in sizes else part
        for name, part in entry.items()
    }


def _replaced(section: Mapping[str, Any], sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Take the sizes of keys that a section has, one level down too; null stays null.

    But for a search: there null is a number that is known elsewhere.
    """
    found = dict(section)
    for name in section.keys() & sizes.keys():
        if isinstance(sizes[name], Mapping) and isinstance(section[name], Mapping):
            found[name] = {**section[name], **sizes[name]}
        elif section[name] is not None or name in SEARCH:
            found[name] = sizes[name]
    return found


def sentences(count: int, seed: int = 0) -> list[str]:
    """Return ``count`` sentences of forty words."""
    draw = random.Random(seed)
    return [" ".join(draw.choice(WORDS) for _ in range(40)) + "." for _ in range(count)]


def write_text(folder: Path, num_sentences: int = 8) -> None:
    """Write the files that presets on text of one's own ask for."""
    for seed, split in enumerate(("train", "validation", "test")):
        (folder / split).mkdir(parents=True)
        (folder / split / "text.txt").write_text("\n\n".join(sentences(num_sentences, seed)) + "\n")


def write_stories(folder: Path, num_stories: int = 2) -> None:
    """Write files of bAbI's twenty tasks, a few stories each."""
    folder.mkdir()
    for task in FAMILIES:
        for split in ("train", "valid", "test"):
            stories = generate(task, num_stories, 0, split)
            (folder / f"qa{task}_{split}.txt").write_text(render(stories))


def task_items() -> dict[str, dict[str, Any]]:
    """Return an item of each downstream task, with the fields of the hub's copies."""
    choices = {"text": ["a boat", "an oar"], "label": ["A", "B"]}
    item = {"id": "1", "question": "What floats?", "choices": choices, "answerKey": "A"}
    gap = {"sentence": "The boat hit the rock because _ was low.", "answer": "2"}
    open_book = {"id": "1", "question_stem": "Water", "answerKey": "B"}
    return {
        "lambada_openai": {"text": "the river was slow and the boat went down the river"},
        "hellaswag": {
            "ind": 1,
            "activity_label": "Rowing",
            "ctx_a": "A man sits in a boat.",
            "ctx_b": "he",
            "ctx": "A man sits in a boat. he",
            "endings": ["rows.", "flies.", "sleeps on.", "reads it."],
            "label": "0",
        },
        "piqa": {"goal": "To row", "sol1": "use an oar", "sol2": "use a hat", "label": 0},
        "arc_easy": item,
        "arc_challenge": item,
        "winogrande": {**gap, "option1": "the oar", "option2": "the water"},
        "openbookqa": {**open_book, "choices": choices},
    }


def write_tasks(folder: Path) -> None:
    """Write two items of each task."""
    folder.mkdir()
    for task, item in task_items().items():
        (folder / f"{task}.jsonl").write_text(2 * (json.dumps(item) + "\n"))
