"""Draw and write the splits of a data set, an entry of ``datasets``."""

from pathlib import Path

from implicit_models.data.parameters import DatasetParameters
from implicit_models.parameters import read_section
from stages.common import run_stage


def main(name: str) -> None:
    """Write ``data/NAME``."""
    parameters = read_section(f"datasets.{name}", DatasetParameters)

    from implicit_models.data.word_problems import write_splits

    write_splits(parameters, Path("data", name))


if __name__ == "__main__":
    run_stage(main, "datasets")
