"""Write the data of an entry of ``datasets``, ``corpora``, ``tasks``, or of the hub's tables.

A corpus that was interrupted goes on from what it has finished.
"""

from pathlib import Path

from implicit_models.data.parameters import (
    CorpusParameters,
    DatasetParameters,
    HubCorpusParameters,
    TaskFilesParameters,
)
from implicit_models.parameters import ParameterError, read_section
from stages.common import find_table, own_folder, run_stage

TABLES = {
    "datasets": DatasetParameters,
    "corpora": CorpusParameters,
    "hub_corpora": HubCorpusParameters,
    "tasks": TaskFilesParameters,
    "hub_tasks": TaskFilesParameters,
}

UNFINISHED = Path("checkpoints", "corpora")  # outside DVC's outputs, which it deletes first


def main(name: str) -> None:
    """Write ``data/NAME`` and read it back."""
    table = find_table(name, tuple(TABLES))
    parameters = read_section(f"{table}.{name}", TABLES[table])
    if isinstance(parameters, TaskFilesParameters):
        _check_source(f"{table}.{name}.source", parameters.source, table == "hub_tasks")
    if isinstance(parameters, CorpusParameters):
        _check_tokenizer(f"{table}.{name}.tokenizer", parameters)
    directory = own_folder("data", name)
    if isinstance(parameters, DatasetParameters):
        from implicit_models.data.word_problems import open_splits, write_splits

        write_splits(parameters, directory)
        open_splits(directory).verify()
    elif isinstance(parameters, CorpusParameters):
        from implicit_models.data.corpora import open_corpus, write_corpus

        write_corpus(parameters, directory, unfinished=UNFINISHED / name)
        open_corpus(directory).verify()
    else:
        from implicit_models.data.task_files import open_tasks, write_tasks

        write_tasks(parameters, directory)
        open_tasks(directory)


def _check_tokenizer(key: str, parameters: CorpusParameters) -> None:
    """See that a tokenizer's file lies where DVC watches it."""
    tokenizer, source = Path(parameters.tokenizer).resolve(), Path(parameters.source).resolve()
    is_file = parameters.tokenizer != "bytes" and tokenizer.exists()
    if is_file and isinstance(parameters, HubCorpusParameters):
        raise ParameterError(
            f"{key} = {parameters.tokenizer!r} is not allowed; allowed is 'bytes' or a name on the "
            "Hugging Face hub: DVC would not notice that a file changes"
        )
    if is_file and source not in (tokenizer, *tokenizer.parents):
        raise ParameterError(
            f"{key} = {parameters.tokenizer!r} is not allowed; allowed is a tokenizer.json inside "
            f"the source, {parameters.source}, where DVC notices that it changes, 'bytes', or a "
            "name on the Hugging Face hub: copy the file there"
        )


def _check_source(key: str, source: str, is_hubs: bool) -> None:
    if (source == "hub") is not is_hubs:
        allowed = "'hub', or nothing" if is_hubs else "a folder; the hub's are entries of hub_tasks"
        raise ParameterError(f"{key} = {source!r} is not allowed; allowed is {allowed}")


if __name__ == "__main__":
    run_stage(main, *TABLES)
