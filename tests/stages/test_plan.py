"""`python -m stages.plan`: what it says, and what it refuses."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from implicit_models.cost.devices import DeviceFactsError
from implicit_models.parameters import ParameterError
from implicit_models.parameters.composition import compose
from scripts.paper_scale import of_the_paper
from stages.check import check
from stages.plan import main
from tests.repositories import presets

ROOT = Path(__file__).parents[2]
PILE = [preset for preset in presets() if preset.startswith("pile_")]
RUN = "s3_implicit_mamba2"
MATCHED = "text_mamba2_same_flops"
UPCYCLED = "upcycled.s3_upcycled_mamba2.model"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the presets and the default params.yaml."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf").symlink_to(ROOT / "conf")
    (tmp_path / "params.yaml").write_text(compose(ROOT, ["preset=laptop"]))
    return tmp_path


def trainings(text: str) -> dict[str, list[str]]:
    """The words of each training's line, by its number."""
    block = text.split("\n\n")[1]
    found = [line.split() for line in block.splitlines() if line.startswith("[")]
    return {words[0]: words[1:] for words in found}


def memory(text: str) -> dict[str, list[str]]:
    """The numbers of each part of the memory, by its label."""
    lines = text.split("\n\n")[2].splitlines()
    return {parts[0]: parts[1:] for parts in (re.split(r"\s{2,}", line) for line in lines)}


@pytest.mark.parametrize("preset", of_the_paper(presets()))
def test_of_every_training_at_the_papers_scale_flops_memory_and_time_are_told(
    preset: str, folder: Path
) -> None:
    before = sorted(path.name for path in folder.iterdir())
    parameters = (folder / "params.yaml").read_bytes()
    text = main([f"preset={preset}", "gpus=8"])
    found = trainings(text)
    composed = yaml.safe_load(compose(ROOT, [f"preset={preset}"]))
    explicit = {**composed["baselines"], **composed["matched"]}
    phases = {(name, phase) for name in composed["runs"] for phase in ("bounded", "free")}
    phases |= {
        (name, "explicit") for name, entry in explicit.items() if entry["model"]["family"] != "lstm"
    }
    assert {(words[0], words[1]) for words in found.values()} == phases
    for words in found.values():
        assert all(number > 1e14 for number in flops(words)) and flops(words)
        assert float(words[-1].replace(",", "")) > 0
    for row in ("peak: with the largest of 'or:'", "activations kept", "AdamW's two moments"):
        sizes = [float(number.replace(",", "")) for number in memory(text)[row]]
        assert len(sizes) == len(found) and min(sizes) > 0
    # Nothing is written, and the file of the default stays as it is.
    assert sorted(path.name for path in folder.iterdir()) == before
    assert (folder / "params.yaml").read_bytes() == parameters


@pytest.mark.parametrize("preset", PILE)
def test_a_preset_of_pretraining_is_planned(preset: str) -> None:
    text = main([f"preset={preset}", "gpus=32"])
    assert len(text.splitlines()) < 60
    assert max(map(len, text.splitlines())) < 132
    found = trainings(text)
    size, family = preset.removeprefix("pile_").replace(".", "_").rsplit("_", 1)
    phases = [words[1] for words in found.values()]
    assert phases == [*("bounded", "free") * 2, *("explicit",) * 2]
    assert all(f"{family}_{size}" in words[0] for words in found.values())


def flops(words: list[str]) -> list[float]:
    return [float(word) for word in words if re.fullmatch(r"[\d.]+e\+\d+", word)]


def test_a_search_costs_what_is_expected_of_it() -> None:
    arguments = ["preset=pile_130m_mamba2", "run=pile_implicit_mamba2_130m"]
    by_default, most, few = (
        trainings(main([*arguments, *more]))
        for more in ([], ["expected_iterations=24"], ["expected_iterations=6"])
    )
    # The bounded phase makes all of its own in any case.
    assert by_default["[1]"] == most["[1]"] == few["[1]"]
    lowest, middle, highest = (flops(each["[2]"]) for each in (few, by_default, most))
    assert lowest[0] < middle[0] < highest[0]
    assert lowest[1] == middle[1] == highest[0] == highest[1]
    assert "6 of 24" in " ".join(few["[2]"]) and "12 of 24" in " ".join(by_default["[2]"])


