"""Write a text corpus: which documents there are, where each belongs, and its tokens.

What is written is described, and read, in `corpora`.
"""

import contextlib
import fcntl
import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from implicit_models.bars import bar
from implicit_models.code_digest import code_digests
from implicit_models.data.folders import partial_folder, take_place
from implicit_models.data.manifests import write_manifest
from implicit_models.files import checksum
from implicit_models.parameters import ParameterError, digest
from implicit_models.problems.text.data.document_index import DOCUMENTS, NAMES
from implicit_models.problems.text.data.finding import unread
from implicit_models.problems.text.data.joining import JoinedSplit, join_split
from implicit_models.problems.text.data.local_source import open_local_source
from implicit_models.problems.text.data.processes import each, num_processes
from implicit_models.problems.text.data.shards import CorpusError
from implicit_models.problems.text.data.sources import UNIT_BYTES, Source, Unit
from implicit_models.problems.text.data.splitting import SPLITS, ReservedTexts
from implicit_models.problems.text.data.tokenisation import (
    CONFIGURATION_FILE,
    TOKENIZER_FILE,
    TextTokenizer,
    load_tokenizer,
)
from implicit_models.problems.text.data.unit_writing import (
    DIGESTS_FILE,
    Part,
    UnitWriter,
    finished_parts,
    is_finished,
    unit_folder,
)
from implicit_models.problems.text.parameters import (
    CorpusParameters,
    HeldOutParameters,
    HubCorpusParameters,
)

FORMAT_VERSION = 3
MANIFEST = "manifest.json"
SPLIT_MANIFEST = "split.json"

log = logging.getLogger(__name__)


def write_corpus(
    parameters: CorpusParameters,
    directory: Path,
    *,
    unfinished: Path | None = None,
    processes: int | None = None,
    unit_bytes: int = UNIT_BYTES,
) -> dict[str, Any]:
    """Tokenise the documents of a source and write the splits that they fall into.

    Documents of the files named for a test or validation split belong to it; copies of the very
    same text in files that are read after them, those of the test first, are left out. Of the
    documents that remain, a digest of seed and text picks the held-out shares; what is left is the
    training split. So no text is in two splits, and a document stays where it is when others come
    or go. A split that is not asked for, or a training
    split for which nothing is left, is not written.

    The files are the same whatever the number of processes, and appear under their names only
    when all are complete, the manifest last.

    Parameters
    ----------
    unfinished
        A folder outside ``directory`` where the work is kept until it is complete: interrupted, it
        goes on from there, as long as parameters, source and code are the same. Without it an
        interruption loses everything.
    processes
        How many take part; by default what `processes.num_processes` says.
    unit_bytes
        Of text that a process takes at a time, about; at most so much is lost with it.

    Returns
    -------
    dict
        The manifest, as written.

    Raises
    ------
    CorpusError
        If the source is missing, holds no documents, or has one that cannot be read; or the disk
        is full.
    ParameterError
        If a split comes out empty or too short for one sequence, or a pattern names no file.
    TokenizerError
        If the tokenizer cannot be found, or has no end-of-text token.
    FolderBusyError
        If another process is writing the same folder.
    """
    processes = num_processes() if processes is None else processes
    tokenizer = load_tokenizer(parameters.tokenizer)
    tokenizer.end_of_text  # noqa: B018  # there has to be one, which is seen before hours of work
    source = open_source(parameters, tokenizer)
    directory = Path(directory)
    with partial_folder(directory) as partial:
        identity = _identity(parameters, source, tokenizer, unit_bytes)
        with _work_folder((unfinished or partial / "work") / identity[:16]) as work:
            units = source.units(unit_bytes)
            _write_units(parameters, source, tokenizer, units, work, processes, unit_bytes)
            found = [(unit, finished_parts(unit_folder(work, unit))) for unit in units]
            complete = partial / "complete"
            complete.mkdir()
            splits = _join(parameters, tokenizer, found, complete)
            manifest = _write_manifests(parameters, tokenizer, source, found, splits, complete)
            take_place(complete, directory, MANIFEST, SPLITS.__contains__)
            shutil.rmtree(work)
    if manifest["num_unusable_documents"]:
        log.warning(
            "%s: %d documents of %s were left out: empty, longer than %d bytes, no text, or "
            "of no domain",
            directory,
            manifest["num_unusable_documents"],
            parameters.source,
            tokenizer.max_bytes,
        )
    if manifest["num_copies_of_held_out"]:
        log.warning(
            "%s: %d documents of %s were left out: copies of documents in files that are named for "
            "the test or the validation",
            *(directory, manifest["num_copies_of_held_out"], parameters.source),
        )
    return manifest


def open_source(parameters: CorpusParameters, tokenizer: TextTokenizer) -> Source:
    """Find the documents of a corpus, in files or on the hub.

    Raises
    ------
    CorpusError, ParameterError
        If there are none, or they cannot be reached.
    """
    if isinstance(parameters, HubCorpusParameters):
        from implicit_models.problems.text.data.hub_source import open_hub_source

        return open_hub_source(parameters, tokenizer.max_bytes)
    source = Path(parameters.source).expanduser()
    if left_out := unread(source, parameters.tokenizer):
        log.warning("%s: not everything there is read; left out: %s", source, left_out)
    return open_local_source(parameters, tokenizer.max_bytes)


def _identity(
    parameters: CorpusParameters, source: Source, tokenizer: TextTokenizer, unit_bytes: int
) -> str:
    """Digest everything that the units depend on."""
    return digest(
        parameters.replace(sequence_length=1),  # which no token depends on
        source.identity(),
        tokenizer.digest,
        tokenizers.__version__,
        unit_bytes,
        code_digests(Path(__file__).parent),
    )


