"""docs/metrics.md names no metric that the code has no words for; others are seen in the stages.

That it names all that are recorded, tests/stages/test_presets_to_the_report.py sees for every
preset.
"""

import re

from tests.metric_names import documented, undocumented
from tests.repositories import ROOT

FOLDERS = ("implicit_models", "stages")
CODE = "\n".join(path.read_text() for each in FOLDERS for path in (ROOT / each).rglob("*.py"))
# The first words, statistics that are put behind a name, and those that stand for what varies.
PUT_TOGETHER = {"train", "validation", "phase", "test", "sweep", "readings", "downstream", "stderr"}


def test_every_word_of_a_name_stands_in_the_code():
    for name in documented():
        words = re.split(r"[. ]", re.sub(r"_(p50|p95|max)\b", "", name))
        for word in words:
            known = word in PUT_TOGETHER or re.search("[A-Z]", word)
            assert known or re.search(rf"\b{word}\b", CODE), f"{name}: {word}"


def test_a_name_that_nobody_has_written_down_is_found():
    assert undocumented({"train.loss", "train.nonsense", "system/x"}) == ["train.nonsense"]
