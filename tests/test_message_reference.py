"""docs/troubleshooting.md has every message of the code."""

from scripts import message_reference
from tests.repositories import ROOT


def test_the_page_is_up_to_date():
    assert (ROOT / "docs" / "troubleshooting.md").read_text() == message_reference.reference(), (
        "`python scripts/message_reference.py` writes it"
    )


def test_messages_are_found_and_what_is_filled_in_has_a_name():
    text = message_reference.reference()
    assert text.count("\n- ") > 300
    assert "- num\\_heads is NUM HEADS; it must divide d\\_model = D MODEL" in text
    assert text.count("SOMETHING") < 10
