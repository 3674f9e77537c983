"""docs/troubleshooting.md has every message of the code."""

import re

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


def test_messages_have_words_of_their_own():
    messages = [line for line in message_reference.reference().splitlines() if line[:2] == "- "]
    assert not [each for each in messages if not re.search(r"[a-z]{2}", each)]
    assert "- PREFECT\\_API\\_URL= PLACE answers STATUS; REMEDY" in messages
