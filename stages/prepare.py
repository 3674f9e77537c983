"""Write the data of an entry of ``datasets``, ``corpora``, ``tasks``, or of the hub's tables.

What was interrupted goes on from what it has finished, where a problem can.
"""

from pathlib import Path

from implicit_models.files import naming
from implicit_models.problems.problem import data_of, parameters_of
from implicit_models.problems.table import TABLES
from stages.common import find_table, own_folder, read_data, run_stage

UNFINISHED = Path("checkpoints", "data")  # outside DVC's outputs, which it deletes first


def main(name: str) -> None:
    """Write ``data/NAME`` and read it back."""
    data = read_data(find_table(name, tuple(TABLES)), name)
    parameters_of(data.kind).check_entry(data.key, data.parameters)
    folder = own_folder("data", name)
    with naming(folder):
        data_of(data.kind).prepare(data.parameters, folder, UNFINISHED / name)


if __name__ == "__main__":
    run_stage(main, *TABLES)
