import base64
import dataclasses
import functools
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from implicit_models.parameters import ParameterError
from implicit_models.problems.word_problem.report.tables import (
    accuracy_table,
    mode_table,
    search_table,
)
from implicit_models.reporting.parameters import ReportParameters
from implicit_models.reporting.provenance import Provenance
from implicit_models.reporting.report import Report, TrackedPage, make_report
from implicit_models.tracking.tracker import NullTracker
from stages.report import main
from tests.reporting.synthetic import (
    LENGTHS,
    datasets_of,
    named,
    parameters,
    write_parameters,
    write_results,
)

TRACKED = {"a5_lstm": TrackedPage(run_id="0123abcd")}


@pytest.fixture(scope="module")
def report(runs):
    datasets = datasets_of(parameters())
    return make_report(runs, datasets, ReportParameters(), TRACKED)


@pytest.mark.parametrize("format", ["html", "markdown"])
def test_report_holds_every_number(runs, report, format):
    text = getattr(report, format)
    for run in runs:
        assert run.name in text
        assert f"{run.evaluation['num_parameters']:,}" in text
        assert f"{run.train_seconds:,.0f}" in text
        assert f"{run.tokens_per_second:,.0f}" in text
        assert f"{run.evaluation['num_parameters'] / 119_018:.2f}x" in text
        for length in map(str, LENGTHS):
            for metric in ("accuracy", "accuracy_last_10"):
                assert f"{100 * run.evaluation[metric][length]:.1f} %" in text
    for expected in ("2 of 3", "66.7 %", "99.87 %", "0123abcd", "Chance is", "up to 16 tokens"):
        assert expected in text
    for point in runs[0].test_time_compute["self_iterations"]:
        assert f"{100 * point['accuracy_last_10']:.1f} %" in text


def test_the_search_table_holds_work_and_spectral_radius(runs):
    rows = named(search_table(runs[:1]))
    assert [row["length"] for row in rows] == ["16", "32", "64", "128"]
    work = [row["evaluations per token, mean"] for row in rows]
    assert work == [f"{23.4 + n / 1000:.3g}" for n in LENGTHS]
    assert [row["spectral radius"] for row in rows] == ["0.771", "-", "-", "-"]
    assert [row["damped"] for row in rows] == ["0.512", "-", "-", "-"]


def test_the_mode_table_compares_the_three_modes(runs):
    table = mode_table(runs[:1])
    assert len(table.rows) == 3 * len(LENGTHS)
    found = [row[1:] for row in table.rows if row[2] == "64"]
    accuracy = runs[0].evaluation["accuracy_last_10"]["64"]
    assert found == [
        ["window", "64", f"{99 * accuracy:.1f} %", "100.00 %", "80", "80", "120", "24.5", "36.8"]
        + ["40"],
        ["simultaneous", "64", f"{97 * accuracy:.1f} %", "99.21 %", "76.8", "76.8", "115", "76.8"]
        + ["115", "200"],
        ["sequential", "64", f"{98 * accuracy:.1f} %", "99.54 %", "448", "448", "672", "7.25"]
        + ["10.9", "30"],
    ]
    assert "99.87 % (a5_implicit_mamba2)" in table.note
    assert table.note.startswith("The first 64 sequences of a length.")


def test_a_run_whose_modes_were_not_compared_has_no_table_of_them(runs, undrawn):
    left_out = {
        "modes": {},
        "spectral_radius": {},
        "spectral_radius_damped": {},
        "mode_token_match": None,
    }
    run = dataclasses.replace(runs[0], evaluation=runs[0].evaluation | left_out)
    for shown, expected in ([run], 0), ([run, runs[1]], 1):
        text = make_report(shown, datasets_of(parameters()), ReportParameters(), {}).markdown
        assert text.count("### Search for the fixed point") == 1
        assert text.count("### Sliding window, simultaneous and sequential mode") == expected


