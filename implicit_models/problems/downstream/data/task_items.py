"""One item of a benchmark: from any form that is known to the fields that lm-eval reads."""

import os.path
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]
Item = dict[str, Any]

# A context's unfinished last sentence, where it starts with a lower-case letter.
_FRAGMENT = re.compile(r"(?P<before>.*[.!?][\"')]* )(?P<fragment>[a-z].*)", re.DOTALL)


class ItemError(ValueError):
    """An item lacks a field, or a field holds what it must not; says nothing of the place."""


@dataclass(frozen=True)
class Form:
    """A form of a task's items: the fields it has, and how they become the harness's."""

    fields: tuple[str, ...]
    convert: Callable[[Row, int], Item]


def to_item(task: str, forms: Sequence[Form], row: Row, number: int) -> Item:
    """Return the ``number``-th item of a task's file under the harness's fields.

    Raises
    ------
    ItemError
        Naming the fields that are missing and those found, or the value that is not allowed.
    """
    for form in forms:
        if all(name in row for name in form.fields):
            return form.convert(row, number)
    closest = max(forms, key=lambda form: sum(name in row for name in form.fields))
    missing = ", ".join(name for name in closest.fields if name not in row)
    allowed = " or ".join(", ".join(form.fields) for form in forms)
    raise ItemError(
        f"an item of {task} lacks {missing}; found {', '.join(row) or 'nothing'}; allowed is "
        f"{allowed}"
    )


def hellaswag_item(context: str, label: str, endings: Sequence[str]) -> Item:
    """Return an item of the six-line text.

    Its first line is ``activity: context``, from which the brackets are gone. The harness makes a
    capital of the first letter of ``ctx_b``, the unfinished last sentence: it is split off again.
    """
    activity, colon, rest = context.partition(": ")
    if not colon:
        raise ItemError(f"the context is {context!r}; allowed is 'activity: context'")
    found = _FRAGMENT.fullmatch(rest.strip())
    before, fragment = (found["before"], found["fragment"]) if found else (rest, "")
    if label.strip() not in "0123" or not label.strip():
        raise ItemError(f"the label is {label!r}; allowed is 0 to 3")
    row = {
        "activity_label": activity,
        "ctx_a": before.strip(),
        "ctx_b": fragment,
        "endings": [ending.strip() for ending in endings],
        "label": label.strip(),
    }
    return hellaswag(row, 0)


def lambada(row: Row, number: int) -> Item:
    """Return LAMBADA's fields."""
    text = _text(row, "text")
    context, _, word = text.rpartition(" ")
    if not (context.strip() and word.strip()):
        raise ItemError(f"text is {text!r}; allowed is a context and, after a blank, a last word")
    return {"text": text}


def hellaswag(row: Row, number: int) -> Item:
    """Return HellaSwag's fields."""
    endings = _texts(row, "endings", 2)
    contexts = {name: _text(row, name, may_be_empty=True) for name in ("ctx_a", "ctx_b")}
    if not any(context.strip() for context in contexts.values()):
        raise ItemError("ctx_a and ctx_b are both empty; allowed is a context")
    return {
        "activity_label": _text(row, "activity_label"),
        **contexts,
        "endings": endings,
        "label": str(_index(row, "label", len(endings))),
    }


def piqa(row: Row, number: int) -> Item:
    """Return PIQA's fields."""
    texts = {name: _text(row, name) for name in ("goal", "sol1", "sol2")}
    return texts | {"label": _index(row, "label", 2)}


def arc(row: Row, number: int) -> Item:
    """Return ARC's fields."""
    return {"id": row.get("id", str(number)), "question": _text(row, "question")} | _answer(row)


def winogrande(row: Row, number: int) -> Item:
    """Return WinoGrande's fields."""
    sentence = _text(row, "sentence")
    if "_" not in sentence:
        raise ItemError(f"sentence is {sentence!r}; allowed is one with a blank, '_'")
    options = {name: _text(row, name) for name in ("option1", "option2")}
    answer = row["answer"]
    if answer not in ("1", "2"):
        raise ItemError(f"answer is {answer!r}; allowed is '1' or '2'")
    return {"sentence": sentence, **options, "answer": answer}


def winogrande_contexts(row: Row, number: int) -> Item:
    """Return WinoGrande's fields, of llm-foundry's: the blank where the two contexts part.

    The harness scores the text after the blank, stripped, given the text before it with either
    option put in: the same strings, wherever the blank stands. It takes the first ``_`` for it.
    """
    contexts = _texts(row, "context_options", 2, 2)
    continuation = _text(row, "continuation")
    shared = os.path.commonprefix(contexts)
    shared = shared[: shared.rfind(" ") + 1].partition("_")[0]
    first, second = (context[len(shared) :] for context in contexts)
    return {
        "sentence": f"{shared}_ {continuation}",
        "option1": first,
        "option2": second,
        "answer": str(_index(row, "gold", 2) + 1),
    }


def openbookqa(row: Row, number: int) -> Item:
    """Return OpenbookQA's fields."""
    question = {"question_stem": _text(row, "question_stem")}
    return {"id": row.get("id", str(number))} | question | _answer(row)


def openbookqa_query(row: Row, number: int) -> Item:
    """Return OpenbookQA's fields, of llm-foundry's."""
    texts = _texts(row, "choices", 2)
    labels = [chr(ord("A") + place) for place in range(len(texts))]
    return {
        "id": str(number),
        "question_stem": _text(row, "query"),
        "choices": {"text": texts, "label": labels},
        "answerKey": labels[_index(row, "gold", len(texts))],
    }


def _answer(row: Row) -> Item:
    choices, key = row["choices"], row["answerKey"]
    if not isinstance(choices, Mapping) or not {"text", "label"} <= choices.keys():
        raise ItemError(f"choices is {choices!r}; allowed is an object with text and label")
    texts, labels = _texts(choices, "text", 2), _texts(choices, "label", 2)
    if len(texts) != len(labels):
        raise ItemError(
            f"choices has {len(texts)} texts and {len(labels)} labels; allowed is a label for each "
            "text"
        )
    if not isinstance(key, str) or key.strip() not in labels:
        raise ItemError(f"answerKey is {key!r}; allowed is one of {', '.join(labels)}")
    return {"choices": {"text": texts, "label": labels}, "answerKey": key.strip()}


def _text(row: Row, name: str, may_be_empty: bool = False) -> str:
    value = row[name]
    if not isinstance(value, str) or not (value.strip() or may_be_empty):
        raise ItemError(f"{name} is {value!r}; allowed is a text that is not empty")
    return value


def _texts(row: Row, name: str, least: int, most: int | None = None) -> list[str]:
    values = row[name]
    is_list = isinstance(values, Sequence) and not isinstance(values, str)
    if not is_list or not all(isinstance(value, str) and value.strip() for value in values):
        raise ItemError(f"{name} is {values!r}; allowed is a list of texts that are not empty")
    if not least <= len(values) <= (most or len(values)):
        count = f"{least}" if most == least else f"at least {least}"
        raise ItemError(f"{name} has {len(values)} texts; allowed is {count}")
    return list(values)


def _index(row: Row, name: str, count: int) -> int:
    """Read the place of the right answer; the hub has it as a text here and there."""
    value = row[name]
    if str(value) not in map(str, range(count)) or isinstance(value, bool):
        raise ItemError(f"{name} is {value!r}; allowed is 0 to {count - 1}")
    return int(value)
