"""Tables of README.md and docs/results.md are what was measured."""

import datetime
import errno
import json
import os
import re
import subprocess

import pytest
import yaml
from omegaconf import OmegaConf

from implicit_models.problems.catbabi.report.published import PUBLISHED
from pipelines.seeds import with_seeds
from scripts import measured as measurements
from scripts import measured_tables, results_tables
from scripts.store_notebooks import NotStoredError, check_preset, composed

RUN = {"kind": "implicit", "data": "word_problem", "num_parameters": 1234, "train_seconds": 61.4}
RUN |= {"training_flops": 9.74e12, "scores": {"160": 0.5, "20": 1.0}, "dataset": "a5", "seed": 0}
RUN |= {
    "label": "implicit Mamba2, 1 layer",
    "layers": 1,
    "name": "a5_implicit_mamba2",
    "group": "a",
    "by": {"day": "2026-11-27", "commit": "827cda0"},
}
LSTM = RUN | {
    "group": "lstm",
    "kind": "recurrent",
    "label": "torch's LSTM, 1 layer",
    "scores": {"20": 0.25},
}


def explicit(layers):
    return RUN | {
        "kind": "explicit",
        "group": f"explicit_{layers}",
        "label": f"explicit Mamba2, {layers} layers",
        "layers": layers,
    }


@pytest.mark.parametrize("page", results_tables.PAGES, ids=lambda page: page.name)
def test_a_page_has_what_was_measured(page):
    text = page.read_text()
    wanted = "python scripts/results_tables.py writes it"
    assert results_tables.written(text) == text, wanted
    assert "<!-- table: " in text
    for which in ("table", "rates", "tasks", "scores"):
        assert text.count(f"<!-- {which}: ") == text.count(f"<!-- end of {which} -->")