def test_further_tests_have_a_table_of_their_own(runs, undrawn):
    first, second, *others = runs
    accuracy = {str(length): 0.25 for length in LENGTHS} | {str(LENGTHS[0]): 0.7512}
    chance = {str(length): 0.04 for length in LENGTHS} | {str(LENGTHS[0]): 0.1234}
    further = {"0.9": {"accuracy_last_10": accuracy, "chance": {"accuracy_last_10": chance}}}
    tested = dataclasses.replace(first, evaluation=first.evaluation | {"further_tests": further})
    old = {name: each for name, each in second.evaluation.items() if name != "further_tests"}
    before = dataclasses.replace(second, evaluation=old)  # as results were earlier
    datasets = datasets_of(parameters())
    report = make_report([tested, before, *others], datasets, ReportParameters(), TRACKED)
    _, _, after = report.markdown.partition("further tests\n")
    _, _, row, last, *_ = (line for line in after.splitlines() if line.startswith("|"))
    cells = [cell.strip() for cell in row.split("|")]
    assert first.name in cells[1] and cells[3:6] == ["0.9", "75.1 %", "25.0 %"]
    cells = [cell.strip() for cell in last.split("|")]
    assert cells[1:6] == ["chance", "", "0.9", "12.3 %", "4.0 %"]
    assert before.scores()["further_tests"] == {}
    assert tested.scores()["further_tests"] == {"0.9": accuracy}
    nothing = make_report([before, *others], datasets, ReportParameters(), TRACKED)
    assert "further tests" not in nothing.markdown


def test_both_formats_say_the_same(report):
    def cells(rows):
        return [[cell.strip() for cell in row] for row in rows]

    html = [
        re.findall(r"<td[^>]*>(?:<a[^>]*>)?(.*?)(?:</a>)?</td>", row)
        for row in re.findall(r"(?s)<tr.*?</tr>", report.html)
    ]
    markdown = report.markdown.replace("](#tracked-runs)", "").replace("| [", "| ")
    lines = [line for line in markdown.splitlines() if line.startswith("| ")]
    tables = [line.strip("| ").split(" | ") for line in lines]
    body = [row for row in cells(tables) if row[0] not in ("run", "group")]
    assert cells(row for row in html if row) == body


def test_html_refers_to_nothing_outside(report):
    assert not re.search(r"https?:", report.html)
    sources = re.findall(r'(?:src|srcset)="([^"]*)"', report.html)
    assert len(sources) == 4 * len(report.figures) == 20
    for source in sources:
        kind, data = source.split(",", 1)
        assert kind == "data:image/svg+xml;base64"
        assert base64.b64decode(data).rstrip().endswith(b"</svg>")


def test_markdown_shows_the_figures_beside_it(report):
    shown = re.findall(r"!\[[^]]+\]\(figures/([^)]+)\)", report.markdown)
    assert sorted(shown) == sorted(report.figures)


def test_the_beginning_tells_date_commit_machine_and_where_the_runs_are(runs):
    page = "http://host:5000/#/experiments/7/runs/<b>"
    made = Provenance(
        date="2026-01-31 12:00 UTC",
        commit="0123abcd4567",
        machine='<script>alert("a CPU")</script>, 2 cores, no GPU',
        tracking_server="http://host:5000",
    )
    tracked = {"a5_lstm": TrackedPage(run_id="0123", address=page)}
    shown = [runs[0], runs[-1]]
    datasets = datasets_of(parameters())
    report = make_report(shown, datasets, ReportParameters(), tracked, provenance=made)
    top = report.html[: report.html.index("<h2>")]
    for expected in ("2026-01-31 12:00 UTC, commit 0123abcd4567", '<a href="http://host:5000">'):
        assert expected in top
    assert "<script" not in report.html and "&lt;script&gt;alert(" in top
    assert (
        '<td class="text"><a href="http://host:5000/#/experiments/7/runs/&lt;b&gt;">' in report.html
    )
    assert "[a5_lstm](http://host:5000/#/experiments/7/runs/%3Cb%3E)" in report.markdown
    assert "&lt;script>" in report.markdown and "<script" not in report.markdown
    here = dataclasses.replace(made, tracking_server=None, commit=None)
    told = make_report(shown, datasets, ReportParameters(), {}, provenance=here).markdown
    assert "To see the runs in MLflow: `make dashboards`." in told and "commit" not in told


