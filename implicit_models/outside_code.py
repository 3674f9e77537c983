"""Digests of the code of kinds of problems whose packages lie outside the library."""

from implicit_models.code_digest import LIBRARY, file_digests
from implicit_models.code_imports import ROOT, needed_files


def outside_digests(package: str, role: str) -> dict[str, str]:
    """Return the digest of each file outside the library that results need, by its path.

    Parameters
    ----------
    package
        Of the kind of problem; of one in the library nothing lies outside.
    role
        What the results come from, its ``data`` or its ``evaluation``.
    """
    if package.partition(".")[0] == LIBRARY.name:
        return {}
    modules = (f"{package}.parameters", f"{package}.{role}.interface")
    return file_digests(ROOT, needed_files(modules, without=(f"{LIBRARY.name}/",)))
