"""What the report says first of streams of bAbI's tasks."""

import dataclasses
from types import SimpleNamespace

import pytest

from implicit_models.problems.catbabi.report.lead import catbabi_lead
from implicit_models.problems.catbabi.report.noise import welch_p_value
from implicit_models.reporting.comparison import Candidate
from implicit_models.reporting.parameters import ReportParameters
from implicit_models.reporting.report import make_report
from tests.problems.catbabi.report.synthetic import (
    DATASETS,
    EXPLICIT,
    IMPLICIT,
    LSTM,
    TASKS,
    WIDE,
    changed,
    levelled,
    read_catbabi_results,
    write_catbabi_results,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("synthetic")
    write_catbabi_results(root)
    return root


@pytest.fixture(scope="module")
def runs(folder):
    return read_catbabi_results(folder)


def lead_of(*shown) -> str:
    return " ".join(catbabi_lead(shown))


def test_one_run(runs):
    headline, what, interval, cost, test_cost, elsewhere = catbabi_lead(
        [levelled(runs[WIDE], 0.937)]
    )
    assert headline == (
        "babi, catbAbI-style, share of right answers: babi_implicit_2_layers (implicit) has "
        "93.7 %; there is no other kind of model here to compare it with."
    )
    assert "tasks, generated here, joined into one endless stream" in what
    assert "; 20,300 test questions; trained on the answers alone; " in what
    assert what.endswith("would be right in 34.0 %; 1 implicit model.")
    assert interval == (
        "The 95 % intervals (test questions, one seed each) are 93.4 % to 94.0 % for "
        "babi_implicit_2_layers."
    )
    assert cost == "Training babi_implicit_2_layers took 622 s and 2.00e14 FLOPs."
    assert test_cost == (
        "A token of the test took babi_implicit_2_layers 2.50e7 FLOPs (11.8 evaluations of the "
        "cell)."
    )
    assert elsewhere.endswith("is in docs/results.md; it is not about these stories.")


def test_several_seeds_all_count(runs):
    levels = (0.97, 0.9, 0.95)
    seeds = [levelled(runs[name], x) for name, x in zip(IMPLICIT, levels, strict=True)]
    rival = levelled(runs[EXPLICIT[0]], 0.34)
    told = lead_of(*seeds, rival)
    assert (
        "babi_implicit_1_layer (implicit) has 94.0 % (mean of 3 seeds, 90.0 % to 97.0 %); it is "
        "ahead of babi_mamba2_1_layer (explicit, 34.0 %, no better than chance)."
    ) in told
    assert "1 implicit model (3 seeds) and 1 explicit one." in told
    # Student's t of three seeds, 4.303 * 3.61 % / sqrt(3), and what the questions add
    assert "(test questions and seeds) are 85.0 % to 100.0 % for babi_implicit_1_layer" in told
    assert "test questions and, of models with several seeds, of the seeds, at a level" in told


def test_the_tasks_are_compared_with_the_explicit_model_of_as_many_layers(runs):
    told = lead_of(*runs.values())
    assert "it is ahead of babi_mamba2_4_layers (explicit, 87.0 %)" in told
    assert (
        "Task by task: babi_implicit_1_layer is ahead of babi_mamba2_1_layer (explicit, 1 layer "
        "each) on 3 of 20 (2, 3 and 19), behind it on 1 (7) and within noise of it on 16; "
        "babi_implicit_2_layers is ahead of babi_mamba2_2_layers (explicit, 2 layers each) on 3 of "
        "20 (2, 3 and 19), behind it on none and within noise of it on 17."
    ) in told
    assert "babi_mamba2_2_layers 4.00e6 (0.16x)" in told  # what the better comparison costs


def test_without_an_explicit_model_of_as_many_layers_no_tasks_are_compared(runs):
    told = lead_of(runs[WIDE], runs[EXPLICIT[2]])
    assert "No explicit model here has as many layers as an implicit one" in told
    assert "Task by task" not in told
    assert "layers" not in lead_of(runs[LSTM]).replace("2_layers", "")


def test_the_implicit_model_loses(runs):
    shown = [levelled(runs[WIDE], 0.6), levelled(runs[EXPLICIT[1]], 0.8)]
    told = lead_of(*shown)
    assert "has 60.0 %; it loses to babi_mamba2_2_layers (explicit, 80.0 %)." in told
    behind = ", ".join(map(str, list(TASKS)[:-1]))
    assert f"on none of 20, behind it on 20 ({behind} and 20) and within noise of it on 0." in told
    assert "Noise is that of the test questions alone, one seed each, at a level of 5 %" in told


def test_a_difference_of_noise_is_none(runs):
    shown = [levelled(runs[WIDE], 0.800), levelled(runs[EXPLICIT[1]], 0.803)]
    told = lead_of(*shown)
    assert "it is level with babi_mamba2_2_layers (explicit, 80.3 %)." in told
    assert (
        "babi_implicit_2_layers is within noise of babi_mamba2_2_layers (explicit, 2 layers each) "
        "on all 20."
    ) in told
    assert "ahead" not in told


def test_one_task_of_twenty_has_to_differ_by_more_than_one_alone(runs):
    """Two and a half standard errors are found on some of twenty tasks of models that are alike."""
    first, other = levelled(runs[WIDE], 0.8), levelled(runs[EXPLICIT[1]], 0.8)
    error = (2 * 0.16 / 1000) ** 0.5
    for errors, expected in ((2.5, "on all 20"), (3.5, "on 1 of 20 (4)")):
        by_task = first.evaluation["accuracy_by_task"] | {"4": 0.8 + errors * error}
        assert expected in lead_of(changed(first, accuracy_by_task=by_task), other)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        # Welch's t-test of SciPy 1.17: ttest_ind(one, other, equal_var=False).pvalue
        ((0.9, 0.8, 0.85), (0.5, 0.7, 0.6), 0.031562231625678436),
        ((0.9, 0.95), (0.1, 0.12, 0.11), 0.014137154123486652),
    ],
)
def test_the_noise_of_seeds_is_welchs(one, other, expected):
    models = [Candidate(name="", kind="", runs=[], values=values) for values in (one, other)]
    assert welch_p_value(*models) == pytest.approx(expected, rel=1e-12)


