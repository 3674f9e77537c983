"""Strict reading of parameters: a section of a YAML file becomes a frozen object or an error.

This package is the bottom of the library: it imports nothing else of ours and never torch.
"""

from implicit_models.parameters.digests import digest, without_tests
from implicit_models.parameters.errors import MissingKeyError, ParameterError, check_all, first_of
from implicit_models.parameters.files import (
    changed_since_read,
    forget_read,
    read_content,
    read_names,
    read_section,
)
from implicit_models.parameters.names import TABLES, check_names
from implicit_models.parameters.sections import Chosen, Distinct, Parameters

__all__ = [
    "TABLES",
    "Chosen",
    "Distinct",
    "MissingKeyError",
    "ParameterError",
    "Parameters",
    "changed_since_read",
    "check_all",
    "check_names",
    "digest",
    "first_of",
    "forget_read",
    "read_content",
    "read_names",
    "read_section",
    "without_tests",
]
