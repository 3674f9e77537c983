"""The notebook under any preset; with trained models it runs in tests/test_pipeline.py."""

from pathlib import Path

import nbformat
import pytest
import yaml
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient

from scripts.store_notebook import NOTEBOOK, ROOT, SECONDS, cells_digest
from tests.reporting.synthetic import parameters, write_results
from tests.reporting.synthetic_text import text_parameters

AFRESH = "%reset -f\nimport os\nos.environ['STATE_TRACKING_ROOT'] = {!r}"
NOT_REPRODUCED = "does not exist; "
NO_WORD_PROBLEM = "params.yaml has no word problem; the presets laptop (`make repro`) and quick"
NO_MODEL = "No implicit model of this word problem is here, to look into: dvc repro trains them."


@pytest.fixture(scope="module")
def kernel():
    """A kernel for all presets: most of the time of a new one goes into what it imports."""
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel()
    yield manager
    manager.shutdown_kernel(now=True)


def show(notebook, root: Path, kernel) -> None:
    """Run a notebook as `execute` does, without anything that was defined before."""
    first = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(AFRESH.format(str(root)))])
    for each in (first, notebook):
        resources = {"metadata": {"path": str(ROOT)}}
        client = NotebookClient(each, km=kernel, timeout=SECONDS, resources=resources)
        try:
            client.execute()
        finally:
            client.kc.stop_channels()


def read():
    return nbformat.read(NOTEBOOK, as_version=nbformat.NO_CONVERT)


def outputs_of(notebook) -> list:
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def printed_by(notebook) -> list[str]:
    found = [output["text"] for output in outputs_of(notebook) if output.output_type == "stream"]
    return "".join(found).splitlines()


def num_pictures(notebook) -> int:
    return sum("image/png" in output.get("data", {}) for output in outputs_of(notebook))


def with_first(name: str, content: dict) -> dict:
    """Return parameters with one more word problem before the others, which no entry reads."""
    datasets = {name: {"group": "S3"}} | content.get("datasets", {})
    return {"runs": {}, "baselines": {}} | content | {"datasets": datasets}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize(
    ("content", "has_results", "pictures", "lines"),
    [
        (parameters(), True, 4, [NO_MODEL]),
        (parameters(), False, 0, [NOT_REPRODUCED, NO_MODEL]),
        (text_parameters(), False, 0, [NO_WORD_PROBLEM, NO_MODEL]),
        (with_first("s3", parameters()), True, 4, [NO_MODEL]),
        (with_first("s3", parameters()), False, 0, ["a5: ", NO_MODEL]),
        (with_first("s3", {}), False, 0, ["No entry of params.yaml learns from a", NO_MODEL]),
        ({"datasets": {}}, False, 0, [NO_WORD_PROBLEM, NO_MODEL]),
    ],
    ids=[
        *("results alone", "nothing reproduced", "text", "read by no entry"),
        *("read by no entry, nothing reproduced", "no entry", "nothing"),
    ],
)
def test_it_opens_with_any_preset(tmp_path, kernel, content, has_results, pictures, lines):
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    if has_results:
        write_results(tmp_path)
    notebook = read()
    show(notebook, tmp_path, kernel)
    found = printed_by(notebook)
    assert len(found) == len(lines)
    assert all(line in text for line, text in zip(lines, found, strict=True))
    assert num_pictures(notebook) == pictures
    assert [path.name for path in tmp_path.iterdir() if "mlflow" in path.name] == []


def test_stored_outputs_are_those_of_its_cells():
    notebook = read()
    wanted = "python scripts/store_notebook.py, after the preset quick, stores them"
    assert notebook.metadata.get("stored_for") == cells_digest(notebook), wanted
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1)), wanted
    assert all(cell.outputs for cell in cells), wanted
    assert {output.output_type for output in outputs_of(notebook)} == {
        *("display_data", "execute_result", "stream"),
    }
    assert num_pictures(notebook) == 6
    assert len(printed_by(notebook)) == 2  # what one search took, without a window and with one


def test_it_is_small_and_names_no_machine():
    text = NOTEBOOK.read_text(encoding="utf-8")
    assert len(text) < 400_000
    assert str(Path.home()) not in text and "/tmp/" not in text
    notebook = read()
    assert notebook.metadata.kernelspec.name == "python3"
    for cell in notebook.cells:
        assert "def " not in cell.source and "class " not in cell.source
