"""YAML in the documentation: presets are checked whole, parts of presets in one they belong to."""

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from pipelines.cluster.placement import FILE, read_placement
from stages.check import check
from tests.markdown import Block, all_blocks
from tests.readers_repository import ELSEWHERE, PACKAGE, make_repository, preset_blocks
from tests.repositories import ROOT


@dataclass(frozen=True)
class Part:
    """Where a block of the pages belongs.

    Attributes
    ----------
    line
        How a line of it begins, and none of another block.
    preset
        That it is laid on.
    inside
        The sections around it, from outside to inside.
    beside
        What else its page says that there is, or what stands for its "...".
    said
        The findings of the check that are meant.
    """

    line: str
    preset: str = "quick"
    inside: tuple[str, ...] = ()
    beside: str = ""
    said: tuple[str, ...] = ()


NOVELS = (
    "corpora: {novels: {source: text, tokenizer: bytes, sequence_length: 256, "
    "validation: {share: 0.3}, test: {share: 0.3}, seed: 0}}\n"
    "evaluation: {text: {lengths: [256, 1024]}}"
)
A4_Z5 = """
datasets:
  a4_z5:
    kind: word_problem
    group: A4 x Z5
    seed: 0
    train: {num_sequences: 1024, length: 20}
    validation: {num_sequences: 512, length: 20}
    test: {num_sequences: 512, lengths: [16, 32, 64]}
runs:
  a4_z5_implicit_mamba2:
    seed: 0
    model: ${runs.a5_implicit_mamba2.model}
    optimisation: ${runs.a5_implicit_mamba2.optimisation}
    bounded: ${runs.a5_implicit_mamba2.bounded}
    free: ${runs.a5_implicit_mamba2.free}
baselines:
  a4_z5_lstm:
    seed: 0
    model: ${baselines.a5_lstm.model}
    optimisation: ${baselines.a5_lstm.optimisation}
    training: ${baselines.a5_lstm.training}
"""

MY_RUN = "runs: {my_run: '${runs.text_implicit_mamba2}'}"


def unread(*keys: str) -> tuple[str, ...]:
    return tuple(f"{key} is read by no entry" for key in keys)


PARTS = [
    Part("gpt2_on_novels: ", "text_small", beside=NOVELS),
    Part("my_run_downstream:", "downstream", beside=MY_RUN, said=unread("hub_tasks.seven")),
    Part(
        "match: ",
        "text_small",
        inside=("matched", "text_mamba2_same_flops"),
        beside=MY_RUN,
    ),
    Part("further_identity_probabilities:"),
    Part("language: cycle_navigation", "regular_languages", said=unread("datasets.cycle")),
    Part("s3_upcycled_llama:", "upcycled"),
    Part("a4_z5_implicit_mamba2:", "laptop", beside=A4_Z5),
    Part(
        "hub_corpora:",
        "text_small",
        said=(
            "it will be downloaded from the Hugging Face hub",
            *unread("corpora.books", "hub_corpora.pile"),
        ),
    ),
    Part("carry: passed", "state_passing"),
]
SAID = {"babi": unread("datasets.stories"), "z5_own": unread("datasets.s3")}  # by presets
PLACEMENT = "gpu-nodes: "


def has(block: Block, line: str) -> bool:
    return any(each.strip().startswith(line) for each in block.text.splitlines())


@pytest.fixture(scope="module")
def repository(tmp_path_factory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE"):
            patch.delenv(name, raising=False)
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        patch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path_factory.mktemp("hub")))
        folder = make_repository(tmp_path_factory.mktemp("reader"))
        patch.chdir(folder)
        yield folder


def test_every_block_is_checked_once():
    lines = [PLACEMENT, *(part.line for part in PARTS), PACKAGE.strip()]
    for block in all_blocks("yaml"):
        found = [line for line in lines if has(block, line)]
        assert len(found) == 1, f"{block.page}: {found} say how this is checked:\n{block.text}"
    for line in lines:
        assert any(has(block, line) for block in all_blocks("yaml")), line
    presets = [block for block in all_blocks("yaml") if has(block, PACKAGE.strip())]
    assert len(presets) == len(preset_blocks())  # no two of one name
    for name, test in ELSEWHERE.items():
        assert name in preset_blocks() and name in (ROOT / test).read_text()


def check_says(preset: str, said: tuple[str, ...]) -> None:
    found = [finding.line for finding in check(preset)]
    assert len(found) == len(said), found
    for each in said:
        assert any(each in line for line in found), found


@pytest.mark.parametrize("name", [name for name in preset_blocks() if name not in ELSEWHERE])
def test_presets_are_right(repository, name):
    check_says(name, SAID.get(name, ()))


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.line.partition(":")[0])
def test_parts_of_presets_are_right(repository, part):
    (block,) = [block for block in all_blocks("yaml") if has(block, part.line)]
    text = block.text
    for section in reversed(part.inside):
        text = f"{section}:\n{textwrap.indent(text, '  ')}"
    folder = repository / "conf" / "preset"
    (folder / "beside.yaml").write_text(f"{PACKAGE}{part.beside}")
    defaults = f"defaults: [{part.preset}, beside, _self_]\n"
    (folder / "laid_on.yaml").write_text(f"{PACKAGE}{defaults}{text}")
    check_says("laid_on", part.said)


def test_places_of_stages_are_read(tmp_path):
    (block,) = [block for block in all_blocks("yaml") if has(block, PLACEMENT)]
    (tmp_path / FILE).write_text(block.text)
    assert read_placement(tmp_path).stages.keys() == yaml.safe_load(block.text)["stages"].keys()
