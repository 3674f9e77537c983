import json
import os
import re
import shutil
from pathlib import Path

import pytest
import yaml

from pipelines.dag import Stage, UnknownTargetError, dag_status, read_dag
from tests.pipelines.tiny import project, stage
from tests.repositories import clone

pytestmark = pytest.mark.filterwarnings("ignore:_NoneStep.value:DeprecationWarning")  # DVC's

DIAMOND = {
    "source": stage("cp given.txt source.txt", ("given.txt",), ("source.txt",)),
    "side": {
        "foreach": {"left": {"text": 1}, "right": {"text": 2}},
        "do": {
            "cmd": "cat source.txt > ${key}.txt; echo ${item.text} > ${key}.json",
            "deps": ["source.txt"],
            "outs": ["${key}.txt"],
            "metrics": [{"${key}.json": {"cache": False}}],
        },
    },
    "end": stage("cat left.txt right.txt > end.txt", ("left.txt", "right.txt"), ("end.txt",)),
    "alone": stage("echo 1 > alone.txt", (), ("alone.txt",)),
}
PARENTS = {
    "source": set(),
    "side@left": {"source"},
    "side@right": {"source"},
    "end": {"side@left", "side@right"},
    "alone": set(),
}


@pytest.fixture
def diamond(tmp_path):
    made = project(tmp_path / "project", DIAMOND)
    (made.path / "given.txt").write_text("first")
    return made


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    return clone(tmp_path_factory.mktemp("dag") / "repository", "quick")


def is_parents_first(stages: dict[str, Stage]) -> bool:
    names = list(stages)
    return all(
        names.index(parent) < names.index(name)
        for name, stage in stages.items()
        for parent in stage.parents
    )


def test_parents_and_order(diamond):
    stages = read_dag(diamond.path)
    assert {name: set(stage.parents) for name, stage in stages.items()} == PARENTS
    assert is_parents_first(stages)
    left = stages["side@left"]
    assert (left.kind, left.entry) == ("side", "left")
    assert (stages["end"].kind, stages["end"].entry) == ("end", "")
    assert left.deps == ("source.txt",)
    assert set(left.outs) == {"left.txt", "left.json"}
    assert left.metrics == ("left.json",)


@pytest.mark.parametrize(
    ("targets", "names"),
    [
        (["side@left"], {"source", "side@left"}),
        (["side"], {"source", "side@left", "side@right"}),
        (["alone", "source"], {"alone", "source"}),
        (["end"], {"source", "side@left", "side@right", "end"}),
        (["dvc.yaml"], set(PARENTS)),
        (["dvc.yaml:source"], {"source"}),
    ],
)
def test_targets_bring_what_they_need(diamond, targets, names):
    stages = read_dag(diamond.path, targets)
    assert set(stages) == names
    assert is_parents_first(stages)


