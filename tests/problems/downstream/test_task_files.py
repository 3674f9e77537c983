"""Benchmark files: every form becomes the hub's, and what is wrong is named with its line."""

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from implicit_models.parameters import ParameterError, read_section
from implicit_models.problems.downstream.data.task_files import (
    TaskFileError,
    open_tasks,
    write_tasks,
)
from implicit_models.problems.downstream.parameters import TaskFilesParameters, TaskPathsParameters
from implicit_models.problems.downstream.tasks import ACCURACIES, TASKS

SHARED = Path(__file__).parents[3] / ".." / "shared" / "data"
needs_shared = pytest.mark.skipif(
    not SHARED.is_dir(), reason="the real benchmark files of ../shared/data are not there"
)

CHOICES = {"text": ["in a pot", "in the sun"], "label": ["A", "B"]}
HUB = {
    "lambada_openai": {"text": "The end of the story"},
    "hellaswag": {
        "activity_label": "Roofing",
        "ctx_a": "A man sits.",
        "ctx_b": "he",
        "endings": ["waits.", "sleeps.", "runs.", "sings."],
        "label": "3",
    },
    "piqa": {"goal": "Boil water.", "sol1": "Heat it.", "sol2": "Cool it.", "label": 0},
    "arc_easy": {"id": "x1", "question": "Where?", "choices": CHOICES, "answerKey": "B"},
    "arc_challenge": {"id": "x2", "question": "How?", "choices": CHOICES, "answerKey": "A"},
    "winogrande": {
        "sentence": "Ann paid Bea, since _ was rich.",
        "option1": "Ann",
        "option2": "Bea",
        "answer": "1",
    },
    "openbookqa": {"id": "7", "question_stem": "Plants", "choices": CHOICES, "answerKey": "A"},
}


def lines(*rows) -> str:
    return "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)


def written(tmp_path: Path, task: str, *files: tuple[str, str], limit=None) -> list[dict]:
    """What becomes of one task's files."""
    source = tmp_path / "source"
    source.mkdir(exist_ok=True)
    for name, text in files:
        (source / name).write_text(text)
    parameters = TaskFilesParameters(
        source=str(source),
        files=TaskPathsParameters(**{task: tuple(name for name, _ in files)}),
        tasks=(task,),
        limit=limit,
    )
    write_tasks(parameters, tmp_path / "tasks")
    text = open_tasks(tmp_path / "tasks")[task].read_text()
    return [json.loads(line) for line in text.splitlines()]


def refused(tmp_path: Path, task: str, *files: tuple[str, str]) -> str:
    """Why one task's files are refused; then nothing is left behind."""
    with pytest.raises(TaskFileError) as error:
        written(tmp_path, task, *files)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
    return str(error.value)


def test_each_task_has_a_column_of_the_summary():
    assert list(TASKS) == [task for task, _ in ACCURACIES.values()]


@pytest.mark.parametrize("task", TASKS)
def test_the_hubs_fields_stay_as_they_are(tmp_path, task):
    more = HUB[task] | {"unknown": 1}
    assert written(tmp_path, task, ("items.jsonl", lines(more, HUB[task]))) == [HUB[task]] * 2


def test_hellaswag_text(tmp_path):
    text = lines(
        "Roofing: A man sits. He waits. he", "3", "waits.", "sleeps. ", " runs.", "sings.",
        "How to sleep: Lie down. Rest.", "0", "a.", "b.", "c.", "d.",
    )  # fmt: skip
    first, second = written(tmp_path, "hellaswag", ("hellaswag.txt", text))
    assert first == HUB["hellaswag"] | {"ctx_a": "A man sits. He waits."}
    assert (second["ctx_a"], second["ctx_b"], second["label"]) == ("Lie down. Rest.", "", "0")


def test_piqa_with_labels_apart(tmp_path):
    row = {name: HUB["piqa"][name] for name in ("goal", "sol1", "sol2")}
    found = written(tmp_path, "piqa", ("a.jsonl", lines(row, row)), ("b.lst", "0\n1\n"))
    assert found == [row | {"label": 0}, row | {"label": 1}]


