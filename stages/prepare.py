"""Draw and write the splits of a data set, an entry of ``datasets``."""

from pathlib import Path

from implicit_models.data.parameters import DatasetParameters
from implicit_models.parameters import read_section
from stages.common import run_stage


def main(name: str) -> None:
    """Write ``data/NAME`` and read it back."""
    parameters = read_section(f"datasets.{name}", DatasetParameters)

    from implicit_models.data.word_problems import open_splits, write_splits

    directory = Path("data", name)
    write_splits(parameters, directory)
    open_splits(directory).verify()


if __name__ == "__main__":
    run_stage(main, "datasets")
