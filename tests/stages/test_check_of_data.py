"""What the check says of data that nobody reads, and of values that come from data that went."""

import re
import shutil
from pathlib import Path

import pytest

from stages.check import check
from tests.repositories import ROOT, presets


@pytest.fixture
def documented(tmp_path, monkeypatch) -> list[str]:
    """The presets of docs/presets.md with another data set; a repository that takes presets."""
    shutil.copytree(ROOT / "conf", tmp_path / "conf")
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "presets.md").read_text()
    section = page.partition("## A data set of your own instead of the preset's")[2]
    return re.findall(r"```yaml\n(.*?)```", section.partition("\n## ")[0], re.DOTALL)


def lines(preset: str, *overrides: str) -> list[tuple[str, str]]:
    return [(finding.level, finding.line) for finding in check(preset, overrides)]


def test_another_data_set_takes_the_place_of_the_presets(documented):
    instead, beside = documented
    Path("conf/preset/instead.yaml").write_text(instead)
    Path("conf/preset/beside.yaml").write_text(beside)
    assert lines("instead") == []
    unread = "conf/preset/beside.yaml: datasets.s3 is read by no entry"
    assert lines("beside") == [("warning", unread)]
    assert lines("beside", "~datasets.s3") == []


def test_what_has_its_value_from_data_that_went_is_named(documented):
    ((level, line),) = lines("quick", "~datasets.s3")
    assert level == "error"
    assert "Interpolation key 'datasets.s3.train.length' not found" in line
    assert "evaluation.word_problem.lengths = ${datasets.s3.test.lengths}" in line
    assert "baselines.s3_lstm.training.lengths.end = ${datasets.s3.train.length}" in line


@pytest.mark.parametrize("preset", presets())
def test_presets_that_ship_read_all_their_data(preset, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert not [line for _, line in lines(preset) if "is read by no entry" in line]