def test_it_does_not_matter_where_the_process_is(diamond, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stages = read_dag(Path("project"), ["side@left"])
    monkeypatch.chdir(diamond.path)
    assert stages == read_dag(Path(), ["side@left"])


@pytest.mark.parametrize(
    ("target", "closest"),
    [("ennd", "end"), ("side@lefd", "side@left"), ("sid", "side"), ("dvc.yaml:sorce", "source")],
)
def test_an_unknown_target_is_answered_with_the_closest(diamond, target, closest):
    with pytest.raises(UnknownTargetError, match=f"the closest is {closest}$"):
        read_dag(diamond.path, [target])


@pytest.mark.parametrize("target", ["no/dvc.yaml", "no.dvc", "no/dvc.yaml:stage", "given.txt"])
def test_no_such_file(diamond, target):
    with pytest.raises(UnknownTargetError, match=re.escape(target)):
        read_dag(diamond.path, [target])


def test_unchanged_is_what_dvc_status_leaves_out(diamond):
    assert dag_status(diamond.path).unchanged == set()
    diamond.run("-m", "dvc", "repro", "--quiet")
    assert dag_status(diamond.path).unchanged == set(PARENTS)

    (diamond.path / "left.txt").unlink()
    # `end` may not count as unchanged, although it does once DVC has restored what it reads.
    assert dag_status(diamond.path).unchanged == {"source", "side@right", "alone"}
    diamond.run("-m", "dvc", "repro", "--quiet")

    (diamond.path / "given.txt").write_text("second")
    changed = set(json.loads(diamond.status()))
    assert changed == {"source"}
    assert dag_status(diamond.path).unchanged == {"alone"}  # others wait for `source`


def test_stale_is_what_was_made_of_something_else_and_not_what_lacks_files(diamond):
    diamond.run("-m", "dvc", "repro", "--quiet")
    assert dag_status(diamond.path).stale == set()
    for name in ("left.txt", "end.txt", "source.txt"):
        (diamond.path / name).unlink()
        assert dag_status(diamond.path).stale == set()
    (diamond.path / "given.txt").write_text("second")
    assert dag_status(diamond.path).stale == set(PARENTS) - {"alone"}
    (diamond.path / "given.txt").unlink()
    assert dag_status(diamond.path).stale == set()


def test_what_others_have_written_over_is_stale(diamond):
    diamond.run("-m", "dvc", "repro", "--quiet")
    (diamond.path / "left.txt").write_text("by hand")
    assert dag_status(diamond.path).stale == {"side@left", "end"}


def test_what_was_made_of_others_is_stale_also_where_these_have_made_room(diamond):
    diamond.run("-m", "dvc", "repro", "--quiet")
    (diamond.path / "given.txt").write_text("second")
    diamond.run("-m", "dvc", "repro", "--quiet", "side@left")
    (diamond.path / "left.txt").unlink()
    (diamond.path / "source.txt").unlink()
    assert dag_status(diamond.path).stale == {"side@right", "end"}


def test_what_was_made_of_a_part_of_others_is_stale_also_where_these_have_made_room(tmp_path):
    copy = "cat {0}/{0} > {1}; cat {0}/same >> {1}"
    made = project(
        tmp_path / "project",
        {
            "data": stage(
                "mkdir data; cat given.txt > data/data; echo 1 > data/same",
                ("given.txt",),
                ("data",),
            ),
            "model": stage(copy.format("data", "model"), ("data/data",), ("model",)),
            "other": stage("cat data/same > other", ("data/same",), ("other",)),
        },
    )
    (made.path / "given.txt").write_text("first")
    made.run("-m", "dvc", "repro", "--quiet")
    (made.path / "given.txt").write_text("second")
    made.run("-m", "dvc", "repro", "--quiet", "data")
    shutil.rmtree(made.path / "data")
    assert dag_status(made.path).stale == {"model"}
    stages = yaml.safe_load((made.path / "dvc.yaml").read_text())
    stages["stages"]["data"]["cmd"] = "mkdir data; echo 1 > data/data"  # and "same" is gone
    (made.path / "dvc.yaml").write_text(yaml.safe_dump(stages))
    made.run("-m", "dvc", "repro", "--quiet", "data")
    assert dag_status(made.path).stale == {"model", "other"}


def test_what_lies_in_place_of_an_output_is_stale_also_where_the_cache_lacks_that(diamond):
    diamond.run("-m", "dvc", "repro", "--quiet")
    (diamond.path / "left.txt").unlink()
    (diamond.path / "left.txt").write_text("by hand")
    shutil.rmtree(diamond.path / ".dvc" / "cache")
    assert dag_status(diamond.path).stale == {"side@left", "end"}


def test_a_stage_that_somebody_works_on_is_not_unchanged(diamond):
    diamond.run("-m", "dvc", "repro", "--quiet")
    busy = {
        "write": {str(diamond.path / "right.txt"): {"pid": os.getpid(), "cmd": "other"}},
        "read": {},
    }
    (diamond.path / ".dvc" / "tmp" / "rwlock").write_text(json.dumps(busy))
    assert dag_status(diamond.path).unchanged == {"source", "side@left", "alone"}
    assert dag_status(diamond.path).in_use == {"side@right", "end"}


def test_the_projects_own_pipeline(quick):
    """The edges are where a path that one stage writes is, or holds, one that another reads."""
    stages = read_dag(quick.path)
    assert is_parents_first(stages)
    assert {"train_free@s3_implicit_mamba2", "report"} <= set(stages)
    for found in stages.values():
        read = [Path(dep) for dep in found.deps]
        expected = {
            other.name
            for other in stages.values()
            for out in map(Path, other.outs)
            if any(dep.is_relative_to(out) or out.is_relative_to(dep) for dep in read)
        }
        assert set(found.parents) == expected - {found.name}
    assert any(found.metrics for found in stages.values())
