"""docs/troubleshooting.md has every message of the code."""

import ast
import itertools
import re
from functools import cache

from scripts import message_reference
from tests.repositories import ROOT


def test_the_page_is_up_to_date():
    assert (ROOT / "docs" / "troubleshooting.md").read_text() == page(), (
        "`python scripts/message_reference.py` writes it"
    )


@cache
def page() -> str:
    return message_reference.reference()


def messages() -> list[str]:
    lines = page().splitlines()
    return [line.removeprefix("- `` ").removesuffix(" ``") for line in lines if line[:2] == "- "]


def test_messages_are_found_and_what_is_filled_in_has_a_name():
    found = messages()
    assert len(found) > 400
    assert (
        "num_heads is NUM_HEADS; it must divide d_model = D_MODEL, or head_dim must be given"
        in (found)
    )
    assert sum("SOMETHING" in each for each in found) < 10


def test_messages_have_words_of_their_own():
    found = messages()
    assert not [each for each in found if not re.search(r"[a-z]{2}", each)]
    assert "PREFECT_API_URL=PLACE answers STATUS; REMEDY" in found


def test_words_that_constants_and_functions_put_in_are_there():
    found = messages()
    assert "IMPLICIT_MODELS_MICRO_BATCH is MICRO_BATCH" in "\n".join(found)
    assert "PATH: names no splits; `dvc repro prepare@NAME` writes it" in found  # a function's
    assert "DIRECTORY is missing; a model is config.json and model.safetensors" in found
    assert "stage NAME: DVC's lock is taken" in "\n".join(found)


def test_keys_variables_and_pages_that_messages_name_exist():
    """Commands that they name are tried with those of the other pages, in test_shell_blocks.py."""
    docs = ROOT / "docs"
    below = {"pools": {"here"}, "slurm": {"time"}}  # of placement.yaml
    for section in re.split(r"^## ", (docs / "parameters.md").read_text(), flags=re.MULTILINE)[1:]:
        heading, _, rows = section.partition("\n")
        words = re.findall(r"\w+", heading)
        for word, following in itertools.zip_longest(words, words[1:], fillvalue=""):
            found = re.findall(r"^\| `(\w+)` \|", rows, re.MULTILINE)
            below.setdefault(word, set()).update({following}, found)
    below["test"] |= below["validation"]  # of text: a section for both
    said = "\n".join(messages())
    keys = set(re.findall(r"(?<![\w/.])[a-z_]+(?:\.[a-z_]+)+(?![\w/])", said))
    of_parameters = {
        each
        for each in keys
        if not re.search(r"^(pipelines|stages)\.|\.(json|safetensors|toml|yaml|py)$", each)
    }
    assert len(of_parameters) > 20
    named = [each.replace(".x.", ".NAME.").split(".") for each in of_parameters]
    pairs = {pair for each in named for pair in itertools.pairwise(each)}
    assert not {(key, lower) for key, lower in pairs if lower not in below.get(key, ())}
    assert "num_heads" not in below["evaluation"]
    variables = set(re.findall(r"IMPLICIT_MODELS_\w+", said))
    assert variables <= set(
        re.findall(r"IMPLICIT_MODELS_\w+", (docs / "environment.md").read_text())
    )
    assert all((ROOT / page).is_file() for page in re.findall(r"docs/\w+\.md", said))


def test_what_a_message_is_made_of_is_read_from_the_code():
    code = """
WHERE = "the place"

class OurError(Exception): ...

def again(name):
    return f"run {name}"

def refuse(value, names):
    said = f"; the closest is {names[0]}" if names else ""
    raise OurError(f"{WHERE} is {value!r}{said}; {again(value)} or {value}{names}")

def either(value):
    raise OurError("no value here" if value is None else f"{value + 1} is a wrong value")

def elsewhere(value, names):
    raise OurError(f"there is no {value}; {meant(value, names)}")

def tell(value, found):
    if reason := f"{value} is not there":
        raise other.OurError(reason)
    found.add(f"{value} comes only later", "warning")
    found.add(f"{value} is needed now", "missing")
    fail(f"{value} ends all of it")
    print(f"error: {value} has gone wrong")
    print(f"{value} is no error")
    log.error("not sent at all")
"""
    (meant,) = ast.parse("def meant(name, valid): return f'the valid ones are {valid}'").body
    assert isinstance(meant, ast.FunctionDef)
    file = message_reference._File(ast.parse(code), {"WHERE": "the place"}, [meant])
    assert list(file.messages({"OurError"})) == [
        "the place is VALUE; the closest is NAMES; run NAME or VALUE NAMES",
        "no value here",
        "VALUE is a wrong value",
        "there is no VALUE; the valid ones are VALID",
        "VALUE is not there",
        "VALUE is needed now",
        "VALUE ends all of it",
        "VALUE has gone wrong",
    ]
