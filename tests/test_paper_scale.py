"""What docs/figures.md says of presets at the paper's scale is what is planned."""

import pytest

from scripts import paper_scale
from tests.markdown import figures_of_the_paper
from tests.repositories import presets

PAGE = paper_scale.PAGE.read_text()
WANTED = paper_scale.of_the_paper(presets())


@pytest.mark.parametrize("preset", WANTED)
def test_a_line_is_what_is_planned(preset):
    assert f"\n{paper_scale.row(preset)}\n" in PAGE, "python scripts/paper_scale.py writes it"


def test_the_table_has_all_presets_of_the_paper_and_every_figure_of_it_has_one():
    table = paper_scale.TABLE.search(PAGE)[0]
    assert [line.split("`")[1] for line in table.splitlines() if "`" in line] == WANTED
    for in_the_paper, scaled in figures_of_the_paper().values():
        assert {*scaled} <= {*WANTED}
        assert scaled or not in_the_paper


def test_the_script_writes_the_table_and_nothing_else(tmp_path, monkeypatch):
    page = tmp_path / "figures.md"
    page.write_text("before\n<!-- paper scale -->\nold\n<!-- end of paper scale -->\nafter\n")
    monkeypatch.setattr(paper_scale, "PAGE", page)
    monkeypatch.setattr(paper_scale, "of_the_paper", lambda _: ["layers_paper"])
    paper_scale.main([])
    first, begin, *table, end, last = page.read_text().splitlines()
    assert (first, last) == ("before", "after") and "old" not in table
    assert begin + end == "<!-- paper scale --><!-- end of paper scale -->"
    assert table[2:] == [paper_scale.row("layers_paper")]