@pytest.mark.parametrize(
    ("contexts", "continuation"),
    [
        (["Ann paid Bea, since Ann", "Ann paid Bea, since Bea"], "was rich."),
        (["He hit the bat, not the blanket", "He hit the bat, not the bed"], " was torn."),
        (["Ann", "Bea"], "won."),
        (["In snake_case Ann", "In snake_case Bea"], "wrote the_end."),
        (["the home", "the home town"], "was big."),
    ],
)
@pytest.mark.parametrize("gold", [0, 1])
def test_winogrande_contexts_score_the_same_strings(tmp_path, contexts, continuation, gold):
    row = {"context_options": contexts, "continuation": continuation, "gold": gold}
    (found,) = written(tmp_path, "winogrande", ("a.jsonl", lines(row)))
    assert scored_by_lm_eval(found) == (contexts, continuation.strip(), gold)


def scored_by_lm_eval(item: dict) -> tuple[list[str], str, int]:
    """The contexts, the continuation and the right context, as lm-eval's definition has them."""
    blank = item["sentence"].index("_")
    contexts = [item["sentence"][:blank] + item[name] for name in ("option1", "option2")]
    return contexts, item["sentence"][blank + 1 :].strip(), {"1": 0, "2": 1}[item["answer"]]


def test_openbookqa_query(tmp_path):
    row = {"query": "Plants", "choices": ["in a pot", "in the sun"], "gold": 1}
    (found,) = written(tmp_path, "openbookqa", ("a.jsonl", lines(row)))
    assert found == HUB["openbookqa"] | {"id": "0", "answerKey": "B"}


def test_limit_and_blank_lines(tmp_path):
    text = lines(HUB["piqa"], "", *[HUB["piqa"]] * 3)
    assert len(written(tmp_path, "piqa", ("a.jsonl", text), limit=2)) == 2


def without(task: str, *names: str) -> dict:
    return {name: value for name, value in HUB[task].items() if name not in names}


@pytest.mark.parametrize(
    ("task", "row", "parts"),
    [
        ("piqa", without("piqa", "sol1", "sol2"), ["lacks sol1, sol2", "found goal, label"]),
        ("winogrande", {"continuation": "x"}, ["lacks context_options, gold", "or context_opt"]),
        ("lambada_openai", {}, ["lacks text", "found nothing"]),
        ("lambada_openai", {"text": "word"}, ["'word'", "a last word"]),
        ("lambada_openai", {"text": "ends blank "}, ["a last word"]),
        ("lambada_openai", {"text": 3}, ["text is 3"]),
        ("hellaswag", HUB["hellaswag"] | {"label": "4"}, ["label is '4'", "0 to 3"]),
        ("hellaswag", HUB["hellaswag"] | {"endings": "abc"}, ["endings is 'abc'", "a list"]),
        ("hellaswag", HUB["hellaswag"] | {"ctx_a": " ", "ctx_b": ""}, ["both empty"]),
        ("piqa", HUB["piqa"] | {"label": True}, ["label is True", "0 to 1"]),
        ("piqa", HUB["piqa"] | {"goal": " "}, ["goal is ' '"]),
        ("arc_easy", HUB["arc_easy"] | {"answerKey": "C"}, ["answerKey is 'C'", "A, B"]),
        ("arc_easy", HUB["arc_easy"] | {"choices": ["a"]}, ["choices is ['a']", "text and label"]),
        (
            "arc_easy",
            HUB["arc_easy"] | {"choices": {"text": ["a", "b"], "label": ["A", "B", "C"]}},
            ["2 texts and 3 labels"],
        ),
        ("winogrande", HUB["winogrande"] | {"answer": "0"}, ["answer is '0'", "'1' or '2'"]),
        ("winogrande", HUB["winogrande"] | {"sentence": "No."}, ["'No.'", "a blank"]),
        (
            "winogrande",
            {"context_options": ["a"], "continuation": "b", "gold": 0},
            ["context_options has 1 texts", "allowed is 2"],
        ),
        ("openbookqa", {"query": "q", "choices": ["a", "b"], "gold": 2}, ["gold is 2", "0 to 1"]),
        ("openbookqa", "[1]", ["is [1]", "an object"]),
        ("openbookqa", "{", ["is not valid JSON", "allowed is an object"]),
    ],
)
def test_a_bad_item_is_named_with_its_line(tmp_path, task, row, parts):
    message = refused(tmp_path, task, ("items.jsonl", lines(HUB[task], row)))
    assert f"{tmp_path}/source/items.jsonl:2: " in message
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a: b.\n0\nc\nd\ne\n", ["has 5 lines", "an item has 6"]),
        ("a: b.\n4\nc\nd\ne\nf\n", [":1: ", "label is '4'"]),
        ("no activity\n0\nc\nd\ne\nf\n", [":1: ", "'activity: context'"]),
        ("a: b.\n0\nc\n\ne\nf\n", [":1: ", "endings is"]),
    ],
)
def test_a_bad_hellaswag_text(tmp_path, text, parts):
    message = refused(tmp_path, "hellaswag", ("h.txt", text))
    assert all(part in message for part in parts)