@pytest.mark.parametrize("end", [5, 6])
def test_a_step_has_the_sequences_of_the_training_where_a_curriculum_cuts_them(end: int) -> None:
    """768 tokens are 64 sequences of the data's 12, however short the bounded phase has them."""
    run = "runs.s3_implicit_mamba2"
    batch = [f"{run}.optimisation.batch_size=null", f"+{run}.optimisation.batch_tokens=768"]
    cut = [f"{run}.bounded.lengths.end={end}", f"{run}.bounded.lengths.minimum={end}"]
    cut += [f"{run}.bounded.lengths.start={end}"]
    found = trainings(main(["preset=quick", "run=s3_implicit_mamba2", *batch, *cut]))
    steps, tokens = found["[1]"][4:6]
    assert (steps, tokens) == ("30", {5: "9.6", 6: "11.5"}[end])


def test_texts_are_as_long_as_the_rows_that_are_drawn_from_them() -> None:
    """However short a curriculum cuts them: 800 steps of 8 rows of 256 bytes."""
    assert f"about {800 * 8 * 256 * 4 / 1e9:.2g} GB of text" in main(["preset=text_small"])


def test_a_token_in_a_window_is_evaluated_along_with_those_before_it() -> None:
    free = "runs.s3_implicit_mamba2.free"
    window = ["preset=quick", "run=s3_implicit_mamba2", f"+{free}.window=8", f"+{free}.patience=4"]
    by_default, more, patient = (
        " ".join(trainings(main([*window, *given]))["[2]"])
        for given in ([], ["expected_iterations=40"], [f"{free}.patience=11"])
    )
    assert "6 of 96" in by_default and "40 of 96" in more and "11 of 96" in patient


def test_a_tolerance_that_cannot_be_met_takes_all_iterations() -> None:
    found = trainings(main(["preset=pile_130m_llama", "run=pile_implicit_llama_130m_4_1"]))
    bounded, free = found.values()
    assert "4 of 4" in " ".join(bounded) and "4 of 4" in " ".join(free)
    # Nothing but the number of steps differs between the two phases.
    ratio = flops(bounded)[0] / flops(free)[0]
    steps = [int(words[4].replace(",", "")) for words in (bounded, free)]
    assert ratio == pytest.approx(steps[0] / steps[1], rel=0.01)


def test_a_matched_baseline_costs_what_its_run_is_expected_to() -> None:
    arguments = ["preset=pile_350m_llama", "run=pile_llama_350m_same_flops"]
    for more in ([], ["expected_iterations=3"]):
        found = trainings(main([*arguments, *more]))
        assert [words[1] for words in found.values()] == ["bounded", "free", "explicit"]
        bounded, free, matched = (flops(words)[0] for words in found.values())
        assert matched == pytest.approx(bounded + free, rel=0.01)


@pytest.mark.parametrize("device", ["h100", "a100_40gb"])
@pytest.mark.parametrize("preset", ["pile_1.3b_mamba2", "pile_760m_llama"])
def test_what_is_proposed_fits(preset: str, device: str) -> None:
    arguments = [f"preset={preset}", f"device={device}"]
    text = main([*arguments, "gpus=8"])
    fits = next(value for label, value in memory(text).items() if label.startswith("fits"))
    proposed = re.findall(r"^((?:\[\d\] )+)would fit with (.*)$", text, re.MULTILINE)
    numbers = [number for each, _ in proposed for number in re.findall(r"\d", each)]
    wrong = [str(number) for number, answer in enumerate(fits, 1) if answer == "NO"]
    assert sorted(numbers) == wrong and wrong
    for each, options in proposed:
        again = memory(main([*arguments, *options.split()]))
        fits = next(value for label, value in again.items() if label.startswith("fits"))
        assert {fits[int(number) - 1] for number in re.findall(r"\d", each)} == {"yes"}


def test_memory_that_no_layout_has_is_said() -> None:
    changes = [
        f"baselines.pile_llama_1_3b.model.{key}" for key in ("num_layers=96", "d_model=8192")
    ]
    text = main(["preset=pile_1.3b_llama", "run=pile_llama_1_3b", "device=a100_40gb", *changes])
    assert "[1] fit in no way" in text


