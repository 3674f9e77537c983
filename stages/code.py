"""Check all of params.yaml, and note which code the results of each entry depend on.

DVC compares bytes, and folders as a whole. So the stages of entries depend on files that this one
writes: digests of the code that can change their results. They stay the same where a comment, a
docstring, or the code of another kind of problem or family changes.
"""

import logging
from collections.abc import Iterable
from pathlib import Path

from implicit_models.parameters import TABLES, ParameterError, read_content
from implicit_models.parameters.structure import check_interpolations, load_plain
from stages.check import check_file, refuse
from stages.code_dependencies import REPORT, digests, own_settings, roots
from stages.common import RESULTS, own_folder, run_stage, write_text

log = logging.getLogger(__name__)

CODE = Path("code")
CONFIGURATION = Path("conf")
DVC_FILE = Path("dvc.yaml")


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
        found = digests(modules, of_report=path == REPORT)
        _check_watched(found)
        found |= own.get(path, {})
        write_text(CODE / path, "".join(f"{found[each]}  {each}\n" for each in found))


def _check_watched(files: Iterable[str]) -> None:
    """See that DVC runs this stage after an edit of any of the files.

    Raises
    ------
    ParameterError
        Where the stage does not depend on one, in dvc.yaml.
    """
    if not DVC_FILE.exists():
        return
    watched = load_plain(DVC_FILE.read_bytes())["stages"]["code"]["deps"]
    for file in files:
        if not any(file == each or file.startswith(f"{each}/") for each in watched):
            folder = file.partition("/")[0]
            raise ParameterError(
                f"{DVC_FILE}: stages.code.deps = {watched} is not allowed; results depend on "
                f"{file}, an edit of which would not be noticed: add {folder}"
            )


_ROLES = ("prepare", "train", "evaluate", "sweep")

if __name__ == "__main__":
    run_stage(main)