@pytest.mark.parametrize(
    ("labels", "part"),
    [("0\n", "has no label; there are 1"), ("0\n1\n1\n", "2 items, but 3 labels"), ("2\n", "'2'")],
)
def test_labels_that_do_not_fit(tmp_path, labels, part):
    rows = lines(without("piqa", "label"), without("piqa", "label"))
    assert part in refused(tmp_path, "piqa", ("a.jsonl", rows), ("b.lst", labels))


def test_bytes_that_are_no_text(tmp_path):
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "piqa.jsonl").write_bytes(lines(HUB["piqa"]).encode() + b'{"goal\xff')
    with pytest.raises(TaskFileError, match=r"piqa\.jsonl:2: is not UTF-8 \(byte 7"):
        write_tasks(
            TaskFilesParameters(source=str(tmp_path / "source"), tasks=("piqa",)),
            tmp_path / "tasks",
        )


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(TaskFileError, match="is no folder; allowed is"):
        write_tasks(TaskFilesParameters(source=str(tmp_path / "none")), tmp_path / "tasks")
    with pytest.raises(TaskFileError, match=r"lambada_openai: there is no .*lambada_test.jsonl"):
        write_tasks(TaskFilesParameters(source=str(tmp_path)), tmp_path / "tasks")
    (tmp_path / "piqa").mkdir()
    (tmp_path / "piqa" / "valid.jsonl").write_text(lines(HUB["piqa"]))
    with pytest.raises(TaskFileError, match=r"valid-labels.lst: no such file; piqa needs it"):
        write_tasks(TaskFilesParameters(source=str(tmp_path), tasks=("piqa",)), tmp_path / "tasks")


def test_an_empty_file(tmp_path):
    assert "holds no item" in refused(tmp_path, "piqa", ("a.jsonl", "\n"))


def test_what_was_written_is_checked(tmp_path):
    written(tmp_path, "piqa", ("a.jsonl", lines(HUB["piqa"])))
    folder = tmp_path / "tasks"
    with pytest.raises(TaskFileError, match="no such folder"):
        open_tasks(tmp_path / "other")
    (folder / "piqa.jsonl").write_text("{}\n")
    with pytest.raises(TaskFileError, match=r"piqa.jsonl: the content has changed; `dvc repro"):
        open_tasks(folder)
    (folder / "piqa.jsonl").unlink()
    with pytest.raises(TaskFileError, match=r"piqa.jsonl: no such file"):
        open_tasks(folder)
    (folder / "manifest.json").write_text('{"format_version": 9}')
    with pytest.raises(TaskFileError, match="format_version is 9"):
        open_tasks(folder)
    (folder / "manifest.json").write_text("{")
    with pytest.raises(TaskFileError, match="not valid JSON"):
        open_tasks(folder)
    (folder / "manifest.json").unlink()
    with pytest.raises(TaskFileError, match="incomplete"):
        open_tasks(folder)


