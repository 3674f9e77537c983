"""Take the pictures of docs/images from the dashboards of a repository, in a headless Chromium.

Run the preset `quick` as a flow in a clone, `make dashboards` there, and then::

    python scripts/screenshots.py ../clone --implicit RUN --explicit RUN
"""

import argparse
import io
import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pipelines.server.comparison import ask, comparison_page, reproduced
from pipelines.server.embedded import DASHBOARDS
from pipelines.server.local_server import FOLDER

if TYPE_CHECKING:
    from playwright.sync_api import Page

IMAGES = Path(__file__).parents[1] / "docs" / "images"
PATIENCE = 60_000  # milliseconds
NUM_COLOURS = 64


def main() -> int:
    """Take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("repository", type=Path, help="where the dashboards run")
    parser.add_argument("--implicit", required=True, help="an implicit run, of the same family as")
    parser.add_argument("--explicit", required=True, help="an explicit one")
    parser.add_argument("--only", choices=("prefect", "mlflow", "report"), help="only its")
    parser.add_argument("--output", type=Path, default=IMAGES)
    options = parser.parse_args()
    file = options.repository / FOLDER / DASHBOARDS
    addresses = json.loads(file.read_text()) if file.exists() else {}
    if not {"prefect", "mlflow"} <= addresses.keys():
        print(f"error: no dashboards run in {options.repository}: make dashboards", file=sys.stderr)
        return 1
    options.output.mkdir(parents=True, exist_ok=True)
    with browser_page() as page:
        if options.only in (None, "prefect"):
            show_flow_run(page, addresses["prefect"])
            save(page, options.output / "prefect_flow_run.png")
        if options.only in (None, "mlflow"):
            take_mlflow(page, addresses["mlflow"], options)
        if options.only in (None, "report"):
            take_report(page, options.repository / "results" / "report.html", options.output)
    return 0


def take_mlflow(page: "Page", mlflow: str, options: argparse.Namespace) -> None:
    """Take the pictures of MLflow: the runs of the last report, their charts, two compared."""
    comparison = comparison_page(mlflow, reproduced(options.repository))
    if comparison is None:
        raise LookupError(f"MLflow at {mlflow} has no run of the last report: dvc repro")
    show_runs(page, comparison.address, options.implicit)
    save(page, options.output / "mlflow_runs.png")
    show_charts(page, comparison.address, "test.accuracy")
    save(page, options.output / "mlflow_charts.png")
    runs = find_runs(mlflow, [options.implicit, options.explicit])
    show_curves(page, mlflow, runs, "train.accuracy")
    save(page, options.output / "mlflow_curves.png")
    show_parameters(page, mlflow, runs, "model.expand")
    save(page, options.output / "mlflow_comparison.png")


@contextmanager
def browser_page(width: int = 1400, height: int = 900) -> Iterator["Page"]:
    """Yield a page of Debian's Chromium, which can reach only this machine.

    Raises
    ------
    FileNotFoundError
        There is no Chromium.
    """
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium")
    if program is None:
        raise FileNotFoundError("there is no chromium: apt-get install chromium")
    with sync_playwright() as playwright:
        # Chromium's own sandbox refuses to work for root, as whom containers run.
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": height})
        page.set_default_timeout(PATIENCE)
        try:
            yield page
        finally:
            browser.close()


def take_report(page: "Page", report: Path, output: Path) -> None:
    """Take pictures of a report on a screen and on a telephone, on light and on dark ground.

    Raises
    ------
    ValueError
        The page is wider than the screen.
    """
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 900})
        for ground in ("light", "dark"):
            page.emulate_media(color_scheme=ground)
            page.goto(report.absolute().as_uri())
            needed = page.evaluate("document.documentElement.scrollWidth")
            if needed > width:
                raise ValueError(f"{report} is {needed} pixels wide on a screen of {width}")
            save(page, output / f"report_{width}_{ground}.png")


def save(page: "Page", path: Path) -> None:
    """Write a picture of a page, in so few colours that it is small."""
    from PIL import Image

    with Image.open(io.BytesIO(page.screenshot())) as image:
        image.convert("RGB").quantize(NUM_COLOURS).save(path, optimize=True)


def show_flow_run(page: "Page", api: str) -> None:
    """Open the page of the last flow run, and wait until it has drawn the stages."""
    (run, *_) = ask(f"{api}/flow_runs/filter", {"sort": "START_TIME_DESC", "limit": 1})
    page.goto(f"{api.removesuffix('/api')}/runs/flow-run/{run['id']}")
    page.get_by_text(run["name"]).first.wait_for()
    page.locator("canvas").first.wait_for()
    # The graph glides to its place.
    page.wait_for_timeout(4000)


def find_runs(mlflow: str, names: list[str]) -> list[dict[str, Any]]:
    """Return the newest run of each of these names, which are all of one experiment."""
    found = []
    every = ask(f"{mlflow}/api/2.0/mlflow/experiments/search", {"max_results": 100})
    for name in names:
        query = {
            "experiment_ids": [each["experiment_id"] for each in every["experiments"]],
            "filter": f"attributes.run_name = '{name}'",
            "max_results": 1,
        }
        runs = ask(f"{mlflow}/api/2.0/mlflow/runs/search", query).get("runs", [])
        if not runs:
            raise LookupError(f"MLflow at {mlflow} has no run {name}")
        found.append(runs[0]["info"])
    return found


def show_parameters(page: "Page", mlflow: str, runs: list[dict[str, Any]], name: str) -> None:
    """Open MLflow's comparison of runs, with one parameter in the middle of their table."""
    page.goto(f"{mlflow}/#/compare-runs?{_chosen(runs)}")
    parameter = page.get_by_text(name, exact=True).first
    parameter.wait_for()
    _close_assistant(page)
    parameter.evaluate("element => element.scrollIntoView({block: 'center'})")
    page.wait_for_timeout(1000)


