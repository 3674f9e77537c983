"""What command lines have in common: those of stages, and of generate, serve and plan."""

import argparse
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from implicit_models.parameters import ParameterError


class Parser(argparse.ArgumentParser):
    """A parser that says in one line what is wrong and what is right."""

    def error(self, message: str) -> NoReturn:
        """Print it, and exit."""
        print(f"error: {message}; {self.format_usage().strip()}", file=sys.stderr)
        sys.exit(2)


def model_parser(module: str, description: str | None) -> argparse.ArgumentParser:
    """Return a parser of the command line of a module, with the model that it takes first."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {module}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "model",
        type=_folder_or_name,
        help="the folder of a model, or its name on Hugging Face's hub",
    )
    return parser


@contextlib.contextmanager
def mistakes(*others: type[Exception]) -> Iterator[None]:
    """Turn a mistake of the user into one line on stderr and exit status 2.

    Parameters
    ----------
    others
        What is one, beside errors of parameters.
    """
    try:
        yield
    except (ParameterError, *others) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)


def _folder_or_name(text: str) -> str:
    folder = Path(text)
    return str(folder) if folder.is_dir() else text
