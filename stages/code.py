"""Check all of params.yaml, and note which code the results of each entry depend on.

DVC compares bytes, and folders as a whole. So the stages of entries depend on files that this one
writes: digests of the code that can change their results. They stay the same where a comment, a
docstring, or the code of another kind of problem or family changes.
"""

import logging
from pathlib import Path

from implicit_models.parameters import TABLES, read_content
from implicit_models.parameters.structure import check_interpolations
from stages.check import check_file, refuse
from stages.code_dependencies import REPORT, digests, own_settings, roots
from stages.common import RESULTS, own_folder, run_stage, write_text

log = logging.getLogger(__name__)

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
    findings = check_file()
    refuse(findings)
    for finding in findings:  # with which it can run
        log.warning("%s: %s", finding.level, finding.line)
    own = own_settings(content)
    for path, modules in roots(content).items():
        found = digests(modules, of_report=path == REPORT) | own.get(path, {})
        write_text(CODE / path, "".join(f"{found[each]}  {each}\n" for each in found))


_ROLES = ("prepare", "train", "evaluate", "sweep")

if __name__ == "__main__":
    run_stage(main)
