"""Writing of word problems: their splits, which share no sequence.

What is written is said in `splits`, which opens it.
"""

import contextlib
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from implicit_models.bars import Bar, bar
from implicit_models.data.folders import written_whole
from implicit_models.data.manifests import write_manifest
from implicit_models.parameters import ParameterError
from implicit_models.problems.word_problem.data import groups
from implicit_models.problems.word_problem.data.sequences import (
    ReservedSequences,
    prefix_products,
    sample_inputs,
)
from implicit_models.problems.word_problem.data.splits import (
    ARRAYS,
    FORMAT_VERSION,
    METADATA,
    file_name,
    name_of_test,
)
from implicit_models.problems.word_problem.parameters import WordProblemParameters

_SPLIT = re.compile(r"train|validation|test(_p[^_]+)?_L\d+")
_MAX_ROUNDS = 100  # of drawing again what another split already holds


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """One split before it is drawn."""

    name: str
    stream: tuple[int, ...]
    num_sequences: int
    length: int
    identity_probability: float


def write_splits(parameters: WordProblemParameters, directory: Path) -> dict[str, Any]:
    """Draw a word problem and write its splits.

    No sequence is shared between train, validation and test: a sequence that is a prefix of one
    of another split, or has one as its prefix, is drawn again. Tests are drawn first, then the
    validation split, then the training split, whose distribution is therefore the one asked for
    given that it contains nothing of the others. Within a split, and between tests, sequences may
    repeat. Every split has its own stream of random numbers, seeded by the data set's seed, the
    kind of split, the length, and of a further test its probability.

    Files appear under their names only when all are complete, the metadata last.

    Returns
    -------
    dict
        The metadata, as written.

    Raises
    ------
    ParameterError
        If the splits cannot be kept apart, because there are too few sequences of such a length.
    """
    with written_whole(Path(directory), METADATA, _is_split) as partial:
        metadata = _write_all(parameters, partial)
    return metadata


def _is_split(name: str) -> bool:
    return _SPLIT.fullmatch(name) is not None


def _write_all(parameters: WordProblemParameters, folder: Path) -> dict[str, Any]:
    table = groups.multiplication_table(parameters.group)
    reserved = ReservedSequences()
    splits: dict[str, Any] = {}
    batches = _plans(parameters)
    total = sum(plan.num_sequences * plan.length for batch in batches for plan in batch)
    with bar(total, "word problem", "token") as counted:
        for batch in batches:
            for plan in batch:
                splits[plan.name] = _write_split(plan, parameters, table, reserved, folder, counted)
            if batch is not batches[-1]:
                for plan in batch:
                    reserved.add(np.load(folder / file_name(plan.name, "inputs")))
    metadata = {
        "format_version": FORMAT_VERSION,
        "kind": parameters.kind,
        "group": parameters.group,
        "vocabulary_size": len(table),
        "table_digest": groups.table_digest(table),
        "dtype": table.dtype.name,
        "identity_probability": parameters.identity_probability,
        "monoid_sampling": parameters.monoid_sampling,
        "seed": parameters.seed,
        "splits": splits,
    }
    write_manifest(folder / METADATA, metadata)
    return metadata


def _plans(parameters: WordProblemParameters) -> list[list[_Plan]]:
    """Plan all splits in the order in which they are drawn: tests, validation, train."""
    train, validation, test = parameters.train, parameters.validation, parameters.test
    first, *further = parameters.tested_probabilities
    tests = [
        _Plan(
            name=name_of_test(length, each),
            stream=(2,) if each is None else (4, int(np.float64(each).view(np.uint64))),
            num_sequences=test.num_sequences_of(length),
            length=length,
            identity_probability=first if each is None else each,
        )
        for each in (None, *further)
        for length in test.lengths
    ]
    others = [
        [
            _Plan(
                name=name,
                stream=stream,
                num_sequences=split.num_sequences,
                length=split.length,
                identity_probability=parameters.identity_probability,
            )
        ]
        for name, stream, split in (("validation", (1,), validation), ("train", (0,), train))
    ]
    return [tests, *others]


def _write_split(
    plan: _Plan,
    parameters: WordProblemParameters,
    table: np.ndarray,
    reserved: ReservedSequences,
    folder: Path,
    counted: Bar,
) -> dict[str, Any]:
    """Draw one split block by block; returns its entry of the metadata."""
    generator = np.random.default_rng([parameters.seed, *plan.stream, plan.length])
    shape = plan.num_sequences, plan.length
    (folder / plan.name).mkdir()
    header = {
        "descr": np.lib.format.dtype_to_descr(table.dtype),
        "fortran_order": False,
        "shape": shape,
    }
    digests = {kind: hashlib.sha256() for kind in ARRAYS}
    num_redrawn = 0
    rows = min(4096, max(256, 2**24 // plan.length))
    with contextlib.ExitStack() as stack:
        # Not memory-mapped: a full disk would be no error there, but the end of the process.
        files = {
            kind: stack.enter_context((folder / file_name(plan.name, kind)).open("wb"))
            for kind in ARRAYS
        }
        for file in files.values():
            np.lib.format.write_array_header_1_0(file, header)
        for start in range(0, plan.num_sequences, rows):
            num_rows = min(rows, plan.num_sequences - start)
            inputs, redrawn = _draw(generator, plan, parameters, num_rows, reserved)
            num_redrawn += redrawn
            for kind, array in (("inputs", inputs), ("labels", prefix_products(table, inputs))):
                written = np.ascontiguousarray(array, dtype=table.dtype)
                files[kind].write(written.data)
                digests[kind].update(written.data)
            counted.update(inputs.size)
    return {
        "num_sequences": plan.num_sequences,
        "length": plan.length,
        "identity_probability": plan.identity_probability,
        "num_redrawn": num_redrawn,
        **{f"{kind}_digest": digest.hexdigest() for kind, digest in digests.items()},
    }


def _draw(
    generator: np.random.Generator,
    plan: _Plan,
    parameters: WordProblemParameters,
    num_sequences: int,
    reserved: ReservedSequences,
) -> tuple[np.ndarray, int]:
    """Draw sequences that are not reserved; returns them and how many draws were refused."""

    def sample(num_sequences: int) -> np.ndarray:
        return sample_inputs(
            generator,
            groups.parse(parameters.group),
            num_sequences=num_sequences,
            length=plan.length,
            identity_probability=plan.identity_probability,
            monoid_sampling=parameters.monoid_sampling,
        )

    inputs = sample(num_sequences)
    refused = np.flatnonzero(reserved.shared(inputs))
    num_redrawn = 0
    for _ in range(_MAX_ROUNDS):
        if not len(refused):
            return inputs, num_redrawn
        num_redrawn += len(refused)
        again = sample(len(refused))
        inputs[refused] = again
        refused = refused[reserved.shared(again)]
    raise ParameterError(
        f"{plan.name}.length = {plan.length} is too short: nearly every {plan.name} sequence drawn "
        "is already, whole or as a prefix, in another split "
        f"({parameters.group}, identity probability {plan.identity_probability}); train, "
        "validation and test must not share sequences: raise the shortest length, lower "
        "num_sequences of test and validation, or lower identity_probability"
    )