def test_the_noise_of_questions_is_normal():
    values = {"name": "", "kind": "", "runs": []}
    one = Candidate(**values, values=[0.5], sampling_error=0.3)
    other = Candidate(**values, values=[0.5 + 1.959964 * 0.5], sampling_error=0.4)
    assert welch_p_value(one, other) == pytest.approx(0.05, rel=1e-5)
    assert welch_p_value(one, one) == pytest.approx(1.0)


@pytest.mark.parametrize(("source", "name"), [("files", "CatbAbI"), ("generated", "catbAbI-style")])
def test_only_the_stories_of_the_files_are_called_catbabi(runs, source, name):
    shown = [changed(run, source=source) for run in runs.values()]
    told = lead_of(*shown)
    assert told.startswith(f"babi, {name}, share of right answers: ")
    assert ("docs/results.md" in told) == (source == "generated")
    assert ("from bAbI's files" in told) == (source == "files")


def test_unfinished(tmp_path, undrawn):
    write_catbabi_results(tmp_path)
    for name in (IMPLICIT[2], EXPLICIT[2]):
        for path in (tmp_path / "results" / "runs" / name).iterdir():
            path.unlink()
    missing: dict[str, str] = {}
    runs = read_catbabi_results(tmp_path, missing=missing)
    assert list(missing) == [IMPLICIT[2], EXPLICIT[2]]
    report = make_report(list(runs.values()), DATASETS, ReportParameters(), {}, missing=missing)
    assert "**Unfinished: 2 of 8 entries have no results yet" in report.markdown
    assert "2 implicit models (up to 2 seeds), 2 explicit ones and" in report.markdown
    assert "it is ahead of babi_mamba2_2_layers (explicit, 86.3 %)" in report.markdown


def with_model(run, name: str, **model):
    """Return a run of another entry, of which no more is known than its model."""
    stub = SimpleNamespace(kind=run.kind, weights_source=None, **model)
    entry = SimpleNamespace(model=stub, matched_to=None)
    return dataclasses.replace(run, name=name, group=name, entry=entry)


def test_a_model_that_tells_no_layers_is_compared_with_none(runs):
    unknown = with_model(runs[WIDE], "pretrained", family="huggingface")
    assert unknown.num_layers is None
    assert "Task by task" not in lead_of(unknown, runs[EXPLICIT[1]])


def test_a_rival_of_the_same_family_goes_before_a_better_one(runs):
    llama = levelled(with_model(runs[EXPLICIT[1]], "llama", family="llama", num_layers=2), 0.99)
    told = lead_of(runs[WIDE], llama, runs[EXPLICIT[1]])
    assert "it loses to llama (explicit, 99.0 %)." in told
    assert "is ahead of babi_mamba2_2_layers (explicit, 2 layers each) on 3 of 20" in told
    alone = lead_of(runs[WIDE], llama)
    assert "is ahead of llama (explicit, 2 layers each) on none of 20, behind it on" in alone
