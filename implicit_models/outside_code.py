"""Digests of the code of kinds of problems whose packages lie outside the library."""

from implicit_models.code_digest import LIBRARY, file_digests, kinds_in_library
from implicit_models.code_imports import ROOT, needed_files


def outside_digests(package: str, role: str) -> dict[str, str]:
    """Return the digest of each file that results need and that a library's kind would not count.

    These are the files outside the library, and those of other kinds of problems that are imported.

    Parameters
    ----------
    package
        Of the kind of problem; one in the library has no such files.
    role
        What the results come from, its ``data`` or its ``evaluation``.
    """
    if package.partition(".")[0] == LIBRARY.name:
        return {}
    others = tuple(f"{LIBRARY.name}/{kind}/" for kind in kinds_in_library())
    needed = needed_files((f"{package}.parameters", f"{package}.{role}.interface"))
    own = (path for path in needed if not path.startswith(f"{LIBRARY.name}/"))
    borrowed = (path for path in needed if path.startswith(others))
    return file_digests(ROOT, [*own, *borrowed])