def test_writing_again_replaces_everything(tmp_path):
    written(tmp_path, "piqa", ("a.jsonl", lines(HUB["piqa"])))
    written(tmp_path, "arc_easy", ("b.jsonl", lines(HUB["arc_easy"])))
    assert sorted(path.name for path in (tmp_path / "tasks").iterdir()) == [
        "arc_easy.jsonl",
        "manifest.json",
    ]


def test_from_the_hub(tmp_path, monkeypatch):
    asked = []

    def load_dataset(path, name, split):
        asked.append((path, name, split))
        return [HUB["winogrande"]] * 2

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    write_tasks(TaskFilesParameters(source="hub", tasks=("winogrande",)), tmp_path / "tasks")
    assert asked == [("allenai/winogrande", "winogrande_xl", "validation")]
    assert len(open_tasks(tmp_path / "tasks")["winogrande"].read_text().splitlines()) == 2


def test_without_a_network(tmp_path, monkeypatch):
    def load_dataset(path, name, split):
        raise ConnectionError("no route")

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    with pytest.raises(TaskFileError, match=r"piqa: baber/piqa cannot be had .*no route"):
        write_tasks(TaskFilesParameters(source="hub", tasks=("piqa",)), tmp_path / "tasks")


@pytest.mark.parametrize(
    ("yaml", "part"),
    [
        ("{source: x, tasks: [piqqa]}", "one of 'lambada_openai'"),
        ("{source: x, tasks: [piqa, piqa]}", "each only once"),
        ("{source: x, tasks: []}", "one element or more"),
        ("{source: x, limit: 0}", "at least 1"),
        ("{source: ''}", "allowed is a folder, or 'hub'"),
        ("{source: x, files: {arc_easy: [a, b]}}", "at most 1 file"),
        ("{source: x, files: {arc: [a]}}", "the closest valid key is"),
        ("{source: hub, files: {piqa: [a]}}", "files = "),
    ],
)
def test_parameters_that_are_not_allowed(tmp_path, yaml, part):
    path = tmp_path / "params.yaml"
    path.write_text(f"tasks: {{all: {yaml}}}")
    with pytest.raises(ParameterError, match=re.escape(part)):
        read_section("tasks.all", TaskFilesParameters, path)


@needs_shared
def test_the_real_files(tmp_path):
    manifest = write_tasks(TaskFilesParameters(source=str(SHARED)), tmp_path / "tasks")
    counts = {task: entry["num_items"] for task, entry in manifest["tasks"].items()}
    assert counts == {
        "lambada_openai": 5153,
        "hellaswag": 10042,
        "piqa": 1838,
        "arc_easy": 2375,
        "arc_challenge": 1172,
        "winogrande": 1267,
        "openbookqa": 500,
    }
    items = {
        task: [json.loads(line) for line in path.read_text().splitlines()]
        for task, path in open_tasks(tmp_path / "tasks").items()
    }
    options = (SHARED / "winogrande" / "winogrande_xl_dev.llmfoundry.jsonl").read_text()
    for line, item in zip(options.splitlines(), items["winogrande"], strict=True):
        row = json.loads(line)
        expected = (row["context_options"], row["continuation"].strip(), row["gold"])
        assert scored_by_lm_eval(item) == expected

    sample = (SHARED / "hellaswag" / "hellaswag_val_sample1000.jsonl").read_text()
    from_text = {json.dumps(as_lm_eval_reads(item)) for item in items["hellaswag"]}
    for line in sample.splitlines():
        assert json.dumps(as_lm_eval_reads(json.loads(line))) in from_text


def as_lm_eval_reads(item: dict) -> tuple[str, list[str], int]:
    """HellaSwag's query, choices and answer after lm-eval's preprocessing, outer blanks aside."""

    def clean(text: str) -> str:
        text = re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". "))
        return text.replace("  ", " ").strip()

    context = f"{item['activity_label']}: {item['ctx_a']} {item['ctx_b'].capitalize()}"
    return clean(context), [clean(each) for each in item["endings"]], int(item["label"])