@contextlib.contextmanager
def _work_folder(folder: Path) -> Iterator[Path]:
    """Yield a folder that no other process has, and that stays when something goes wrong."""
    root = folder.parent
    for other in sorted(root.glob("*/")):
        if other != folder:
            log.info(
                "%s is left by a corpus of other parameters, files or code, and is continued if "
                "they return; delete it with: rm -r %s",
                other,
                other,
            )
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CorpusError(
                f"{folder}: another process is writing this corpus; wait for its end, or end it"
            ) from None
        yield folder
    with contextlib.suppress(OSError):  # which is not empty where other work was left
        root.rmdir()


def _write_units(
    parameters: CorpusParameters,
    source: Source,
    tokenizer: TextTokenizer,
    units: Sequence[Unit],
    work: Path,
    processes: int,
    unit_bytes: int,
) -> None:
    """Tokenise all units; those named for a split come first, and reserve their texts for it."""
    total = sum(unit.num_bytes for unit in units)
    with bar(total or len(units), "corpus", "byte" if total else "shard") as counted:

        def progress(num_tokens: int) -> None:
            counted.note(tokens=f"{num_tokens / 1e6:,.1f}M")

        for split in ("test", "validation", "train"):
            named = [unit for unit in units if unit.split == split]
            left = [u for u in named if not is_finished(finished_parts(unit_folder(work, u)))]
            size = sum(unit.num_bytes if total else 1 for unit in named)
            counted.update(size - sum(unit.num_bytes if total else 1 for unit in left))
            reserved = ReservedTexts(work / "reserved")
            writer = UnitWriter(
                source=source,
                tokenizer=tokenizer,
                parameters=parameters,
                folder=work,
                reserved=reserved,
                part_bytes=unit_bytes,
            )
            for unit in each(writer, left, processes, progress):
                counted.update(unit.num_bytes if total else 1)
            if split != "train" and named:
                parts = (part for u in named for part in finished_parts(unit_folder(work, u)))
                reserved.write(split, (np.load(part.folder / DIGESTS_FILE) for part in parts))


def _join(
    parameters: CorpusParameters,
    tokenizer: TextTokenizer,
    units: Sequence[tuple[Unit, Sequence[Part]]],
    folder: Path,
) -> dict[str, JoinedSplit]:
    """Write the splits, once it is known that they can be used."""
    num_documents: dict[str, int] = {}
    num_tokens: dict[str, int] = {}
    for _, parts in units:
        for part in parts:
            for name, split in part.content["splits"].items():
                num_documents[name] = num_documents.get(name, 0) + split["num_documents"]
                num_tokens[name] = num_tokens.get(name, 0) + split["num_tokens"]
    total = sum(num_documents.values())
    if not total:
        raise CorpusError(
            f"{parameters.source}: holds no documents; all there is has no text: name other "
            "files, or another text_field"
        )
    for name in ("validation", "test"):
        held_out: HeldOutParameters = getattr(parameters, name)
        if held_out.is_asked_for and name not in num_documents:
            raise ParameterError(_came_out_empty(name, held_out, total))
    for name in num_tokens:
        if num_tokens[name] <= parameters.sequence_length:
            raise ParameterError(
                f"sequence_length = {parameters.sequence_length} is more than the {name} split "
                f"has: {num_tokens[name]} tokens in {num_documents[name]} documents, one of which "
                "is the last label; lower it, or give the split more text"
            )
    names = [name for name in SPLITS if name in num_documents]
    return {name: join_split(name, units, folder / name, tokenizer.dtype) for name in names}


def _came_out_empty(name: str, split: HeldOutParameters, num_documents: int) -> str:
    if split.files:  # all of what its files hold was named for the test before
        return f"{name}.files: every document there is one of the test split's as well; name others"
    return (
        f"{name}.share = {split.share} of {num_documents} documents came out as none; raise it, "
        f"name files in {name}.files, divide the text into more documents, or change seed"
    )


def _write_manifests(
    parameters: CorpusParameters,
    tokenizer: TextTokenizer,
    source: Source,
    units: Sequence[tuple[Unit, Sequence[Part]]],
    splits: Mapping[str, JoinedSplit],
    folder: Path,
) -> dict[str, Any]:
    tokenizer.save(folder)
    shared = {
        "format_version": FORMAT_VERSION,
        "tokenizer_digest": tokenizer.digest,
        "vocabulary_size": tokenizer.vocabulary_size,
        "end_of_text": tokenizer.end_of_text,
        "dtype": tokenizer.dtype.name,
        "sequence_length": parameters.sequence_length,
    }
    counts = {}
    for name, split in splits.items():
        for file in (TOKENIZER_FILE, CONFIGURATION_FILE):
            shutil.copyfile(folder / file, folder / name / file)
        counts[name] = {
            "num_documents": split.num_documents,
            "num_tokens": split.num_tokens,
            "num_bytes": split.num_bytes,
        }
        own = {
            "documents_sha256": checksum(folder / name / DOCUMENTS),
            "names_sha256": checksum(folder / name / NAMES),
            "tokenizer_sha256": checksum(folder / TOKENIZER_FILE),
            "shards": split.shards,
        }
        write_manifest(folder / name / SPLIT_MANIFEST, shared | counts[name] | own)
    unusable, copies = (
        sum(part.content[key] for _, parts in units for part in parts)
        for key in ("num_unusable", "num_copies")
    )
    manifest = shared | {
        "source": parameters.source,
        "text_field": parameters.text_field,
        "domain_field": parameters.domain_field,
        "tokenizer": parameters.tokenizer,
        "seed": parameters.seed,
        "splits": counts,
        "num_unusable_documents": unusable,
        "num_copies_of_held_out": copies,
        **source.description(),
    }
    write_manifest(folder / MANIFEST, manifest)
    return manifest
