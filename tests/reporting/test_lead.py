"""What the report says first, for every kind of results that there may be."""

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from implicit_models.problems.problem import results_of
from implicit_models.problems.text.parameters import ReadingParameters
from implicit_models.problems.text.report.lead import text_lead
from implicit_models.problems.text.report.readings import ReadingResults, reading_lead
from implicit_models.problems.word_problem.parameters import WordProblemParameters
from implicit_models.problems.word_problem.report.lead import what_is_learned, word_problem_lead
from implicit_models.reporting.comparison import STEPS_LEFT_OUT, Candidate, best_of_kinds
from implicit_models.reporting.intervals import t_quantile, wilson
from implicit_models.reporting.lead import cost_sentences
from implicit_models.reporting.matching import match_sentence
from implicit_models.reporting.results import read_results
from implicit_models.reporting.training_notes import training_notes
from implicit_models.tracking.tracker import NullTracker
from stages.report import main
from tests.reporting.synthetic import (
    datasets_of,
    parameters,
    seal,
    tables,
    write_parameters,
    write_results,
)
from tests.reporting.synthetic_text import (
    EXPLICIT,
    IMPLICIT,
    MATCHED,
    text_parameters,
    write_text_results,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("synthetic")
    write_results(root)
    write_text_results(root)
    return root / "results" / "runs"


@pytest.fixture(scope="module")
def runs(folder):
    found = read_results(folder, tables(parameters()), results_of)
    return {run.name: run for run in found}


@pytest.fixture(scope="module")
def texts(folder):
    found = read_results(folder, tables(text_parameters()), results_of)
    return {run.name: run for run in found}


def lead_of(*shown) -> list[str]:
    return word_problem_lead(shown, datasets_of(parameters())["a5"], 0.99)


def reading(run, accuracies: Mapping[int, float]):
    """Return a run with these accuracies in place of its own, and a chance of 1 in 60 at each."""
    written = {str(length): accuracy for length, accuracy in accuracies.items()}
    chance = dict.fromkeys(("accuracy", "accuracy_last_10"), dict.fromkeys(written, 1 / 60))
    evaluation = run.evaluation | {
        "accuracy": written,
        "accuracy_last_10": written,
        "chance": chance,
    }
    return dataclasses.replace(run, evaluation=evaluation)


def test_one_run(runs):
    first = reading(runs["a5_implicit_mamba2"], {16: 1.0, 128: 0.987})
    headline, what, solved, cost = lead_of(first)
    assert headline == (
        "a5, accuracy of the last 10 of 128 tokens (8x the length trained on): a5_implicit_mamba2 "
        "(implicit) has 98.7 %; there is no other kind of model here to compare it with."
    )
    assert what == (
        "The word problem of A5, every token hard, trained on up to 16 tokens; 1 implicit model."
    )
    assert solved == (
        "a5_implicit_mamba2 solves the length trained on (99 % or more of its last 10 tokens "
        "right)."
    )
    assert cost == "Training a5_implicit_mamba2 took 626 s."


def test_several_seeds_all_count(runs):
    seeds = [run for run in runs.values() if run.kind == "implicit"]
    levels = (1.0, 0.9, 0.5)
    shown = [reading(run, {16: x, 128: x}) for run, x in zip(seeds, levels, strict=True)]
    rival = reading(runs["a5_mamba2_1_layer"], {16: 0.02, 128: 1 / 60})
    headline, what, solved, level, cost = lead_of(*shown, rival)
    assert (
        "a5_implicit_mamba2 (implicit) has 80.0 % (mean of 3 seeds, 50.0 % to 100.0 %); "
        "it is ahead of a5_mamba2_1_layer (explicit, 1.7 %, no better than chance)."
    ) in headline
    assert what.endswith("1 implicit model (3 seeds) and 1 explicit one.")
    assert solved.startswith(
        "a5_implicit_mamba2 (1 of 3 seeds; 95 % interval of the share: 6 % to 79 %) solves "
    )
    assert solved.endswith(", a5_mamba2_1_layer does not.")
    assert level.endswith(
        "by Student's t of the seeds; a5_mamba2_1_layer was trained with one seed, and another may "
        "end elsewhere."
    )
    assert cost.startswith("Training a5_implicit_mamba2 took 626 s (mean of 3 seeds); ")


def test_implicit_loses_and_is_level(runs):
    first = reading(runs["a5_implicit_mamba2"], {16: 0.4, 128: 0.3})
    better = reading(runs["a5_mamba2_4_layers"], {16: 1.0, 128: 0.9})
    worse = reading(runs["a5_mamba2_1_layer"], {16: 0.1, 128: 0.1})
    recurrent = reading(runs["a5_lstm"], {16: 1.0, 128: 0.33})
    headline, _, solved, level, cost = lead_of(first, worse, better, recurrent)
    assert headline.endswith(
        "has 30.0 %; it loses to a5_mamba2_4_layers (explicit, 90.0 %) "
        "and is level with a5_lstm (recurrent, 33.0 %)."
    )
    assert solved.startswith("a5_mamba2_4_layers and a5_lstm solve the length trained on")
    assert solved.endswith("a5_implicit_mamba2 and a5_mamba2_1_layer do not.")
    assert "one seed, and another may end elsewhere" in level
    assert re.search(r"; a5_lstm took 79 s \(0\.13x\), .*3x the training steps\.", cost)


def test_text(texts):
    corpus = datasets_of(text_parameters())["novels"]
    headline, what, _, cost, matched = text_lead(list(texts.values()), corpus)
    assert headline == (
        f"novels, perplexity of the test text (lower is better): {IMPLICIT[0]} (implicit) has "
        f"4.096 (mean of 2 seeds, 4.055 to 4.137); it is level with {MATCHED[0]} (explicit, 4.349 "
        "± 0.021)."
    )
    assert what.endswith("1 implicit model (2 seeds) and 2 explicit ones.")
    assert cost == (
        f"Training {IMPLICIT[0]} took 60 s and 1.00e15 FLOPs (mean of 2 seeds); {MATCHED[0]} took "
        "about the same time (60 s), 1.02x the training FLOPs, 0.50x the parameters."
    )
    assert matched == (
        f"{MATCHED[0]} is matched to {IMPLICIT[0]} in training FLOPs (1.02x); it has 0.50x the "
        "parameters."
    )
    nothing = {"perplexity": texts[EXPLICIT[0]].evaluation["perplexity"] | {"perplexity": None}}
    run = texts[EXPLICIT[0]]
    broken = dataclasses.replace(run, evaluation=run.evaluation | nothing)
    assert text_lead([broken], corpus)[0] == "novels: no model's perplexity is a number."


def test_baselines_only(runs):
    shown = [run for run in runs.values() if run.kind != "implicit"]
    headline, what, *_ = lead_of(*shown)
    assert "no implicit model has a score here: a5_mamba2_4_layers (explicit) has " in headline
    assert "; a5_lstm (recurrent) has " in headline and "ahead" not in headline
    assert what.endswith("2 explicit models and 1 recurrent one.")


def test_models_that_share_no_length_are_not_compared(runs):
    first = reading(runs["a5_implicit_mamba2"], {16: 1.0, 64: 0.9})
    rival = reading(runs["a5_lstm"], {12: 1.0, 128: 0.9})
    assert lead_of(first, rival)[0] == (
        "a5: the models were tested at no length in common: no comparison can be made."
    )
    longer = reading(runs["a5_lstm"], {16: 1.0, 64: 0.5, 256: 0.9})
    assert lead_of(first, longer)[0].startswith("a5, accuracy of the last 10 of 64 tokens (4x ")


def unfinished_project(root: Path, monkeypatch: pytest.MonkeyPatch) -> dict:
    monkeypatch.chdir(root)
    content = write_parameters()
    monkeypatch.setattr("stages.report.tracked_run_id", lambda *_: None)
    monkeypatch.setattr("stages.report.open_run", lambda *_: NullTracker())
    return content


def test_unfinished(tmp_path, undrawn, monkeypatch):
    unfinished_project(tmp_path, monkeypatch)
    write_results(tmp_path)
    results = Path("results/runs")
    (results / "a5_lstm" / "evaluation.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"a5_lstm/evaluation\.json does not exist; "):
        main("")  # a stage has written it: it is lost
    seal(results / "a5_lstm")
    for path in (results / "a5_implicit_mamba2_seed2").iterdir():
        path.unlink()
    main("")
    text = Path("results/report.md").read_text()
    assert (
        "**Unfinished: 2 of 6 entries have no results yet, and stand in no figure and no table: "
        "a5_implicit_mamba2_seed2 (`dvc repro sweep_test_time_compute@a5_implicit_mamba2_seed2`), "
        "a5_lstm (`dvc repro evaluate_baselines@a5_lstm`).**"
    ) in text
    assert "1 implicit model (2 seeds) and 2 explicit ones." in text
    assert text.count("a5_lstm") == 2 and "Report of 2" in text


def test_nothing_to_report_names_the_first_command(tmp_path, undrawn, monkeypatch):
    unfinished_project(tmp_path, monkeypatch)
    said = r"no entry has all its results in results/runs yet; `dvc repro \w+@a5_"
    with pytest.raises(FileNotFoundError, match=said):
        main("")


@pytest.mark.parametrize(
    ("flops", "parameters", "told"),
    [
        (
            1.0e15,
            1_000_000,
            "is matched to .* in training FLOPs \\(1.00x\\); all else is alike too.",
        ),
        (1.019e15, 2_840_000, "FLOPs \\(1.02x\\); it has 2.84x the parameters."),
        (
            1.13e15,
            1_000_000,
            "was to have the training FLOPs of .* and has 1.13x of them: they are "
            "not matched within 2 %; all else is alike too.",
        ),
    ],
)
def test_what_is_not_matched_is_named(texts, flops, parameters, told):
    run, reference = texts[MATCHED[0]], texts[IMPLICIT[0]]
    training = {"train_baseline": run.training["train_baseline"] | {"training_flops": flops}}
    evaluation = run.evaluation | {"num_parameters": parameters}
    changed = dataclasses.replace(run, training=training, evaluation=evaluation)
    found = match_sentence(changed, {reference.name: reference})
    assert found is not None and re.search(told, found), found
    assert match_sentence(texts[EXPLICIT[0]], texts) is None


def test_a_baseline_of_another_size_is_not_passed_off_as_a_match(texts):
    """As when `d_model` is changed in the run and not in its baseline."""
    first, wide = texts[IMPLICIT[0]], texts[EXPLICIT[0]]
    wide = dataclasses.replace(wide, evaluation=wide.evaluation | {"num_parameters": 2_840_000})
    training = {"train_baseline": wide.training["train_baseline"] | {"training_flops": 1.0e15}}
    wide = dataclasses.replace(wide, training=training)
    pair = [
        Candidate(name=run.name, kind=run.kind, runs=[run], values=[1.0]) for run in (first, wide)
    ]
    told = " ".join(cost_sentences(pair, [first, wide]))
    assert "1.00x the training FLOPs, 2.84x the parameters" in told


def test_two_seeds_do_not_say_how_far_a_third_would_be_off():
    """Two standard errors of two seeds are missed by the third in three cases of ten."""

    def model(name, kind, *values):
        return Candidate(name=name, kind=kind, runs=[], values=values, sampling_error=0.001)

    rival = model("rival", "explicit", 0.6)
    assert model("two", "implicit", 0.7, 0.8).is_level_with(rival)
    assert not model("five", "implicit", 0.7, 0.8, 0.75, 0.72, 0.78).is_level_with(rival)
    generator = np.random.default_rng(0)
    for count in (2, 3, 5):
        drawn = generator.normal(0.5, 0.1, (4000, count))
        seeds = [Candidate(name="x", kind="implicit", runs=[], values=row) for row in drawn]
        covered = sum(abs(each.mean - 0.5) <= each.margin for each in seeds) / len(seeds)
        assert abs(covered - 0.95) < 0.015
    assert t_quantile(5) == pytest.approx(2.7764451052, abs=1e-10)


def test_a_model_with_a_seed_that_has_learned_is_not_at_chance(runs):
    seeds = [run for run in runs.values() if run.kind == "implicit"]
    chance = 1 / 60
    shown = [
        reading(run, {16: x, 128: x}) for run, x in zip(seeds, (1.0, chance, chance), strict=True)
    ]
    assert "(mean of 3 seeds, 1.7 % to 100.0 %);" in lead_of(*shown)[0]
    guessing = [reading(run, {16: chance, 128: chance}) for run in seeds]
    assert "1.7 % (mean of 3 seeds, all 1.7 %), no better than chance;" in lead_of(*guessing)[0]


def test_whether_a_model_is_at_chance_is_asked_at_the_length_that_is_compared(runs):
    first = reading(runs["a5_implicit_mamba2"], {16: 1.0, 128: 0.987})
    rival = reading(runs["a5_mamba2_1_layer"], {16: 0.2, 128: 0.1})

    def at(chance: Mapping[str, float]) -> str:
        known = {"accuracy": dict.fromkeys(chance, 0.9), "accuracy_last_10": chance}
        tested = dataclasses.replace(rival, evaluation=rival.evaluation | {"chance": known})
        return lead_of(first, tested)[0]

    assert at({"16": 0.2, "128": 0.11}).endswith("(explicit, 10.0 %, no better than chance).")
    assert at({"16": 0.2, "128": 0.001}).endswith("(explicit, 10.0 %).")
    assert at({"16": 0.02, "128": 0.4}).endswith("(explicit, 10.0 %, no better than chance).")


def test_costs_are_the_means_of_all_seeds(texts):
    first, second = (texts[name] for name in IMPLICIT)
    training = {k: v | {"training_flops": 3e15} for k, v in second.training.items()}
    second = dataclasses.replace(second, training=training)  # 6e15; the first has 1e15
    rival = texts[EXPLICIT[0]]  # 2.5e14
    pair = [
        Candidate(name="a", kind="implicit", runs=[first, second], values=[1.0, 1.0]),
        Candidate(name="b", kind="explicit", runs=[rival], values=[1.0]),
    ]
    (told,) = cost_sentences(pair, [first, second, rival])
    assert "3.50e15 FLOPs (mean of 2 seeds)" in told and "0.07x the training FLOPs" in told


def test_of_matched_seeds_the_one_that_is_off_is_named(texts):
    good = texts[MATCHED[0]]
    training = {"train_baseline": good.training["train_baseline"] | {"training_flops": 2e15}}
    bad = dataclasses.replace(good, name="off", training=training)
    pair = [
        Candidate(name="a", kind="implicit", runs=[texts[IMPLICIT[0]]], values=[1.0]),
        Candidate(name="b", kind="explicit", runs=[good, bad], values=[1.0, 1.0]),
    ]
    told = cost_sentences(pair, list(texts.values()))[-1]
    assert told.startswith("off was to have the training FLOPs") and "2.00x of them" in told


def evaluated(run, **changes):
    """Return a run of text with changes of its evaluation's perplexity."""
    found = run.evaluation["perplexity"] | changes
    return dataclasses.replace(run, evaluation=run.evaluation | {"perplexity": found})


def test_texts_that_were_read_otherwise_do_not_compare(texts):
    corpus = datasets_of(text_parameters())["novels"]
    first, rival = texts[IMPLICIT[0]], texts[EXPLICIT[0]]
    headline, *more = text_lead([first, evaluated(rival, context_length=8)], corpus)
    assert headline == (
        "novels: models were evaluated with another context length, stride or number of tokens: no "
        "comparison can be made."
    )
    assert len(more) == 1


def test_an_error_that_is_not_known_is_not_zero(texts):
    corpus = datasets_of(text_parameters())["novels"]
    first, rival = texts[IMPLICIT[0]], evaluated(texts[EXPLICIT[0]], standard_error=None)
    assert "it is level with" in text_lead([first, rival], corpus)[0]
    assert "it is ahead of" in text_lead([first, texts[EXPLICIT[0]]], corpus)[0]


def test_a_seed_that_has_diverged_is_not_left_out_in_silence(texts):
    corpus = datasets_of(text_parameters())["novels"]
    first, second, rival = (texts[name] for name in (*IMPLICIT, EXPLICIT[0]))
    diverged = evaluated(second, perplexity=None, standard_error=None)
    headline = text_lead([first, diverged, rival], corpus)[0]
    assert "has 4.055 (1 of 2 seeds; 1 without a number); it is" in headline
    third = dataclasses.replace(first, name="third")
    headline = text_lead([first, diverged, third, rival], corpus)[0]
    assert "(mean of 2 of 3 seeds, all 4.055; 1 without a number)" in headline
    alone = text_lead([diverged, rival], corpus)
    assert "no implicit model has a score here: " in alone[0]
    assert f"The perplexity of {diverged.name} is no number." in alone


def read(run, perplexity: float | None, **search) -> ReadingResults:
    """Return what a run made of the corpus ``letters``."""
    found = {"perplexity": perplexity, "standard_error": None if perplexity is None else 0.01}
    content = {"kind": run.kind, "perplexity": found}
    entry = ReadingParameters(model=f"models/{run.name}/final", corpus="letters", **search)
    name = "_".join((run.name, "letters", *search))
    return ReadingResults(name=name, entry=entry, content=content)


def test_readings_of_all_seeds_count(texts):
    names = zip((*IMPLICIT, EXPLICIT[0]), (3.0, 9.0, 4.0), strict=True)
    readings = [read(texts[name], perplexity) for name, perplexity in names]
    (told,) = reading_lead(readings, list(texts.values()))
    assert f"{IMPLICIT[0]} (implicit) has 5.196 (mean of 2 seeds, 3.000 to 9.000)" in told
    assert f"it is level with {EXPLICIT[0]} (explicit, 4.000 ± 0.010)" in told


def test_a_seed_whose_reading_is_no_number_is_not_left_out_in_silence(texts):
    first, second, rival = (texts[name] for name in (*IMPLICIT, EXPLICIT[0]))
    runs = list(texts.values())
    (told,) = reading_lead([read(first, 3.0), read(second, None), read(rival, 4.0)], runs)
    assert f"{first.name} (implicit) has 3.000 (1 of 2 seeds; 1 without a number); it is" in told
    told, silent = reading_lead([read(first, None), read(second, None), read(rival, 4.0)], runs)
    assert "no implicit model has a score here: " in told
    assert silent == f"The perplexity of letters is no number for {first.name}."


def test_readings_of_one_model_with_two_searches_are_no_two_seeds(texts):
    first, rival = texts[IMPLICIT[0]], texts[EXPLICIT[0]]
    readings = [read(first, 3.0), read(first, 5.0, tolerance=0.5), read(rival, 4.0)]
    (told,) = reading_lead(readings, list(texts.values()))
    assert f"{first.name}_letters (implicit) has 3.000 ± 0.010; it is ahead of {rival.name}" in told
    twice = [readings[0], dataclasses.replace(readings[0], name="again"), readings[2]]
    (told,) = reading_lead(twice, list(texts.values()))
    assert f"{first.name} (implicit) has 3.000 ± 0.010; it is" in told


def test_of_searches_that_differ_in_their_steps_alone_the_fullest_counts(texts):
    first, second, rival = (texts[name] for name in (*IMPLICIT, EXPLICIT[0]))
    steps = ((first, 8, 3.0), (first, 32, 5.0), (second, 32, 6.0), (second, 8, 2.0))
    readings = [read(run, perplexity, max_steps=most) for run, most, perplexity in steps]
    readings.append(read(rival, 4.0))
    told, said = reading_lead(readings, list(texts.values()))
    assert f"{first.name} (implicit) has 5.477 (mean of 2 seeds, 5.000 to 6.000)" in told
    assert said == STEPS_LEFT_OUT
    other = ReadingParameters(model=f"models/{first.name}/final", corpus="other", max_steps=64)
    readings.append(dataclasses.replace(readings[0], entry=other))
    told, elsewhere, said = reading_lead(readings, list(texts.values()))
    assert f"{first.name} (implicit) has 5.477 (mean of 2 seeds, 5.000 to 6.000)" in told
    assert "Perplexity of other" in elsewhere and said == STEPS_LEFT_OUT


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (626 * 1.29, "about the same time (808 s)"),
        (626 * 1.4, "876 s (1.40x)"),
        (180, "180 s (0.29x)"),
        (59, "59 s, "),  # too short to compare
    ],
)
def test_times_that_a_loaded_machine_may_have_swapped_are_the_same(runs, seconds, told):
    first, other = runs["a5_implicit_mamba2"], runs["a5_lstm"]
    training = {"train_baseline": other.training["train_baseline"] | {"train_seconds": seconds}}
    other = dataclasses.replace(other, training=training)
    pair = [
        Candidate(name=run.name, kind=run.kind, runs=[run], values=[1.0]) for run in (first, other)
    ]
    assert f"a5_lstm took {told}" in cost_sentences(pair, [first, other])[0]


