"""Addresses of tracking stores: what a spool may remember of one, and what MLflow is given.

Credentials stay in the environment. A spool holds the address without them, and who sends it
takes the environment's own address where that is of the same store.
"""

import contextlib
import importlib.util
import os
import re
import socket
import urllib.parse
from collections.abc import Iterator, Mapping
from pathlib import Path

_SECRETS = re.compile(
    r"(?i)([?&](?:user(?:name)?|pass(?:word|wd)?|passfile|sslkey|[\w.-]*"
    r"(?:password|token|secret|signature|api_?key))=)[^&\s]*"
)
# A user's name; then perhaps a password, which may have anything in it, other than a port has.
_USER = r"(?<=:)//(?:[^/\s]*|[^\s/@:]*:(?!\d+(?:[/?#]|$)){any}*)@"
_IN_TEXT, _IN_ADDRESS = (re.compile(_USER.replace("{any}", each)) for each in (r"\S", "."))
_PORTS = {"postgresql": 5432, "postgres": 5432, "mysql": 3306, "mssql": 1433}
_CONNECT_SECONDS = 20  # as requests to servers have
_OF_STORES = ("MLFLOW_TRACKING_URI", "MLFLOW_DEFAULT_ARTIFACT_ROOT")
_CREDENTIALS = ("USERNAME", "PASSWORD", "TOKEN", "AUTH", "AWS_SIGV4", "CLIENT_CERT_PATH")


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
    return shown(address)


def stores_of(root: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return where stages of a repository track, as variables for a copy of it that will pass.

    Parameters
    ----------
    root
        The repository; it has the store where the environment names none.
    environment
        That the stages would have in the repository.
    """
    found = {name: environment[name] for name in _OF_STORES if environment.get(name)}
    found.setdefault("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db")
    return {name: seen_from(root, store) for name, store in found.items()}


def seen_from(root: Path, store: str) -> str:
    """Make an MLflow store that is a relative path one of the repository, not of a workspace."""
    match = re.fullmatch(r"(sqlite:///|file:|)(?!databricks)([^/:][^:]*)", store)
    return f"{match[1]}{root.resolve() / match[2]}" if match else store


def is_of_environment(destination: str | None, root: Path) -> bool:
    """Return whether the environment names a store, and its credentials may go there."""
    return destination is None or destination == destination_now(root)


@contextlib.contextmanager
def no_credentials() -> Iterator[None]:
    """Keep from MLflow what it would log in with, wherever it is sent."""
    names = [f"MLFLOW_TRACKING_{each}" for each in _CREDENTIALS]
    kept = {name: os.environ.pop(name) for name in names if name in os.environ}
    # Of nobody: where there are none, it takes those in the user's home.
    os.environ |= dict.fromkeys(names[:2], "nobody")
    try:
        yield
    finally:
        for name in names[:2]:
            os.environ.pop(name)
        os.environ |= kept


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


def bounded_database(address: str) -> str | None:
    """Return the address of a database's server with a bound to connecting; None for any other.

    Raises
    ------
    OSError
        Where nobody listens there.
    """
    parts = urllib.parse.urlsplit(address)
    kind = parts.scheme.partition("+")[0]
    if kind not in _PORTS:
        return None
    with contextlib.suppress(ValueError):  # a port or a host that it cannot tell: MLflow will
        if parts.hostname:
            where = parts.hostname, parts.port or _PORTS[kind]
            try:
                socket.create_connection(where, _CONNECT_SECONDS).close()
            except OSError as error:
                raise ConnectionError(f"{where[0]}:{where[1]} does not answer: {error}") from None
    if "connect_timeout" in parts.query or kind == "mssql":
        return address
    separator = "&" if parts.query else "?"
    return f"{address}{separator}connect_timeout={_CONNECT_SECONDS}"


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
    for name in ("MLFLOW_TRACKING_URI", "PREFECT_API_URL"):
        if address := os.environ.get(name):  # whatever is in it
            text = text.replace(address, shown(address))
    return _SECRETS.sub(r"\1***", _IN_TEXT.sub("//", text))


def shown(address: str) -> str:
    """Return an address without what may be a user's name, password or key.

    >>> shown("postgresql://me:a/b c@host/mlflow")
    'postgresql://host/mlflow'
    """
    return _SECRETS.sub(r"\1***", _IN_ADDRESS.sub("//", address))