def test_more_gpus_take_less_time_and_the_same_flops() -> None:
    four, eight = (
        trainings(main(["preset=pile_130m_llama", "run=pile_llama_130m", f"gpus={number}"]))["[1]"]
        for number in (4, 8)
    )
    assert flops(four) == flops(eight)
    assert float(four[-1]) == pytest.approx(2 * float(eight[-1]), rel=0.1)


def test_a_short_training_is_told_in_a_unit_of_its_size() -> None:
    lines = main(["preset=quick", f"run={RUN}"]).splitlines()
    (together,) = [line for line in lines if line.startswith("together ")]
    found = re.fullmatch(r"together (\S+) seconds \((\S+) at most\), (\S+) GPU seconds", together)
    assert found and float(found[1]) < float(found[2]) < 60
    assert any("most seconds" in line and "iterations" in line for line in lines)
    assert "days" in main(["preset=pile_130m_llama", "run=pile_llama_130m"])


def test_settings_change_the_plan_as_they_change_the_training() -> None:
    arguments = ["preset=pile_130m_mamba2", "run=pile_implicit_mamba2_130m"]
    found = trainings(main([*arguments, "runs.pile_implicit_mamba2_130m.bounded.share=0.5"]))
    steps = [int(words[4].replace(",", "")) for words in found.values()]
    assert abs(steps[0] - steps[1]) <= 1


def test_settings_that_are_not_there_are_added_with_a_plus() -> None:
    def free(*changes: str) -> list[float]:
        changed = [change.replace("free.", f"runs.{RUN}.free.") for change in changes]
        return flops(trainings(main(["preset=quick", f"run={RUN}", *changed]))["[2]"])

    unrolled = ["free.gradient=unrolled", "free.phantom_steps=null", "free.damping=1.0"]
    assert free(*unrolled, "+free.unrolled_steps=6") == free("free.phantom_steps=6")
    assert free("free.phantom_steps=6") > free("free.solver=broyden", "+free.best_so_far=true")


def test_without_a_preset_it_plans_the_parameters_that_are_there(folder: Path) -> None:
    text = main([])
    assert text.startswith("params.yaml on 1 x NVIDIA H100")
    assert "a5_implicit_mamba2" in text and "Not planned" in text and "a5_lstm (lstm)" in text
    longer = main(["baselines.a5_mamba2_2_layers.training.num_training_steps=6000"])
    assert "6,000" in longer and "6,000" not in text
    assert (folder / "params.yaml").read_text() == compose(ROOT, ["preset=laptop"])


def test_another_vocabulary_makes_another_model() -> None:
    sizes = [
        trainings(main(["preset=text_small", "run=text_mamba2", *more]))["[1]"][2]
        for more in ([], ["vocabulary=50277"])
    ]
    assert sizes[0] != sizes[1]


def test_of_files_that_are_not_here_the_published_vocabulary_is_planned(folder: Path) -> None:
    arguments = ["preset=catbabi_paper", "run=stories_implicit_llama"]
    published, given = (main([*arguments, *more]).splitlines() for more in ([], ["vocabulary=180"]))
    (line,) = [line for line in published if line not in given]
    assert line.startswith("- babi: a vocabulary of 180, the published one: its files were not")
    assert [each for each in published if each != line] == given
    refused = [finding.line for finding in check("catbabi_paper") if finding.stops]
    assert refused and all("corpora.babi.source: en-valid-10k" in each for each in refused)


