"""Check the names of all entries of params.yaml, before DVC empties the folders of any."""

from stages.common import NAMES_CHECKED, run_stage, write_text


def main(_: str) -> None:
    """Write the file that all stages of entries wait for; its content is always the same.

    Whoever runs a stage reads params.yaml, and with it checks the names; but DVC deletes a stage's
    outputs before it runs it, and follows a name such as ``../..`` out of the repository.
    """
    write_text(NAMES_CHECKED, "every name of an entry of params.yaml is one of a folder\n")


if __name__ == "__main__":
    run_stage(main)
