"""Numbers in the text of README.md and results.md: compared with docs/measured, or dated.

What a table on the page holds is computed from docs/measured and looked for in the text, word by
word: `results_prose` has the sentences. Every other measured number stands in a paragraph, or in a
section whose first paragraph, names the day and the commit: those of all other pages, too.
"""

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

from scripts.measured_tables import rate
from scripts.results_tables import PAGES
from tests.prose import Passage, passages
from tests.results_prose import languages, texts, word_problems
from tests.results_prose.settings import SETTINGS

README, RESULTS = PAGES
BY_MACHINE = ("parameters.md", "troubleshooting.md")
MEASURED = sorted(
    page for page in RESULTS.parent.glob("*.md") if page.name not in (*BY_MACHINE, "comparison.md")
)
"""All pages of the documentation but those without a number of ours, and one that has others'."""
_INTERVAL = re.compile(
    r"\b(\d+) of (?:the )?(\d+)\b(?:(?! of \d)[^().])*"
    r"\((?:95 % interval of the share: )?(\d+ to [\d.]+ %)"
)
SENTENCES = {
    (README, "What comes out"): (word_problems.readme, languages.readme),
    (RESULTS, "In short"): (word_problems.in_short, languages.in_short, texts.in_short),
    (RESULTS, "A5 word problem, every token hard"): (word_problems.a5,),
    (RESULTS, "S5, and how many layers it takes"): (word_problems.s5,),
    (RESULTS, "Mixtures of easy and hard tokens"): (word_problems.mixtures,),
    (RESULTS, "An implicit Llama on A5"): (word_problems.llama,),
    (RESULTS, "Formal languages"): (
        *(
            languages.cups,
            languages.told_cups,
            languages.traces,
            languages.regular,
            languages.flip_flops,
        ),
        *(languages.arithmetic, languages.stack, languages.undoing, languages.eigenvalues),
    ),
    (RESULTS, "How much of a training is bounded"): (texts.bounded_share,),
    (RESULTS, "All seeds"): (word_problems.ten_seeds,),
    (RESULTS, "Half an hour of text"): (texts.small,),
    (RESULTS, "Perplexity against parameters"): (texts.sizes,),
    (RESULTS, "Pretraining in miniature"): (texts.miniature,),
    (RESULTS, "The cost of it"): (word_problems.generation,),
    (RESULTS, "CatbAbI"): (texts.babi, texts.alike, texts.generated),
}


@cache
def fragments(page: Path, section: str) -> list[str]:
    return [each for sentences in SENTENCES.get((page, section), ()) for each in sentences()]


def undated(page: Path, found: Iterable[Passage]) -> list[str]:
    """Return the passages with a number that is neither compared nor dated."""
    left = []
    for passage in found:
        section = passage.section[-1]
        numbers = passage.measured(
            [*fragments(page, section), *SETTINGS.get((page.name, section), ())]
        )
        if numbers and not passage.is_dated:
            left.append(f"{', '.join(numbers)}: {passage.text}")
    return left


@pytest.mark.parametrize(("page", "section"), SENTENCES, ids=lambda each: getattr(each, "name", ""))
def test_the_text_says_what_was_measured(page, section):
    text = [each.text for each in passages(page) if each.section[-1] == section]
    wanted = fragments(page, section)
    assert wanted
    for fragment in wanted:
        assert any(fragment in each for each in text), fragment


@pytest.mark.parametrize("page", MEASURED, ids=lambda page: page.name)
def test_a_measured_number_is_compared_or_dated(page):
    assert undated(page, passages(page)) == []


def test_a_number_of_others_stands_beside_its_source_and_the_rest_is_dated(tmp_path):
    page = RESULTS.with_name("comparison.md")
    before, title, after = page.read_text().partition("| work | what | published |")
    lines, rows = [], []
    for line in after.splitlines():
        cells = line.split("|")
        if len(cells) == 6:  # work, what, published, beside ours
            rows.append((cells[1], cells[3]))
            line = "|".join([*cells[:3], " ", *cells[4:]])
        lines.append(line)
    assert title and len(rows) > 5
    for work, numbers in rows[1:]:
        assert not numbers.strip() or re.search(r"\(https://arxiv\.org/abs/\d+\.\d+\)", work)
    (tmp_path / page.name).write_text(before + title + "\n".join(lines))
    found = passages(tmp_path / page.name)
    assert undated(page, found) == []
    assert any(passage.measured() for passage in found)  # what is dated


def test_so_is_one_of_the_first_page():
    outcome = [each for each in passages(README) if each.section[-1] == "What comes out"]
    assert outcome and undated(README, outcome) == []


@pytest.mark.parametrize(
    "page", [RESULTS, RESULTS.with_name("recipe.md")], ids=lambda page: page.name
)
def test_an_interval_by_hand_is_that_of_its_count(page):
    text = " ".join(each.text for each in passages(page))
    found = _INTERVAL.findall(text)
    assert found
    for held, seeds, interval in found:
        scores = [1.0] * int(held) + [0.0] * (int(seeds) - int(held))
        assert rate(scores) == f"{held} of {seeds} ({interval})"


@pytest.mark.parametrize(("page", "section"), SETTINGS, ids=lambda each: each)
def test_settings_stand_where_they_are_named(page, section):
    paths = {each.name: each for each in (README, *MEASURED)}
    text = " ".join(each.text for each in passages(paths[page]) if each.section[-1] == section)
    for phrase in SETTINGS[page, section]:
        assert phrase in text, phrase


PAGE = """# Page

## One

Trained for 3 h on `a.py 2.5`, with torch 2.13.0.

<!-- table: a -->
| 9.9 % |
<!-- end of table -->

- Right: 99.5 %
  and 1e-3 (28 November 2026, `0123abc`).
- Wrong: .5 and 7 of 10.

| by hand | 12.5 |

## Two

By 1 November 2026, `0123abc`.

### Below

Takes 40 s, of 95 % intervals.

## Three

Takes 40 s.
"""


def test_passages_numbers_and_dates(tmp_path):
    (tmp_path / "page.md").write_text(PAGE)
    found = passages(tmp_path / "page.md")
    assert [(each.section[-1], each.measured(), each.is_dated) for each in found] == [
        ("One", ["3"], False),
        ("One", ["99.5", "1e-3"], True),
        ("One", [".5", "7 of 10", "12.5"], False),
        ("Two", [], True),
        ("Below", ["40"], True),
        ("Three", ["40"], False),
    ]
    assert found[2].measured(["Wrong: .5"]) == ["7 of 10", "12.5"]
    assert [each.partition(":")[0] for each in undated(RESULTS, found)] == [
        "3",
        ".5, 7 of 10, 12.5",
        "40",
    ]
