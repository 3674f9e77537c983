"""Addresses of tracking stores: what a spool may remember of one, and what MLflow is given.

Credentials stay in the environment. A spool holds the address without them, and who sends it
takes the environment's own address where that is of the same store.
"""

import importlib.util
import os
import re
from pathlib import Path

_SECRETS = (
    r"(?i)([?&](?:user(?:name)?|pass(?:word|wd)?|passfile|ssl(?:password|key)|token)=)[^&\s]*"
)


def destination_now(root: Path) -> str | None:
    """Return the tracking store to record in a spool: no credentials, no relative path.

    A relative SQLite file is one of the repository's: DVC may run the stage in a passing copy.

    None is the default store, wherever the repository will then be.
    """
    address = os.environ.get("MLFLOW_TRACKING_URI")
    if not address:
        return None
    if match := re.fullmatch(r"sqlite:///([^/].*)", address):
        return f"sqlite:///{root.absolute() / match[1]}"
    return without_credentials(address)


def address_of(destination: str | None, root: Path) -> str:
    """Return the address of a recorded store, with the environment's credentials for it."""
    if destination is None:
        return f"sqlite:///{default_database(root)}"
    if destination == destination_now(root) and not destination.startswith("sqlite:"):
        return _with_driver(os.environ["MLFLOW_TRACKING_URI"])
    return _with_driver(destination)


def _with_driver(address: str) -> str:
    """Name the driver of PostgreSQL that is installed, where an address leaves it open.

    SQLAlchemy 2.1 takes psycopg for it, those before it psycopg2.
    """
    if importlib.util.find_spec("psycopg") is None:
        return re.sub(r"^postgres(ql)?://", "postgresql+psycopg2://", address)
    return address


def default_database(root: Path) -> Path:
    """Return the SQLite file that is the store where the environment names none."""
    return root.absolute() / "mlflow.db"


def artifact_location(address: str, root: Path) -> str | None:
    """Return the place of an experiment's artifacts; None leaves it to a server.

    A database has none of its own: they lie beside an SQLite file, in the repository where it is
    another database, or where ``MLFLOW_DEFAULT_ARTIFACT_ROOT`` says, as for MLflow's server.
    """
    if not re.match(r"(sqlite|postgresql|mysql|mssql)\b", address):
        return None
    if chosen := os.environ.get("MLFLOW_DEFAULT_ARTIFACT_ROOT"):
        return chosen.rstrip("/")
    match = re.fullmatch(r"sqlite:///(/.*)", address)
    return str((Path(match[1]).parent if match else root.absolute()) / "mlartifacts")


def without_credentials(text: str) -> str:
    """Remove from the addresses in a text what may be a user's name, password or key.

    >>> without_credentials("postgresql://me:a@b@host:5432/mlflow?sslmode=require")
    'postgresql://host:5432/mlflow?sslmode=require'
    """
    return re.sub(_SECRETS, r"\1***", re.sub(r"(?<=:)//[^/\s]*@", "//", text))
