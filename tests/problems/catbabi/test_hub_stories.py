"""The hub's parquet copies become the same stories; what is wrong is named with its row."""

import pyarrow
import pytest
from pyarrow import parquet

from implicit_models.problems.catbabi.generator.families import generate
from implicit_models.problems.catbabi.stories.hub import read_hub_file, read_hub_folder
from implicit_models.problems.catbabi.stories.reading import StoryError
from implicit_models.problems.catbabi.stories.story import Question, Story


def fields(story: Story) -> dict[str, list]:
    """What the hub has of a story: lists in a struct."""
    rows = {"id": [], "type": [], "text": [], "supporting_ids": [], "answer": []}
    for number, line in enumerate(story.lines, 1):
        is_question = isinstance(line, Question)
        rows["id"].append(str(number))
        rows["type"].append(int(is_question))
        rows["text"].append(f"{' '.join(line.words)}{'?' if is_question else '.'}")
        rows["supporting_ids"].append([str(s) for s in line.support] if is_question else [])
        rows["answer"].append(line.answer if is_question else "")
    return rows


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.table({"story": rows}), path)


@pytest.mark.parametrize("name", ["train/0000.parquet", "train-00000-of-00001.parquet"])
def test_stories_of_the_hub(tmp_path, name):
    tasks = (5, 8, 19)
    stories = {task: generate(task, 6, 0) for task in tasks}
    for task in tasks:
        write(tmp_path / f"en-valid-10k-qa{task}" / name, [fields(s) for s in stories[task]])
    assert read_hub_folder(tmp_path, "train", tasks, name="en-valid-10k") == stories


def test_structs_in_a_list_are_the_same(tmp_path):
    (story,) = generate(1, 1, 0)
    columns = fields(story)
    rows = [dict(zip(columns, line, strict=True)) for line in zip(*columns.values(), strict=True)]
    write(tmp_path / "0000.parquet", [rows])
    assert read_hub_file(tmp_path / "0000.parquet", 1) == [story]


def test_validation_is_the_hubs_name(tmp_path):
    (story,) = generate(2, 1, 0)
    write(tmp_path / "en-qa2/validation/0000.parquet", [fields(story)])
    assert read_hub_folder(tmp_path, "valid", [2], name="en") == {2: [story]}
    with pytest.raises(StoryError, match="no validation stories for qa3; .*en-qa3/validation/"):
        read_hub_folder(tmp_path, "valid", [2, 3], name="en")


def changed(name: str, index: int, value):
    rows = fields(generate(1, 1, 0)[0])
    rows[name][index] = value
    return rows


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (changed("id", 1, "7"), "row 1, line 2: has the id '7'; allowed is 2"),
        (changed("type", 2, 5), "row 1, line 3: is of type 5; allowed is 0"),
        (changed("answer", 2, ""), "row 1, line 3: has no answer"),
        (changed("text", 0, "Mary"), "row 1, line 1: is 'Mary'; allowed is a sentence"),
        (changed("supporting_ids", 2, ["3"]), "row 1, line 3: names the supporting fact '3'"),
        ({"id": ["1"], "text": ["Mary."]}, r"row 1: story has \['id', 'text'\]; allowed are"),
        (changed("id", 0, "1") | {"answer": []}, "row 1: its fields have .* one for each line"),
        (dict.fromkeys(("id", "type", "text", "supporting_ids", "answer"), []), "has no line"),
    ],
)
def test_what_is_no_story_is_named_with_its_row(tmp_path, row, says):
    path = tmp_path / "0000.parquet"
    write(path, [row])
    with pytest.raises(StoryError, match=rf"0000.parquet, .*{says}"):
        read_hub_file(path, 1)


def test_files_without_stories(tmp_path):
    path = tmp_path / "0000.parquet"
    path.write_bytes(b"no parquet")
    with pytest.raises(StoryError, match="0000.parquet: is damaged, or no parquet file"):
        read_hub_file(path, 1)
    parquet.write_table(pyarrow.table({"text": ["a"]}), path)
    with pytest.raises(StoryError, match="0000.parquet: is damaged, or no .* with a column story"):
        read_hub_file(path, 1)
    parquet.write_table(pyarrow.table({"story": pyarrow.array([], pyarrow.int8())}), path)
    with pytest.raises(StoryError, match="0000.parquet: is empty"):
        read_hub_file(path, 1)