def test_the_lead_stands_above_everything(report):
    place = report.markdown.index(
        "**a5, accuracy of the last 10 of 128 tokens (8x the length trained on): "
    )
    assert place < report.markdown.index("## Dataset a5")
    first_table = report.markdown[report.markdown.index("### ") :]
    assert first_table.startswith("### Accuracy over the last 10 tokens, by length")
    assert first_table.index("### Cost\n") < first_table.index("### Accuracy over all positions")


def test_lengths_that_a_run_was_not_tested_at_are_blank(runs, undrawn):
    few = {
        metric: {length: runs[-1].evaluation[metric][length] for length in ("16", "64")}
        for metric in ("accuracy", "accuracy_last_10")
    }
    lstm = dataclasses.replace(runs[-1], evaluation=runs[-1].evaluation | few)
    table = accuracy_table([runs[0], lstm], "accuracy")
    assert [bool(cell) for cell in table.rows[1]] == [True, True, True, False, True, False]
    assert "A blank: this model was not tested at this length." in table.note
    report = make_report([runs[0], lstm], datasets_of(parameters()), ReportParameters(), {})
    assert "a5, accuracy of the last 10 of 64 tokens (4x the length trained on)" in report.markdown
    assert "blank" not in accuracy_table(runs, "accuracy").note


def test_the_table_tells_which_models_were_trained_on_which_length(runs):
    longer = [dataclasses.replace(run, training_length=32) for run in runs[:3]]
    assert accuracy_table(runs, "accuracy").note.startswith(
        "Trained on sequences of up to 16 tokens. Chance is"
    )
    note = accuracy_table([*longer, *runs[3:]], "accuracy").note
    assert note.startswith(
        "a5_implicit_mamba2: trained on sequences of up to 32 tokens; a5_mamba2_1_layer, "
        "a5_mamba2_4_layers, a5_lstm: trained on sequences of up to 16 tokens. Chance is"
    )


def test_chance_has_a_row_of_its_own_at_each_length(runs):
    first, second, *_ = runs
    at_end = {str(length): 1 / length for length in LENGTHS}
    known = {"accuracy": dict.fromkeys(at_end, 0.5), "accuracy_last_10": at_end}
    tested = dataclasses.replace(first, evaluation=first.evaluation | {"chance": known})
    cells = ["6.2 %", "3.1 %", "1.6 %", "0.8 %"]
    table = accuracy_table([tested], "accuracy_last_10")
    assert table.rows[1:] == [["chance", "", *cells]] and "most frequent" in table.note
    assert accuracy_table([tested], "accuracy").rows[-1][2:] == ["50.0 %"] * 4
    elsewhere = dataclasses.replace(second, dataset="b5")
    assert accuracy_table([tested, elsewhere], "accuracy_last_10").rows[2:] == [
        ["chance, a5", "", *cells],
        ["chance, b5", "", *["1.7 %"] * 4],
    ]
    alike = dataclasses.replace(tested, dataset="b5")
    assert len(accuracy_table([tested, alike], "accuracy_last_10").rows) == 3


def test_tables_fit_a_page_of_1280_pixels_and_say_where_they_scroll(report):
    widths = [int(width) for width in re.findall(r'<p class="hint hint-(\d+)">', report.html)]
    assert len(widths) == report.html.count("<table>") and max(widths) <= 1280 - 2 * 20
    for width in widths:
        assert (
            f"(min-width: {width + 40}px) {{ .hint-{width} {{ display: none; }} }}" in report.html
        )