def test_a_full_disk_leaves_a_page_as_it_is(monkeypatch, tmp_path, capsys):
    def full(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    page = tmp_path / "page.md"
    page.write_text("<!-- published -->\n<!-- end of published -->\n")
    monkeypatch.setattr(results_tables, "PAGES", [page])
    monkeypatch.setattr("implicit_models.files.sync", full)
    assert results_tables.main([]) == 2
    assert f"No space left on device: '{page}'" in capsys.readouterr().err
    assert page.read_text() == "<!-- published -->\n<!-- end of published -->\n"


def test_what_others_have_published_is_what_the_report_tells():
    text = results_tables.PAGES[1].read_text()
    assert text.count("<!-- published -->") == text.count("<!-- end of published -->") == 1
    lines = measured_tables.published().splitlines()
    assert len(lines) == 2 + len(PUBLISHED)
    assert lines[:3] == [
        "| model | source | answers alone (QM) | all words (LM) |",
        "| --- | --- | --: | --: |",
        "| FWM | Schlag et al. 2021 | 96.75 | 93.04 |",
    ]
    assert lines[-1] == "| FP-Mamba-Householder, 2 layers | FP-RNN, NeurIPS 2025 | 89.55 |  |"
    damaged = text.replace("| 96.75 |", "| 97.75 |")
    assert damaged != text == results_tables.written(damaged)


def test_every_measurement_is_in_a_table():
    text = "".join(page.read_text() for page in results_tables.PAGES)
    for path in measurements.MEASURED.glob("*.json"):
        assert re.search(rf"<!-- (table|tasks|scores): (\w+ )*{path.stem}( \w+)* -->", text), path


def test_a_number_by_hand_does_not_stay():
    page = results_tables.PAGES[1].read_text()
    damaged = page.replace("| 100.0 % |", "| 99.9 % |")
    assert damaged != page and results_tables.written(damaged) != damaged


def test_rows_are_sorted_by_what_they_are_and_columns_by_their_length():
    seeds = [RUN | {"seed": seed} for seed in (10, 0, 2)]
    lines = measured_tables.table([LSTM, explicit(16), explicit(2), *seeds]).splitlines()
    assert lines[0] == "|  | parameters | 20 tokens | 160 tokens | training | training FLOPs |"
    assert [line.split(" | ")[0] for line in lines[2:]] == [
        "| implicit Mamba2, 1 layer, seed 0",
        "| implicit Mamba2, 1 layer, seed 2",
        "| implicit Mamba2, 1 layer, seed 10",
        "| explicit Mamba2, 2 layers",
        "| explicit Mamba2, 16 layers",
        "| torch's LSTM, 1 layer",
    ]
    assert lines[2].endswith("| 1,234 | 100.0 % | 50.0 % | 61 s | 9.7e12 |")
    assert lines[-1].endswith("| 1,234 | 25.0 % |  | 61 s | 9.7e12 |")
    assert "FLOPs" not in measured_tables.table([RUN, LSTM], short=True)
    unknown = measured_tables.table([RUN | {"training_flops": None}])
    assert unknown.endswith("| 61 s |  |\n")
    assert measured_tables.table([RUN | {"training_flops": 2.2e9}]).endswith("| 2.2e9 |\n")


def test_several_kinds_of_data_have_a_column():
    found = {"data": "formal_language", "scores": {"test": 0.5, "validation": 1.0}}
    runs = [RUN | found | {"dataset": "parity"}, explicit(2) | found | {"dataset": "cycle"}]
    lines = measured_tables.table(runs).splitlines()
    assert lines[0].startswith("|  | data | parameters | validation | test | ")
    assert lines[1].startswith("| --- | --- | --: | ")
    assert lines[2].startswith("| implicit Mamba2, 1 layer | parity | 1,234 | 100.0 % | 50.0 % |")
    assert lines[3].startswith("| explicit Mamba2, 2 layers | cycle | ")


def test_medians_of_all_seeds_stand_by_data_and_model():
    found = {"data": "formal_language"}
    of_seeds = [
        RUN | found | {"seed": seed, "scores": {"test_of_it": share, "validation": 1.0}}
        for seed, share in enumerate((0.9, 0.5, 1.0))
    ]
    parity = explicit(2) | found | {"dataset": "parity", "scores": {"validation": 0.25}}
    assert measured_tables.scores([*of_seeds, parity]).splitlines() == [
        "|  |  | implicit Mamba2, 1 layer | explicit Mamba2, 2 layers |",
        "| --- | --- | --: | --: |",
        "| a5 | validation | 100.0 % (100.0 to 100.0, 3 seeds) |  |",
        "| a5 | test of it | 90.0 % (50.0 to 100.0, 3 seeds) |  |",
        "| parity | validation |  | 25.0 % |",
    ]


def test_of_several_presets_the_last_that_has_a_model_has_all_of_its_seeds(monkeypatch):
    found = RUN | {"data": "formal_language"}
    kept = {
        "one": [found | {"seed": seed, "scores": {"test": 0.1}} for seed in range(3)],
        "two": [found | {"scores": {"test": 0.2}}],
    }
    kept["one"].append(found | {"dataset": "b", "scores": {"test": 0.3}})
    monkeypatch.setattr(measurements, "of_preset", kept.__getitem__)
    page = results_tables.written("<!-- scores: one two -->\n<!-- end of scores -->")
    assert "| a5 | test | 20.0 % |" in page and "| b | test | 30.0 % |" in page
    assert "| a5 | test | 10.0 % (" in results_tables.written(
        "<!-- scores: two one -->\n<!-- end of scores -->"
    )


def test_a_further_test_has_a_table_of_its_own(monkeypatch):
    tested = RUN | {"further_tests": {"0.9": {"20": 0.75, "160": 0.25}}}
    monkeypatch.setattr(measurements, "of_preset", lambda preset: [tested, LSTM])
    page = "<!-- {0}: mixtures identity {1} -->\n<!-- end of {0} -->"
    lines = results_tables.written(page.format("table", "0.9")).splitlines()
    assert lines[0] == "<!-- table: mixtures identity 0.9 -->"
    assert lines[1].startswith("|  | parameters | 20 tokens | 160 tokens |")
    assert lines[3].startswith("| implicit Mamba2, 1 layer | 1,234 | 75.0 % | 25.0 % |")
    assert lines[4] == "", "of the LSTM no further test was measured"
    assert "| a5 | 160 tokens | 25.0 % |" in results_tables.written(page.format("scores", "0.9"))
    with pytest.raises(measurements.NotMeasuredError, match="no further test with identity 0.5"):
        results_tables.written(page.format("table", "0.5"))


def test_models_that_differ_in_more_than_their_seed_are_no_seeds_of_each_other():
    found = RUN | {"data": "formal_language", "scores": {"test": 0.1}}
    lines = measured_tables.scores([found, found | {"group": "b", "scores": {"test": 0.9}}])
    assert lines.splitlines()[0] == (
        "|  |  | implicit Mamba2, 1 layer (a) | implicit Mamba2, 1 layer (b) |"
    )
    assert lines.splitlines()[2] == "| a5 | test | 10.0 % | 90.0 % |"


def test_stories_have_one_score():
    lines = measured_tables.table([RUN | {"data": "catbabi", "scores": 0.625}]).splitlines()
    assert "| right answers |" in lines[0] and "| 62.5 % |" in lines[2]


@pytest.mark.parametrize(
    ("entry", "kind", "label"),
    [
        ({"model": {"family": "mamba2", "num_layers": 1}}, "implicit", "implicit Mamba2, 1 layer"),
        (
            {"model": {"family": "mamba2", "num_layers": 2, "allow_neg_eigval": True}},
            *("explicit", "explicit Mamba2, 2 layers, eigenvalues in [-1, 1]"),
        ),
        (
            {
                "model": {"family": "mamba2", "num_layers": 1},
                "bounded": {"share": 0.7},
                "free": {"max_steps": 24, "phantom_steps": 4},
            },
            *("implicit", "implicit Mamba2, 1 layer, 70 % bounded, free (24+4)"),
        ),
        (
            {"model": {"family": "llama", "num_layers": 4}, "match": {"run": "a", "vary": "steps"}},
            *("explicit", "explicit Llama, 4 layers, training FLOPs of the implicit one"),
        ),
        (
            {"model": {"family": "llama"}, "match": {"quantity": "parameters", "vary": "width"}},
            *("explicit", "explicit Llama, parameters of the implicit one"),
        ),
        (
            {
                "model": {"family": "llama"},
                "bounded": {"share": 0.5},
                "free": {"max_steps": 24, "gradient": "unrolled", "unrolled_steps": 2},
            },
            *("implicit", "implicit Llama, 50 % bounded, free (24+2, unrolled gradient)"),
        ),
        (
            {
                "model": {"family": "llama"},
                "bounded": {"share": 0.5},
                "free": {"max_steps": 24, "gradient": "implicit_function", "phantom_steps": None},
            },
            *("implicit", "implicit Llama, 50 % bounded, free (24, implicit function gradient)"),
        ),
        ({"model": {"family": "lstm", "num_layers": 1}}, "recurrent", "torch's LSTM, 1 layer"),
        ({"model": {"family": "huggingface"}}, "explicit", "explicit huggingface"),
    ],
)
def test_a_label_says_what_params_yaml_says(entry, kind, label):
    described = measurements.described(entry | {"dataset": "a5", "seed": 3}, kind)
    layers = entry["model"].get("num_layers", 0)
    assert described == {"dataset": "a5", "label": label, "layers": layers, "seed": 3}


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """A page with a table of the preset quick, and a repository with its results."""
    monkeypatch.setattr(measurements, "MEASURED", tmp_path / "measured")
    monkeypatch.setattr(results_tables, "PAGES", (tmp_path / "page.md",))
    (tmp_path / "page.md").write_text(PAGE)
    results = tmp_path / "clone" / "results"
    results.mkdir(parents=True)
    (results.parent / "params.yaml").write_text(composed("quick"))
    run = {key: RUN[key] for key in measurements.KEPT}
    run |= {"accuracy_last_10": {"12": 0.75}, "mlflow_run_id": "abc"}
    run |= {"further_tests": {"0.9": {"12": 0.5}}}
    summary = {"runs": {"s3_implicit_mamba2": run}, "success": {}}
    (results / "summary.json").write_text(json.dumps(summary))
    return tmp_path


PAGE = "before\n<!-- table: quick -->\nold\n<!-- end of table -->\nafter\n"


def test_what_a_preset_has_left_is_kept_and_written(measured):
    assert results_tables.main(["--measured", f"quick={measured / 'clone'}"]) == 0
    (kept,) = json.loads((measured / "measured" / "quick.json").read_text())
    assert kept["name"] == "s3_implicit_mamba2" and kept["dataset"] == "s3"
    assert "mlflow_run_id" not in kept and kept["scores"] == {"12": 0.75}
    assert kept["further_tests"] == {"0.9": {"12": 0.5}}
    command = ["git", "rev-parse", "HEAD"]
    commit = subprocess.check_output(command, cwd=results_tables.ROOT, text=True)
    assert kept["by"]["day"] in {str(datetime.date.today() - datetime.timedelta(n)) for n in (0, 1)}
    assert len(kept["by"]["commit"]) == 7 and commit.startswith(kept["by"]["commit"])
    lines = (measured / "page.md").read_text().splitlines()
    assert lines[0] == "before" and lines[-1] == "after"
    assert lines[4].startswith("| implicit Mamba2, 1 layer | 1,234 | 75.0 % |")


def test_what_stands_below_a_table_says_by_when_its_rows_were_taken():
    later = RUN | {"by": {"day": "2026-12-01", "commit": "1692f4a"}}
    again = RUN | {"by": {"day": "2026-11-27", "commit": "d01639e"}}
    assert measurements.said_of([later, RUN, again, RUN], dated=True) == (
        "\nBy 27 November 2026, `827cda0`, `d01639e`; 1 December 2026, `1692f4a`.\n"
    )
    assert measurements.said_of([RUN], dated=False) == ""


@pytest.mark.parametrize("preset", sorted(path.stem for path in measurements.MEASURED.iterdir()))
def test_a_row_is_by_a_commit_that_there_is(preset):
    shallow = ["git", "rev-parse", "--is-shallow-repository"]
    if subprocess.check_output(shallow, cwd=results_tables.ROOT, text=True).strip() == "true":
        pytest.skip("this clone was made without its history")
    for by in {tuple(run["by"].items()) for run in measurements.of_preset(preset)}:
        found = dict(by)
        command = ["git", "log", "-1", "--format=%cs", found["commit"], "--"]
        day = subprocess.check_output(command, cwd=results_tables.ROOT, text=True).strip()
        assert "" < day <= found["day"]


def test_results_of_something_else_are_refused_and_nothing_is_written(measured, capsys):
    clone = measured / "clone"
    damage = {
        "results/summary.json": [
            (None, "does not exist; dvc repro writes it"),
            (b'{"runs": ', "cannot be read: "),
            (b"\xff\xfe", "cannot be read: "),
            (b"{}", "is not of the entries of params.yaml: 'runs'; dvc repro writes it anew"),
            (b'{"runs": {}}', "has no runs; dvc repro writes it anew"),
            (b'{"runs": {"other": {}}}', "is not of the entries of params.yaml: 'other'"),
        ],
        "params.yaml": [
            (b"- 1\n", "is not that of the preset quick, under any seeds: "),
            (b"runs: {}\n", "is not that of the preset quick, under any seeds: "),
            (b"\xff\xfe", "cannot be read: "),
            (b"a: [", "cannot be read: "),
            (None, "does not exist; dvc repro writes it"),
        ],
    }
    for name, cases in damage.items():
        whole = (clone / name).read_bytes()
        for content, message in cases:
            (clone / name).unlink()
            if content is not None:
                (clone / name).write_bytes(content)
            assert results_tables.main(["--measured", f"quick={clone}"]) == 2
            error = capsys.readouterr().err
            assert error.startswith(f"error: {clone / name} {message}") and error.count("\n") == 1
            (clone / name).write_bytes(whole)
    assert results_tables.main(["--measured", f"quikc={clone}"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    for wrong in ("quick", "=", "quick=", f"={clone}"):
        with pytest.raises(SystemExit, match="2"):
            results_tables.main(["--measured", wrong])
        assert f"--measured {wrong}: write PRESET=FOLDER" in capsys.readouterr().err
    assert (measured / "page.md").read_text() == PAGE and not (measured / "measured").exists()
    assert results_tables.main([]) == 2
    assert "quick.json does not exist; scripts/results_tables.py" in capsys.readouterr().err


def test_a_kind_of_data_without_a_table_is_told(measured, capsys):
    clone = measured / "clone"
    runs = {"s3_implicit_mamba2": RUN | {"data": "chess"}}
    (clone / "results" / "summary.json").write_text(json.dumps({"runs": runs}))
    assert results_tables.main(["--measured", f"quick={clone}"]) == 2
    assert capsys.readouterr().err == (
        "error: the preset quick has models of the kind chess, which have no table; those of "
        "word_problem, formal_language, catbabi, text have one\n"
    )
    assert (measured / "page.md").read_text() == PAGE and not (measured / "measured").exists()


@pytest.mark.parametrize(
    ("preset", "seeds", "run"),
    [
        ("quick", [2, 1], "s3_implicit_mamba2"),
        ("laptop", [0, 1], "a5_implicit_mamba2"),
        ("ten_seeds", [0, 1, 2], "a5_implicit_mamba2"),
        ("catbabi", [0, 1, 2], "stories_implicit_mamba2"),
    ],
)
def test_results_of_a_preset_under_other_seeds_are_its_own(measured, capsys, preset, seeds, run):
    clone = measured / "clone"
    parameters = with_seeds(yaml.safe_load(composed(preset)), seeds)
    (clone / "params.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(parameters)))
    names = [name for name in parameters["runs"] if name in (run, f"{run}_seed_1")]
    data = "catbabi" if preset == "catbabi" else "word_problem"
    kept = {key: RUN[key] for key in measurements.KEPT} | {"accuracy_last_10": {"12": 0.75}}
    kept |= {"data": data, "accuracy": 0.5, "accuracy_by_task": {"1": 0.5}}
    summary = {"runs": dict.fromkeys(names, kept)}
    (clone / "results" / "summary.json").write_text(json.dumps(summary))
    measurements.take(preset, clone)
    found = json.loads((measured / "measured" / f"{preset}.json").read_text())
    assert [(each["seed"], each["group"]) for each in found] == [(0, run), (1, run)]
    summary = {"runs": {names[1]: kept | {"train_seconds": 99}}}
    (clone / "results" / "summary.json").write_text(json.dumps(summary))
    measurements.take(preset, clone, further=True)
    both = json.loads((measured / "measured" / f"{preset}.json").read_text())
    assert both == [found[0], found[1] | {"train_seconds": 99}]
    measurements.take(preset, clone)
    assert json.loads((measured / "measured" / f"{preset}.json").read_text()) == both[1:]
    baseline = next(iter(parameters["baselines"]))  # another model of the preset, not measured here
    beside = both[0] | {"name": baseline, "group": baseline}
    (measured / "measured" / f"{preset}.json").write_text(json.dumps([beside]))
    measurements.take(preset, clone, further=True)
    kept_both = json.loads((measured / "measured" / f"{preset}.json").read_text())
    assert kept_both == [beside, both[1]]
    for other in ({"group": "gone"}, {"overrides": ["a=1"]}):
        kept_before = [both[0] | other]
        (measured / "measured" / f"{preset}.json").write_text(json.dumps(kept_before))
        with pytest.raises(measurements.NotMeasuredError, match=f"has {both[0]['name']}, which"):
            measurements.take(preset, clone, further=True)
        assert json.loads((measured / "measured" / f"{preset}.json").read_text()) == kept_before
    parameters["runs"][names[1]]["free"]["max_steps"] = 99
    (clone / "params.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(parameters)))
    with pytest.raises(measurements.NotMeasuredError, match="is not that of the preset"):
        measurements.take(preset, clone)


def test_other_seeds_of_the_same_parameters_stay_beside_a_presets_own(measured):
    clone, path = measured / "clone", measured / "measured" / "quick.json"
    measurements.take_own_seeds("quick", clone)
    (own,) = json.loads(path.read_text())
    other = own | {"name": "s3_implicit_mamba2_seed_1", "seed": 1}
    path.write_text(json.dumps([own | {"train_seconds": 99}, other]))
    measurements.take_own_seeds("quick", clone)
    assert json.loads(path.read_text()) == [own, other]
    path.write_text(json.dumps([other | {"parameters": "of another preset"}]))
    measurements.take_own_seeds("quick", clone)
    assert json.loads(path.read_text()) == [own]
    path.write_text("{")
    with pytest.raises(measurements.NotMeasuredError, match="cannot be read"):
        measurements.take_own_seeds("quick", clone)
    assert path.read_text() == "{"


@pytest.mark.parametrize(
    ("stage", "key", "value"),
    [
        ("evaluate_benchmarks@s3_implicit_mamba2", "evaluation", {"word_problem": {}}),
        ("train_free@s3_implicit_mamba2", "runs.s3_implicit_mamba2.free", {"max_steps": 99}),
        ("prepare@s3", "datasets.s3", {}),
        ("report", "runs", {}),
    ],
)
def test_results_that_were_made_with_other_parameters_are_refused(
    measured, capsys, stage, key, value
):
    clone = measured / "clone"
    parameters = yaml.safe_load((clone / "params.yaml").read_text())
    for table in key.split("."):
        parameters = parameters[table]

    def record(**stages):
        ran = {name: {"params": {"params.yaml": {key: of}}} for name, of in stages.items()}
        (clone / "dvc.lock").write_text(yaml.safe_dump({"schema": "2.0", "stages": ran}))

    record(**{stage: value})
    assert results_tables.main(["--measured", f"quick={clone}"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {stage} ran with another {key} than {clone}/params.yaml has")
    assert "`dvc repro` there brings the results up to date" in said
    with pytest.raises(NotStoredError, match=f"{stage} ran with another {key}"):
        check_preset("quick", clone)
    assert not (measured / "measured").exists()
    record(**{stage: parameters, "train_free@of_another_preset": value, "code": value})
    check_preset("quick", clone)
    assert results_tables.main(["--measured", f"quick={clone}"]) == 0
    (clone / "dvc.lock").write_text("stages: [")
    assert results_tables.main(["--measured", f"quick={clone}"]) == 2
    assert f"{clone}/dvc.lock cannot be read: " in capsys.readouterr().err


def test_results_of_a_preset_with_a_value_of_ones_own(measured, capsys):
    clone, override = measured / "clone", "runs.s3_implicit_mamba2.free.max_steps=99"
    (clone / "params.yaml").write_text(composed("quick", [override]))
    given = ["--measured", f"quick={clone}"]
    assert results_tables.main(given) == 2
    assert "what was overridden there must be given here as well" in capsys.readouterr().err
    assert results_tables.main([*given, override]) == 0
    (run,) = json.loads((measured / "measured" / "quick.json").read_text())
    assert run["overrides"] == [override]
    assert f"\n\nWith `{override}`.\n\nBy " in (measured / "page.md").read_text()
    assert results_tables.main([*given, "runs.s3_implicit_mamba2.fre.max_steps=99"]) == 2
    assert capsys.readouterr().err.startswith("error: ")
    with pytest.raises(SystemExit, match="2"):
        results_tables.main([override])
    assert f"{override}: give one --measured" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        results_tables.main(["--further"])
    assert "--further: give --measured as well" in capsys.readouterr().err


def test_a_baseline_of_as_many_flops_is_in_one_group_under_all_seeds(measured):
    parameters = with_seeds(yaml.safe_load(composed("catbabi")), [0, 1])
    path = measured / "params.yaml"
    path.write_text(OmegaConf.to_yaml(OmegaConf.create(parameters)))
    groups = measurements.groups_of("catbabi", measured, [])
    assert groups["stories_mamba2_same_flops_seed_1"] == "stories_mamba2_same_flops"


def test_models_that_are_called_alike_have_their_entries_names(measured):
    runs = [RUN | {"seed": seed, "group": group} for group in ("a", "b") for seed in (0, 1)]
    labels = [line.split(" | ")[0] for line in measured_tables.table(runs).splitlines()[2:]]
    assert labels[0] == "| implicit Mamba2, 1 layer (a), seed 0" and len(set(labels)) == 4
    rates = measured_tables.rates(runs).splitlines()[2:]
    assert [line.split(" | ")[0] for line in rates] == [
        "| implicit Mamba2, 1 layer (a)",
        "| implicit Mamba2, 1 layer (b)",
    ]


@pytest.mark.parametrize("which", ["rates", "scores"])
def test_perplexities_are_no_shares(which):
    text = [RUN | {"data": "text", "scores": 61.5, "seed": seed} for seed in (0, 1)]
    with pytest.raises(measurements.NotMeasuredError, match="of accuracies, and not of perplex"):
        getattr(measured_tables, which)(text)


def test_what_is_not_known_is_left_out_of_rates():
    runs = [RUN | {"seed": seed, "training_flops": None} for seed in (0, 1)]
    assert measured_tables.rates(runs).splitlines()[2].endswith("| 0 of 2 (0 to 66 %) |  |")


def test_text_is_told_in_perplexity():
    texts = [RUN | {"data": "text", "scores": each, "seed": each} for each in (61.55, 3.972)]
    lines = measured_tables.table(texts).splitlines()
    assert "| test perplexity |" in lines[0]
    assert "| 3.97 |" in lines[2] and "| 61.5 |" in lines[3]


def test_tasks_are_the_means_of_all_seeds():
    def answers(seed, scores, one):
        tasks = {"1": one, "20": scores}
        return RUN | {"data": "catbabi", "seed": seed, "scores": scores, "tasks": tasks}

    runs = [answers(1, 0.75, 0.2), answers(0, 0.25, 0.4)]
    lstm = {
        "label": "torch's LSTM, 1 layer",
        "group": "lstm",
        "kind": "recurrent",
        "tasks": {"1": 1.0},
    }
    assert measured_tables.tasks([answers(0, 0.5, 0.5) | lstm, *runs]).splitlines() == [
        "|  | implicit Mamba2, 1 layer | torch's LSTM, 1 layer |",
        "| --- | --: | --: |",
        "| parameters | 1,234 | 1,234 |",
        "| training FLOPs | 9.7e12 | 9.7e12 |",
        "| training | 61 s | 61 s |",
        "| all questions, seed 0 | 25.0 % | 50.0 % |",
        "| all questions, seed 1 | 75.0 % |  |",
        "| **all questions** | **50.0 % ± 317.7** | **50.0 %** |",
        "| 1 single supporting fact | 30.0 % | 100.0 % |",
        "| 20 agent's motivations | 50.0 % |  |",
    ]


def test_rates_count_the_seeds_that_hold_with_an_interval():
    scores = [{"20": 1.0, "160": 0.99}, {"20": 0.99, "160": 0.989}, {"20": 1.0}]
    seeds = [
        RUN | {"seed": seed, "scores": each, "training_flops": 1e12 + seed * 1e11}
        for seed, each in enumerate(scores)
    ]
    lines = measured_tables.rates([LSTM, explicit(2), *seeds]).splitlines()
    assert lines == [
        "|  | 20 tokens | 160 tokens | training FLOPs |",
        "| --- | --: | --: | --: |",
        "| implicit Mamba2, 1 layer | 3 of 3 (44 to 100 %) | 1 of 2 (9 to 91 %) "
        "| 1.0e12 to 1.2e12 |",
    ]


def test_rates_of_several_kinds_of_data_are_told_apart():
    found = {"data": "formal_language", "scores": {"test": 0.5, "validation": 1.0}}
    runs = [
        RUN | found | {"dataset": dataset, "group": dataset, "seed": seed}
        for dataset in ("parity", "cycle")
        for seed in (0, 1)
    ]
    lines = measured_tables.rates(
        [*runs, RUN | found | {"dataset": "cycle", "group": "b", "label": "other"}]
    )
    assert lines.splitlines()[2:] == [
        f"| implicit Mamba2, 1 layer | {dataset} | 2 of 2 (34 to 100 %) | 0 of 2 (0 to 66 %) "
        "| 9.7e12 |"
        for dataset in ("parity", "cycle")
    ]


@pytest.mark.parametrize(
    ("scores", "rate"),
    [
        ([1.0] * 9 + [0.5], "9 of 10 (60 to 98 %)"),
        ([1.0] * 199 + [0.5], "199 of 200 (97 to 99.9 %)"),
        ([None, 1.0], "1 of 1 (21 to 100 %)"),
        ([None], ""),
        ([0.0] * 200 + [1.0], "1 of 201 (0 to 3 %)"),
    ],
)
def test_a_rate_is_not_said_to_be_certain(scores, rate):
    assert measured_tables.rate(scores) == rate