WRONG = [
    (
        ["preset=pile_1.3b_mamba"],
        "there is no preset pile_1.3b_mamba; the closest is pile_1",
    ),
    (["gpu=3"], "gpu=3 is not known; the closest is gpus="),
    (["nonsense"], "there is no preset nonsense"),
    (["gpus=2", "nonsense"], "'nonsense' is no setting"),
    (["gpus=x"], "gpus = 'x' is not allowed; allowed is int"),
    (["gpus=0"], "gpus = 0 is not allowed; allowed is int, at least 1"),
    (["gpus=1000"], "a5_implicit_mamba2: gpus = 1000 is not allowed; .* divides the .* step, 64"),
    (["utilisation=2"], "utilisation = 2.0 is not allowed"),
    (["checkpointing=all"], "checkpointing = 'all' is not allowed; .*'blocks'"),
    (["run=a5"], "run = 'a5' does not exist; the closest is a5_"),
    (["monitoring.log_evry=3"], r"^params.yaml: monitoring.log_evry .* monitoring.log_every"),
    (["monitoring.log_every=x"], r"^params.yaml: monitoring.log_every = 'x' is not allowed"),
    (["monitoring.log_every=["], "monitoring.log_every=["),
    (["preset=quick", "monitoring.log_every=["], "cannot be composed"),
    (
        ["preset=quick", f"runs.{RUN}.free.tolerance=3"],
        rf"^conf/preset/quick.yaml: runs.{RUN}.free.tolerance = 3",
    ),
    (
        ["preset=quick", f"runs.{RUN}.free.tolerence=0.1"],
        rf"^conf/preset/quick.yaml: runs.{RUN}.free.tolerence .* closest .*tolerance",
    ),
    (
        ["preset=quick", f"+runs.{RUN}.free.windw=4"],
        rf"^conf/preset/quick.yaml: runs.{RUN}.free.windw = 4 .*window",
    ),
    (
        ["preset=quick", f"runs.{RUN}.free.solver=anderson", f"+runs.{RUN}.free.window=4"],
        rf"^conf/preset/quick.yaml: runs.{RUN}.free.window = 4 is not allowed; .* null or 'whole'",
    ),
    (["preset=quick", f"runs.{RUN}.dataset=s4"], rf"runs.{RUN}.dataset = 's4' .* closest is s3"),
    *(
        (
            ["preset=text_small", f"matched.{MATCHED}.match.run=nobody", *asked],
            rf"^conf/preset/text_small.yaml: matched.{MATCHED}.match.run = 'nobody' is not "
            "allowed; allowed is an entry of runs: text_implicit_mamba2$",
        )
        for asked in ([], [f"run={MATCHED}"])
    ),
    (
        [
            "preset=upcycled",
            *(f"{UPCYCLED}.family=mamba2", f"~{UPCYCLED}.source", f"+{UPCYCLED}.num_layers=1"),
            *(f"+{UPCYCLED}.{size}" for size in ("d_model=64", "d_state=16", "head_dim=16")),
        ],
        r"^conf/preset/upcycled.yaml: upcycled.s3_upcycled_mamba2.model.family = 'mamba2' is not "
        "allowed; allowed is 'upcycled'",
    ),
    (
        ["preset=text_small", "corpora.text.tokenizer=nowhere.json"],
        "tokenizer 'nowhere.json': .*; or give its size: vocabulary=",
    ),
]


def test_a_preset_is_named_in_either_way() -> None:
    assert main(["quick"]) == main(["preset=quick"]) != main([])


def test_steps_too_short_to_be_bound_by_flops_are_told() -> None:
    said = "In all trainings those of a step take less than 10 ms"
    assert said in main(["quick"]) and "expect more time" not in main(["pile_130m_mamba2"])


@pytest.mark.parametrize(("arguments", "message"), WRONG, ids=[" ".join(w[0]) for w in WRONG])
def test_bad_input_is_named(arguments: list[str], message: str) -> None:
    with pytest.raises(ParameterError, match=message.replace("=[", r"=\[")) as raised:
        main(arguments)
    assert "/tmp" not in str(raised.value)


def test_an_unknown_device_is_named() -> None:
    with pytest.raises(DeviceFactsError, match="device = 'h10' is not known; the closest is h100"):
        main(["device=h10"])


def test_on_the_command_line_a_mistake_is_one_line_and_status_2(folder: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    (folder / "params.yaml").unlink()
    for arguments, named in ((["preset=quick", "device=h10"], "device"), ([], "params.yaml")):
        done = subprocess.run(
            [sys.executable, "-m", "stages.plan", *arguments],
            env=environment,
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
        assert named in done.stderr


@pytest.mark.parametrize(
    "arguments", [["plan", "preset=quick"], ["plan", "-h"], ["check", "quick"]]
)
def test_a_reader_that_has_enough_is_no_mistake(arguments: list[str]) -> None:
    module, *others = arguments
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", f"stages.{module}", *others],
        cwd=ROOT,
        stdout=writing,
        stderr=subprocess.PIPE,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, b"")
