"""Check the names in params.yaml, and note which code the results of each entry depend on.

DVC compares bytes, and folders as a whole. So the stages of entries depend on files that this one
writes: digests of the code that can change their results. They stay the same where a comment, a
docstring, or the code of another kind of problem or family changes.
"""

from pathlib import Path

from implicit_models.parameters import TABLES, read_content
from implicit_models.parameters.structure import check_interpolations
from stages.code_dependencies import REPORT, digests, roots
from stages.common import RESULTS, own_folder, read_dataset, run_stage, write_text
from stages.common import TABLES as MODEL_TABLES

CODE = Path("code")
CONFIGURATION = Path("conf")


def main(_: str) -> None:
    """Write ``code/ROLE/NAME`` for each role of each entry, and ``code/report``.

    Whoever runs a stage reads params.yaml, and with it checks the names; but DVC deletes a stage's
    outputs before it runs it, and follows a name such as ``../..``, or a link, out of the
    repository.
    """
    content = read_content()
    for file in sorted(CONFIGURATION.rglob("*.yaml")):  # DVC may have composed params.yaml of it
        check_interpolations(file.read_bytes(), file)
    for name in (name for table in TABLES for name in content.get(table) or ()):
        for root in ("data", "models", RESULTS / "runs", *(CODE / role for role in _ROLES)):
            own_folder(root, name)
    for table in MODEL_TABLES:
        for name, entry in (content.get(table) or {}).items():
            if isinstance(entry, dict) and "dataset" in entry:
                read_dataset(table, name)  # which is there
    for path, modules in roots(content).items():
        found = digests(modules, of_report=path == REPORT)
        write_text(CODE / path, "".join(f"{found[each]}  {each}\n" for each in found))


_ROLES = ("prepare", "train", "evaluate")

if __name__ == "__main__":
    run_stage(main)
