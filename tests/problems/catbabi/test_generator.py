"""Generated stories: a reader of their words alone answers all their questions."""

import hashlib
import json
from pathlib import Path

import pytest

from implicit_models.problems.catbabi.generator.families import (
    FAMILIES,
    generate,
    share_of_copies,
)
from implicit_models.problems.catbabi.stories.reading import SPLITS, read_file
from implicit_models.problems.catbabi.stories.story import TASKS, Question, Sentence, render
from tests.problems.catbabi import solver

GOLDEN = Path(__file__).parents[2] / "golden" / "catbabi_stories.json"


@pytest.fixture(scope="module")
def stories():
    return {task: generate(task, 200, seed=7) for task in TASKS}


def test_families_are_the_tasks():
    assert tuple(FAMILIES) == TASKS


@pytest.mark.parametrize("task", TASKS)
def test_the_solver_answers_every_question(stories, task):
    for story in stories[task]:
        assert all(solver.score(story.words())), story.text()


@pytest.mark.parametrize("task", TASKS)
def test_supporting_facts_are_earlier_facts(stories, task):
    for story in stories[task]:
        for number, question in story.questions():
            assert question.support
            assert len({*question.support}) == len(question.support)
            for each in question.support:
                assert each < number
                assert isinstance(story.lines[each - 1], Sentence)


# Where a question asks what is true now, or of a single event, nothing but its facts is needed.
@pytest.mark.parametrize("task", [task for task in TASKS if task not in (2, 3, 7, 8, 14, 16)])
def test_supporting_facts_suffice(stories, task):
    for story in stories[task][:100]:
        for _, question in story.questions():
            lines = [*(story.lines[each - 1] for each in sorted(question.support)), question]
            words = [token for line in lines for token in line.tokens()]
            assert solver.score(words) == [True], story.text()


@pytest.mark.parametrize("task", TASKS)
def test_what_is_written_is_read(stories, task, tmp_path):
    path = tmp_path / f"qa{task}_train.txt"
    path.write_text(render(stories[task]))
    assert read_file(path, task) == stories[task]


@pytest.mark.parametrize("task", TASKS)
def test_a_story_depends_on_its_number_alone(stories, task):
    assert generate(task, 20, seed=7) == stories[task][:20]
    others = [generate(task, 20, seed=8), *(generate(task, 20, 7, split) for split in SPLITS[1:])]
    assert all(share_of_copies(other, stories[task][:20]) < 0.5 for other in others)


def test_golden_digests():
    digests = {
        str(task): {
            split: hashlib.sha256(render(generate(task, 50, 0, split)).encode()).hexdigest()[:16]
            for split in SPLITS
        }
        for task in TASKS
    }
    assert digests == json.loads(GOLDEN.read_text())


def test_counts_of_questions(stories):
    per_story = {4: 1, 15: 4, 16: 1, 17: 8, 19: 1}
    for task in TASKS:
        counts = {len(story.questions()) for story in stories[task]}
        if task == 18:  # five in a row; before them there may be fewer
            assert min(counts) == 5
        elif task == 20:  # three for each person, less one for each thing that was gone
            assert counts <= {9, 10, 11, 12}
        else:
            assert counts == {per_story.get(task, 5)}


def test_each_line_is_a_fact_or_a_question(stories):
    lines = {type(line) for each in stories.values() for story in each for line in story.lines}
    assert lines == {Sentence, Question}


def test_copies_are_passed_over():
    training = generate(4, 2000, 0)
    test = generate(4, 200, 0, "test")
    share = share_of_copies(test, training)
    assert 0.05 < share < 0.9
    apart = generate(4, 200, 0, "test", other_than=training)
    assert share_of_copies(apart, training) == 0
    assert apart[:20] == [story for story in test if story not in {*training}][:20]


def test_too_few_are_left():
    with pytest.raises(ValueError, match="task 4 has too few stories: .* ask for fewer"):
        generate(4, 10, 0, other_than=generate(4, 300, 0))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((0, 1, 0), "task is 0; allowed are numbers from 1 to 20"),
        ((1, -1, 0), "num_stories is -1; allowed is 0 or more"),
        ((1, 1, -5), "seed is -5; allowed is 0 or more"),
        ((1, 1, 0, "validation"), "split is 'validation'; allowed is train, valid, test"),
    ],
)
def test_what_is_asked_for_is_checked(arguments, says):
    with pytest.raises(ValueError, match=says):
        generate(*arguments)
