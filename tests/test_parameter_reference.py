"""docs/parameters.md is what the classes say, and says something of every key."""

import re

from implicit_models.training.parameters import FreeParameters
from scripts import parameter_reference
from tests.repositories import ROOT

PAGE = ROOT / "docs" / "parameters.md"


def test_the_page_is_up_to_date():
    assert PAGE.read_text() == parameter_reference.reference(), (
        "`python scripts/parameter_reference.py` writes it"
    )


def test_every_key_is_described():
    rows = re.findall(r"(?m)^\| `(\w+)` \|.*\| (.*) \|$", PAGE.read_text())
    assert len(rows) > 300
    assert [key for key, text in rows if len(text) < 8] == []


def test_what_is_said_elsewhere_is_found_there():
    said, notes = parameter_reference.descriptions(FreeParameters)
    assert said["tolerance"].startswith("Relative residual")
    assert any("`tolerance`" in note and "the first three are needed" in note for note in notes)
