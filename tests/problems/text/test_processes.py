"""Jobs in several processes: each item once, and the end of all with the first error."""

import os
import signal

import pytest

from implicit_models.problems.text.data.processes import each
from implicit_models.problems.text.data.shards import CorpusError


def note(item, advance):
    """Leave a file, and say that five more are done."""
    path, what = item
    if what == "fail":
        raise CorpusError(f"{path} is wrong")
    if what == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    with open(path, "x") as file:
        file.write(f"{os.getpid()} {os.environ.get('TOKENIZERS_PARALLELISM')}")
    advance(5)


@pytest.mark.parametrize("processes", [1, 3])
def test_every_item_is_done_once(tmp_path, processes):
    items = [(str(tmp_path / str(number)), "write") for number in range(20)]
    told = []
    done = list(each(note, items, processes, told.append))
    assert sorted(done) == sorted(items)
    assert told == sorted(told) and told[-1] <= 100
    found = {(tmp_path / str(number)).read_text() for number in range(20)}
    here = {text for text in found if text.split()[0] == str(os.getpid())}
    assert bool(here) is (processes == 1) and len(found) <= processes
    assert list(each(note, [], processes, told.append)) == []


@pytest.mark.parametrize("processes", [1, 2])
def test_an_error_is_raised_here(tmp_path, processes):
    items = [(str(tmp_path / "0"), "write"), (str(tmp_path / "1"), "fail")]
    with pytest.raises(CorpusError, match="1 is wrong"):
        list(each(note, items, processes, lambda total: None))


def test_a_process_that_is_killed(tmp_path):
    items = [(str(tmp_path / "0"), "die"), (str(tmp_path / "1"), "die")]
    words = "one of 2 processes was killed, perhaps for want of memory; .*_PREPARE_PROCESSES"
    with pytest.raises(CorpusError, match=words):
        list(each(note, items, 2, lambda total: None))


def test_processes_end_when_nobody_waits_any_more(tmp_path):
    items = [(str(tmp_path / str(number)), "write") for number in range(50)]
    jobs = each(note, items, 2, lambda total: None)
    next(jobs)
    jobs.close()  # returns, and so shows that both processes are gone
    assert list(tmp_path.iterdir())