def test_provenance_is_that_of_this_machine_and_repository(tmp_path, monkeypatch):
    run = functools.partial(subprocess.run, check=True, cwd=tmp_path, capture_output=True)
    run(["git", "init", "-q"])
    (tmp_path / "dvc.yaml").write_text("stages: {}\n")
    run(["git", "add", "."])
    run(["git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "one"])
    made = Provenance.now(tmp_path, "http://host")
    assert re.fullmatch(r"[0-9a-f]{12}", made.commit or "")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", made.date)
    assert re.search(r", \d+ cores?, (no GPU|\d+ x .+)$", made.machine)
    (tmp_path / "dvc.yaml").write_text("stages: {a: {cmd: b}}\n")
    assert Provenance.now(tmp_path).commit == f"{made.commit} with changes that are not committed"
    (tmp_path / ".git" / "index").write_bytes(b"damaged")  # git status fails, rev-parse does not
    assert Provenance.now(tmp_path).commit == (
        f"{made.commit}, and git does not say whether there are changes since"
    )
    monkeypatch.setenv("PATH", "")
    assert Provenance.now(tmp_path).commit is None


def test_figures_know_the_runs_that_they_show(runs, report):
    names = [run.name for run in runs]
    shown = {file: list(figure.runs) for file, figure in report.figures.items()}
    for of_some in ("a5_accuracy_by_compute.svg", "a5_past_distances.svg"):
        assert shown.pop(of_some) == names[:3]
    assert list(shown.values()) == [names] * 3


def test_the_stage_tracks_the_report_and_the_figures_of_each_entry(tmp_path, monkeypatch):
    class Recorder(NullTracker):
        def __init__(self, name):
            self.name = name

        def log_artifact(self, path, folder=None):
            assert path.read_text().strip()
            tracked.setdefault(self.name, []).append((path.name, folder))

    tracked = {}
    monkeypatch.chdir(tmp_path)
    content = write_parameters()
    write_results(tmp_path)
    monkeypatch.setattr("stages.report.tracked_run_id", lambda *_: None)
    monkeypatch.setattr("stages.report.open_run", lambda table, name, *_: Recorder(name))
    main("")
    assert list(tracked) == [*content["runs"], *content["baselines"]]
    for name, artifacts in tracked.items():
        drawn = ["accuracy_by_length", "training_curves", "accuracy_by_position"]
        drawn += ["past_distances", "accuracy_by_compute"] if name in content["runs"] else []
        figures = [(f"a5_{figure}.svg", "figures") for figure in drawn]
        assert artifacts == [("report.html", None), *figures]


def test_the_folder_of_figures_is_there_where_nothing_is_drawn(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_parameters()
    write_results(tmp_path)
    undrawn = Report(summary={}, html="-", markdown="-", figures={})
    monkeypatch.setattr("implicit_models.reporting.report.make_report", lambda *_, **__: undrawn)
    main("")
    assert list(Path("results/figures").iterdir()) == []


def test_a_model_of_data_that_is_not_there_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    content = write_parameters()
    name = next(iter(content["runs"]))
    content["runs"][name]["dataset"] = "a6"
    Path("params.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(ParameterError, match=f"runs.{name}.dataset = 'a6' is not allowed"):
        main("")


def test_the_same_results_give_the_same_report(runs, report):
    again = make_report(runs, datasets_of(parameters()), ReportParameters(), TRACKED)
    assert again == report


def of_several_data_sets(runs):
    """Return runs, and the same models on two more data sets."""
    return [
        dataclasses.replace(
            run, name=f"{data}{run.name[2:]}", group=f"{data}{run.group[2:]}", dataset=data
        )
        for data in ("a5", "s5", "z60")
        for run in runs
    ]


def test_a_model_looks_alike_in_the_sections_of_all_data_sets(runs, monkeypatch):
    styles = []
    section = type(runs[0]).section

    def noting(group, dataset, parameters, of_group):
        styles.append({run.name: of_group[run.name] for run in group})
        return section(group, dataset, parameters, of_group)

    monkeypatch.setattr(type(runs[0]), "section", noting)
    monkeypatch.setattr("implicit_models.reporting.illustration.svg_of", lambda *_: "<svg></svg>\n")
    datasets = datasets_of(parameters())
    several = dict.fromkeys(("a5", "s5", "z60"), datasets["a5"])
    make_report(of_several_data_sets(runs), several, ReportParameters(), {})
    assert len(styles) == 3
    assert [*styles[0].values()] == [*styles[1].values()] == [*styles[2].values()]


def test_baselines_alone_make_a_report(runs):
    explicit = [run for run in runs if run.kind != "implicit"]
    report = make_report(explicit, datasets_of(parameters()), ReportParameters(), {})
    assert "no implicit model has a score here" in report.markdown
    assert "Search for the fixed point" not in report.markdown
