"""Check the names of all entries of params.yaml, before DVC empties the folders of any."""

from implicit_models.parameters import TABLES, read_content
from stages.common import NAMES_CHECKED, RESULTS, own_folder, run_stage, write_text


def main(_: str) -> None:
    """Write the file that all stages of entries wait for; its content is always the same.

    Whoever runs a stage reads params.yaml, and with it checks the names; but DVC deletes a stage's
    outputs before it runs it, and follows a name such as ``../..``, or a link, out of the
    repository.
    """
    content = read_content()
    for name in (name for table in TABLES for name in content.get(table) or ()):
        for root in ("data", "models", RESULTS / "runs"):
            own_folder(root, name)
    write_text(NAMES_CHECKED, "every name of an entry of params.yaml is one of a folder\n")


if __name__ == "__main__":
    run_stage(main)
