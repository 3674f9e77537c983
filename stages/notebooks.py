"""What the notebooks show: the results of a repository, opened to be drawn.

A notebook reads the repository that it lies in, or the one that ``RESULTS_ROOT`` names.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from implicit_models.parameters import read_content, read_section
from implicit_models.problems.problem import parameters_of, report_of, results_of
from implicit_models.problems.table import KINDS, TESTED_APART
from implicit_models.problems.table import TABLES as DEFAULT_KINDS
from implicit_models.reporting.figures import RunStyle, run_styles, theme
from implicit_models.reporting.parameters import ReportParameters
from implicit_models.reporting.results import RunResults, read_results
from stages.common import DATA_TABLES, Data, read_dataset, read_tests
from stages.entries import read_models

ROOT_VARIABLE = "RESULTS_ROOT"


@dataclass(frozen=True, kw_only=True)
class Shown:
    """The models that learned some data, and how they are drawn.

    Attributes
    ----------
    root
        The repository.
    title
        What they learned.
    tables
        The table of params.yaml that each run is an entry of.
    is_alone
        Whether no other data set of this kind is shown.
    """

    root: Path
    title: str
    runs: Sequence[Any]
    styles: Mapping[str, RunStyle]
    tables: Mapping[str, str]
    is_alone: bool = True

    def of_kind(self, *kinds: str) -> "Shown":
        """Return those of its models that are implicit, explicit or recurrent."""
        return self.where(lambda run: run.kind in kinds)

    def where(self, wanted: Callable[[Any], Any]) -> "Shown":
        """Return those of its models for which a function holds."""
        return replace(self, runs=[run for run in self.runs if wanted(run)])

    @property
    def data(self) -> Any:
        """What the models learned: its entry of params.yaml."""
        return self._dataset(self.runs[0]).parameters

    @property
    def success_threshold(self) -> float:
        """The accuracy from which the report counts a run as solved."""
        return read_section("report", ReportParameters, self._parameters).success_threshold

    def conclusion(self, lead: Callable[..., Sequence[str]], *arguments: Any) -> str:
        """Return in Markdown what the report says first of the models.

        Parameters
        ----------
        lead
            Writes the headline of the models and of the arguments, and sentences that only the
            report has.
        """
        headline, *_ = lead(self.runs, *arguments)
        return f"**{headline}**"

    def tests(self, run: RunResults) -> Any:
        """Return how a model was evaluated: its section of params.yaml."""
        data = self._dataset(run)
        return read_tests("evaluation", self.tables[run.name], run.name, data, self._parameters)

    def _dataset(self, run: RunResults) -> Data:
        return read_dataset(self.tables[run.name], run.name, self._parameters)

    @property
    def _parameters(self) -> Path:
        return self.root / "params.yaml"

    def draw(self, figure: Callable[..., Figure], *arguments: Any) -> Figure:
        """Draw a figure of the models, or of what the arguments are, as all figures look.

        Where several data sets are shown, the figure has the name of this one above it.
        """
        drawn = draw(figure, *(arguments or (self.runs, self.styles)))
        if not self.is_alone:
            drawn.suptitle(self.title, fontsize=12)
        return drawn

    def trained(self) -> Iterator[RunResults]:
        """Yield the models whose weights are here, to look into."""
        for run in self.runs:
            if (self.model_folder(run)).exists():
                yield run

    def model_folder(self, run: RunResults) -> Path:
        """Return where a model's weights are."""
        return self.root / "models" / run.name / "final"


def draw(figure: Callable[..., Figure], *arguments: Any) -> Figure:
    """Draw a figure of several data sets, as all figures look."""
    with theme():
        return figure(*arguments)


def results_root() -> Path:
    """Return the repository that is shown: ``RESULTS_ROOT``, or the one the notebooks are in.

    Raises
    ------
    FileNotFoundError
        Where there is no params.yaml.
    """
    root = Path(os.environ.get(ROOT_VARIABLE, "..")).resolve()
    if not (root / "params.yaml").is_file():
        raise FileNotFoundError(
            f"{root} has no params.yaml; set {ROOT_VARIABLE} to the repository whose results are "
            "to be shown"
        )
    return root


def open_results(kinds: str | Sequence[str], preset: str, root: Path | None = None) -> list[Shown]:
    """Open the results of a kind of problem, or of several, data set by data set.

    What has no results yet is left out, and a line says so. So does one where there is nothing.

    Parameters
    ----------
    kinds
        ``"word_problem"``, ``"text"``, ``"catbabi"`` or ``"formal_language"``, or some of them.
    preset
        The preset that has such a problem, to be named where params.yaml has none.
    root
        The repository; None is that of `results_root`.

    Raises
    ------
    ValueError
        Where there is no such kind.
    """
    wanted_kinds = [kinds] if isinstance(kinds, str) else list(kinds)
    for kind in wanted_kinds:
        if kind not in KINDS:
            allowed = f"allowed is one of {list(KINDS)}"
            raise ValueError(f"kind = {kind!r} is no kind of problem; {allowed}")
    root = root or results_root()
    parameters = root / "params.yaml"
    content = read_content(parameters)
    names = [
        name
        for table in DATA_TABLES
        for name, entry in (content.get(table) or {}).items()
        if entry.get("kind", DEFAULT_KINDS[table]) in wanted_kinds
    ]
    models = read_models(parameters)
    tables = {
        name: table
        for table, entries in models.items()
        for name, entry in entries.items()
        if entry.dataset in names
    }
    what = " or a ".join(kind.replace("_", " ") for kind in wanted_kinds)
    if not tables:
        print(f"No entry of params.yaml learns a {what}; `implicit-models run {preset}` has some.")
        return []
    missing: dict[str, str] = {}
    runs = read_results(root / "results" / "runs", models, results_of, missing, names)
    _say_missing(missing)
    learned = {name: [run for run in runs if run.dataset == name] for name in names}
    shown = {name: of for name, of in learned.items() if of}
    alone = len(shown) == 1
    return [
        Shown(root=root, title=name, runs=of, styles=run_styles(of), tables=tables, is_alone=alone)
        for name, of in shown.items()
    ]


def open_benchmarks(preset: str, root: Path | None = None) -> list[Any]:
    """Open the downstream benchmarks of params.yaml; a line says what has no results yet.

    Parameters
    ----------
    preset
        The preset that has some, to be named where params.yaml has none.
    root
        As of `open_results`.
    """
    root = root or results_root()
    parameters = root / "params.yaml"
    kind = TESTED_APART["benchmarks"]
    schema = parameters_of(kind).ENTRIES["benchmarks"]
    entries = {
        name: read_section(f"benchmarks.{name}", schema, parameters)
        for name in read_content(parameters).get("benchmarks") or ()
    }
    if not entries:
        print(f"params.yaml has no benchmarks; `implicit-models run {preset}` has some.")
    missing: dict[str, str] = {}
    found = report_of(kind).ENTRIES["benchmarks"].read(root / "results" / "runs", entries, missing)
    _say_missing(missing)
    return list(found)


def _say_missing(missing: Mapping[str, str]) -> None:
    for name, command in missing.items():
        print(f"{name} lacks results; `{command}` makes them.")