@pytest.mark.parametrize(
    ("count", "total", "interval"),
    [
        (5, 5, (0.5655, 1.0)),
        (4, 5, (0.3755, 0.9638)),
        (1, 5, (0.0362, 0.6245)),
        (0, 3, (0.0, 0.5615)),
    ],
)
def test_the_interval_of_a_share_is_wilsons(count, total, interval):
    assert wilson(count, total) == pytest.approx(interval, abs=1e-4)


def test_the_best_of_a_kind_is_best_on_average_and_not_with_its_best_seed(runs):
    def model(name, kind, *values):
        return Candidate(name=name, kind=kind, runs=[], values=values)

    steady, lucky = (
        model("steady", "explicit", 0.7, 0.8, 0.75),
        model("lucky", "explicit", 0.1, 1.0),
    )
    other = model("other", "implicit", 0.5)
    assert best_of_kinds([lucky, steady, other], higher_is_better=True) == [other, steady]
    assert best_of_kinds([lucky, steady], higher_is_better=False) == [lucky]
    assert other.is_level_with(lucky) and not other.is_level_with(steady)


def test_the_training_notes_say_what_a_reader_wonders_about(runs):
    shown = [runs["a5_implicit_mamba2"], runs["a5_mamba2_1_layer"], runs["a5_lstm"]]
    notes = " ".join(training_notes(shown))
    assert "the change from the bounded phase to the free one" in notes
    assert "grow from 4 to 16 tokens over the first" in notes
    assert "that is why the training accuracy falls" in notes
    assert "a5_lstm had 3x the training steps of a5_implicit_mamba2." in notes
    assert "16 self-iterations are the most that training allows" in notes
    assert training_notes([runs["a5_mamba2_1_layer"]])[0].startswith("Sequences grow from 4 to 16")