def show_runs(page: "Page", address: str, name: str) -> None:
    """Open the page that `make dashboards` prints: runs with their scores and costs."""
    page.goto(address)
    page.get_by_text(name).first.wait_for()
    page.locator(".ag-header-cell").first.wait_for()
    _close_assistant(page)
    page.wait_for_timeout(2000)


def show_charts(page: "Page", address: str, metric: str) -> None:
    """Open the same runs as charts, of which one's title begins with a metric."""
    page.goto(f"{address}&compareRunsMode=CHART")
    page.get_by_text(metric).first.wait_for()
    page.locator(".js-plotly-plot").first.wait_for()
    _close_assistant(page)
    page.wait_for_timeout(3000)


def show_curves(page: "Page", mlflow: str, runs: list[dict[str, Any]], metric: str) -> None:
    """Open MLflow's chart of one metric of several runs."""
    keys = quote(json.dumps([metric]))
    page.goto(
        f"{mlflow}/#/metric?{_chosen(runs)}&metric={quote(json.dumps(metric))}"
        f"&plot_metric_keys={keys}&plot_layout={{}}&x_axis=step&y_axis_scale=linear"
        "&line_smoothness=1&show_point=false&deselected_curves=[]&last_linear_y_axis_range=[]"
    )
    for run in runs:
        page.get_by_text(f"{run['run_name']} ({metric})").first.wait_for()
    _close_assistant(page)
    page.wait_for_timeout(1000)


def _close_assistant(page: "Page") -> None:
    """Close MLflow's assistant, which opens beside the page and asks a model on the network."""
    button = page.get_by_role("button", name="Close")
    if button.count():
        button.first.click()


def _chosen(runs: list[dict[str, Any]]) -> str:
    names = quote(json.dumps([run["run_id"] for run in runs]))
    experiments = quote(json.dumps(sorted({run["experiment_id"] for run in runs})))
    return f"runs={names}&experiments={experiments}&workflowType=machine_learning"


if __name__ == "__main__":
    raise SystemExit(main())
