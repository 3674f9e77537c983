"""Every preset through all its stages to its report and notebooks, made tiny; no hub is asked."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest
import yaml
from IPython.display import Markdown
from matplotlib.figure import Figure

from implicit_models.parameters.composition import compose
from implicit_models.problems.downstream.tasks import TASKS
from implicit_models.problems.text.data import hub_source
from implicit_models.reporting import illustration
from implicit_models.reporting.tables.table import Table
from scripts.store_notebooks import notebooks, preset_of
from tests.markdown import figures_of_the_paper
from tests.metric_names import documented, recorded, undocumented
from tests.notebooks import run_notebook
from tests.repositories import ROOT, presets
from tests.stages.in_process import run_stages, work_in
from tests.stages.tiny import sentences, shrink, task_items, write_stories, write_tasks, write_text

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:_NoneStep.value:DeprecationWarning"),  # DVC's
]

# The presets at the paper's scale that a notebook draws, as the page says.
AT_SCALE = {name: scaled for name, (_, scaled) in figures_of_the_paper().items()}

SIZES = ("350m", "760m", "1.3b")
OTHER_SIZES = {f"pile_{size}_{family}" for size in SIZES for family in ("llama", "mamba2")}
"""Made tiny, they are those of 130m under another name and at another rate."""
TRIED = [preset for preset in presets() if preset not in OTHER_SIZES]

SWEPT = ("downstream_compute", "test_time_compute_paper")
"""Presets whose models are on downstream tasks with several numbers of self-iterations."""

NOT_HERE = {
    # Of a device that counts it.
    *(f"{of}.energy_joules" for of in ("train", "phase", "test.cost", "downstream.cost")),
    "test.search.memory",  # of solvers that remember iterates
    "readings.CORPUS.METRIC",  # no preset reads a second corpus
}
"""Metrics that no preset has on a processor."""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Work in a folder with the project's description, and text and tasks of a user's own."""
    work_in(tmp_path, monkeypatch)
    write_text(tmp_path / "text")
    write_tasks(tmp_path / "tasks")
    write_stories(tmp_path / "en-valid-10k")
    return tmp_path


@pytest.fixture
def hub(project, monkeypatch):
    """Put made-up rows where the hub's data sets would be."""
    tasks = {(each.dataset, each.configuration): task for task, each in TASKS.items()}
    path = project / "pile.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in sentences(40)))
    load = datasets.load_dataset

    def stand_in(*names, **options):
        if names in tasks:
            return datasets.Dataset.from_list([task_items()[tasks[names]]])
        if options.get("streaming"):
            return load("json", data_files=str(path), split="train", streaming=True)
        return load(*names, **options)  # files, which the harness reads in this way

    monkeypatch.setattr(datasets, "load_dataset", stand_in)
    monkeypatch.setattr(hub_source, "resolve_revision", lambda name, revision: "0" * 40)


_measured: dict[str, set[str]] = {}
_drawn_narrow: set[str] = set()


def narrow_once(svg: Callable[..., str]) -> Callable[..., str]:
    """Draw each kind of figure for a narrow page in the first preset that has it."""

    def draw_some(draw: Any, runs: Any, styles: Any, name: str, narrow: bool) -> str:
        kind = f"{draw.__module__}.{draw.__name__}"
        if narrow and kind in _drawn_narrow:
            return ""
        if narrow:
            _drawn_narrow.add(kind)
        return svg(draw, runs, styles, name, narrow)

    return draw_some


@pytest.mark.parametrize("preset", sorted(OTHER_SIZES))
def test_what_is_left_out_differs_by_its_names_and_rates_from_what_is_tried(preset):
    size = next(size for size in SIZES if size in preset)
    tried = preset.replace(size, "130m")
    assert tried in TRIED

    def content(name: str, named: str) -> Any:
        tiny = shrink(yaml.safe_load(compose(ROOT, [f"preset={name}"])))
        for table in ("runs", "baselines", "matched"):
            for entry in tiny[table].values():
                assert entry["optimisation"].pop("learning_rate") > 0
        return json.loads(json.dumps(tiny).replace(named, "SIZE"))

    assert content(preset, size.replace(".", "_")) == content(tried, "130m")


@pytest.mark.parametrize("preset", TRIED)
def test_a_preset_ends_in_its_report(preset, project, hub, monkeypatch, capsys):
    monkeypatch.setattr(illustration, "svg_of", narrow_once(illustration.svg_of))
    parameters = shrink(yaml.safe_load(compose(ROOT, [f"preset={preset}"])))
    for corpus in parameters["corpora"].values():
        if corpus.get("tokenizer", "bytes") != "bytes":
            command = [sys.executable, ROOT / "scripts" / "train_tokenizer.py", corpus["source"]]
            subprocess.run([*command, corpus["tokenizer"], "--vocabulary-size=300"], check=True)
    Path("params.yaml").write_text(yaml.safe_dump(parameters, sort_keys=False))
    assert "report" in run_stages(project)
    trained = [
        name for table in ("runs", "upcycled", "baselines", "matched") for name in parameters[table]
    ]
    summary = json.loads(Path("results/summary.json").read_text())
    assert sorted(summary["runs"]) == sorted(trained)
    for table in ("benchmarks", "readings"):
        assert set(summary[table]) == set(parameters[table])
    report = Path("results/report.md").read_text()
    assert [name for name in trained if name not in report] == []
    for figure in Path("results/figures").iterdir():
        assert figure.read_text().rstrip().endswith("</svg>")
    by_self_iterations = Path("results/figures/downstream_accuracy_by_self_iterations.svg")
    assert by_self_iterations.exists() == (preset in SWEPT)
    implicit = len(parameters["runs"]) + len(parameters["upcycled"])
    assert len(list(Path("results/runs").glob("*/test_time_compute.json"))) == implicit
    measured = recorded(project)
    assert "train.loss" in measured and undocumented(measured) == []
    _measured.update({preset: measured})
    for name, path in notebooks().items():
        if preset in (preset_of(path), *AT_SCALE.get(name, ())):
            ran = run_notebook(name, project, monkeypatch, capsys)
            assert ran.num(Figure) + ran.num(Table) > 0
            assert sum(map(ran.num, (Figure, Table, Markdown))) == len(ran.shown)
            assert not any("lacks results" in line or "has some" in line for line in ran.printed)


def test_every_metric_of_the_page_is_recorded_by_a_preset(request):
    """After the tests above, of which a worker has all (`--dist loadfile`)."""
    here = [item for item in request.session.items if item.path == request.path]
    asked = {item.callspec.params["preset"] for item in here if hasattr(item, "callspec")}
    if asked < set(presets()):
        pytest.skip(f"only {len(asked)} presets are asked for, and others record what they lack")
    assert set(_measured) == set(TRIED)
    found = set().union(*_measured.values())
    never = {
        name
        for name, pattern in documented().items()
        if not any(pattern.fullmatch(each) for each in found)
    }
    assert never == NOT_HERE