def test_the_training_notes_say_which_trainings_pass_their_carry(runs):
    shown = runs["a5_implicit_mamba2"], runs["a5_lstm"]
    assert "go on from" not in " ".join(training_notes(shown))
    entry = shown[0].entry
    free = entry.free.replace(carry="passed", carry_steps=7)
    passing = dataclasses.replace(shown[0], entry=entry.replace(free=free))
    notes = training_notes([passing, shown[1]])
    assert any("a5_implicit_mamba2: 7 training steps go on from what" in note for note in notes)
    bounded = entry.bounded.replace(carry="passed")
    passing = dataclasses.replace(shown[0], entry=entry.replace(free=free, bounded=bounded))
    assert f"{7 + entry.bounded.steps:,} training steps go on" in " ".join(
        training_notes([passing])
    )


def test_a_search_that_stays_below_its_cap_is_not_said_to_be_capped(runs):
    run = runs["a5_implicit_mamba2"]
    values = dataclasses.replace(run.history["self_iterations"])
    object.__setattr__(values, "values", 0.9 * values.values)
    calm = dataclasses.replace(run, history=run.history | {"self_iterations": values})
    assert "most that training allows" not in " ".join(training_notes([calm]))
    another = runs["a5_implicit_mamba2_seed1"]
    assert "most that training allows" in " ".join(training_notes([calm, another]))
    unknown = dataclasses.replace(values)
    object.__setattr__(unknown, "values", np.full_like(values.values, np.nan))
    calm = dataclasses.replace(run, history=run.history | {"self_iterations": unknown})
    assert "most that training allows" not in " ".join(training_notes([calm]))


@pytest.mark.parametrize(
    ("group", "named"),
    [
        ("A5", "A5"),
        ("A5xM", "A5xM"),
        ("<(1 2 3 4 5), (1 2)>", "<(1 2 3 4 5), (1 2)> (120 elements)"),
    ],
)
def test_a_group_of_generators_says_how_large_it_is(group, named):
    split = {"num_sequences": 8, "length": 8}
    test = {"num_sequences": 8, "lengths": (8,)}
    dataset = WordProblemParameters(
        kind="word_problem", group=group, seed=0, train=split, validation=split, test=test
    )
    assert what_is_learned(dataset) == f"The word problem of {named}, every token hard"
