"""Documents from a data set on the Hugging Face hub, streamed: nothing of it is kept on disk."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from implicit_models.problems.text.data.documents import RecordError, RecordReader, UnusableError
from implicit_models.problems.text.data.shards import CorpusError
from implicit_models.problems.text.data.sources import FileRange, Omitted, Record, Unit
from implicit_models.problems.text.parameters import HubCorpusParameters

if TYPE_CHECKING:
    from datasets import IterableDataset


@dataclass(frozen=True, kw_only=True)
class HubSource:
    """The shards of a data set's split, which are files on the hub.

    Attributes
    ----------
    name, revision
        Of the data set, and the commit that is read, whatever the hub holds by now.
    dataset
        The split, opened; it is sent to other processes as it is.
    """

    name: str
    configuration: str | None
    split: str
    revision: str
    dataset: "IterableDataset"
    reader: RecordReader
    skips_unusable: bool

    def units(self, unit_bytes: int) -> list[Unit]:
        """Make a unit of every shard, however large."""
        return [
            Unit(number=index, split="train", ranges=(FileRange(name=f"shard_{index:05d}"),))
            for index in range(self.dataset.num_shards)
        ]

    def read(self, file_range: FileRange, after: int) -> Iterator[Record]:
        """Read what follows the first ``after`` rows of a shard.

        Raises
        ------
        CorpusError
            If the hub stops giving, or a row is no document; names data set, shard and row.
        """
        domain = self.name.rpartition("/")[2]
        for number, row in enumerate(self._rows(file_range, after), after + 1):
            try:
                yield number, self.reader.fields(row, domain)
            except UnusableError as error:
                if not self.skips_unusable:
                    raise CorpusError(f"{self.place(file_range, number)}: {error}") from None
                yield number, Omitted.UNUSABLE
            except RecordError as error:
                raise CorpusError(f"{self.place(file_range, number)}: {error}") from None

    def place(self, file_range: FileRange, number: int) -> str:
        """Return where a row is: data set, shard and number of the row."""
        return f"{self.name}, {file_range.name}:{number}"

    def identity(self) -> Any:
        """Return what the rows and their order depend on: data set, commit and number of shards."""
        return [
            self.name,
            self.configuration,
            self.split,
            self.revision,
            self.dataset.num_shards,
        ]

    def description(self) -> dict[str, Any]:
        """Return what was read, for the manifest."""
        return {
            "configuration": self.configuration,
            "split": self.split,
            "revision": self.revision,
        }

    def _rows(self, file_range: FileRange, after: int) -> Iterator[dict[str, Any]]:
        index = int(file_range.name.rpartition("_")[2])
        shard = self.dataset.shard(num_shards=self.dataset.num_shards, index=index)
        rows = iter(shard.skip(after) if after else shard)
        number = after
        while True:
            try:
                row = next(rows, None)
            except Exception as error:  # of the network, the hub, and every reader of a format
                raise CorpusError(
                    f"{self.name}, {file_range.name}: cannot be read on after row {number} "
                    f"({_reason(error)}); started again, `dvc repro` goes on from what is finished"
                ) from None
            if row is None:
                return
            number += 1
            yield row


def open_hub_source(parameters: HubCorpusParameters, max_bytes: int) -> HubSource:
    """Find a data set on the hub and the files of its split.

    Raises
    ------
    CorpusError
        If it cannot be had: there is none of this name, or the hub cannot be reached.
    """
    name, _, revision = parameters.source.partition("@")
    try:
        revision = resolve_revision(name, revision or None)
        dataset = _open(name, parameters, revision)
    except Exception as error:  # of the hub, of the network, and of what the data set is made of
        raise CorpusError(
            f"source = {parameters.source!r}: the data set cannot be had from the Hugging Face hub "
            f"({_reason(error)}); allowed is OWNER/NAME or OWNER/NAME@REVISION, with the "
            "configuration and the split that it has; files that are here already are entries of "
            "corpora"
        ) from None
    return HubSource(
        name=name,
        configuration=parameters.configuration,
        split=parameters.split,
        revision=revision,
        dataset=dataset,
        reader=RecordReader(
            text_field=parameters.text_field,
            domain_field=parameters.domain_field,
            max_bytes=max_bytes,
        ),
        skips_unusable=parameters.unusable_documents == "skip",
    )


def resolve_revision(name: str, revision: str | None) -> str:
    """Ask the hub which commit a revision is now, so that all processes read the same one."""
    from huggingface_hub import HfApi

    commit = HfApi().dataset_info(name, revision=revision, timeout=30).sha
    if commit is None:
        raise ValueError("the hub names no commit")
    return commit


def _open(name: str, parameters: HubCorpusParameters, revision: str) -> "IterableDataset":
    from datasets import IterableDataset, load_dataset  # takes a second; local files do without

    dataset = load_dataset(
        name,
        parameters.configuration,
        split=parameters.split,
        revision=revision,
        streaming=True,
    )
    if not isinstance(dataset, IterableDataset):
        raise TypeError(f"{type(dataset).__name__} is no stream of rows")
    return dataset


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text[:300] or type(error).__name__
