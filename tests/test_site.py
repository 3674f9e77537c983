"""The documentation builds as a site: every page is in it, and names no script elsewhere."""

import importlib
import re
import shutil
import subprocess
import sys

import pytest
import yaml

from implicit_models.lazy_names import places_of_names
from scripts.notebook_pages import write_pages
from scripts.store_notebooks import notebooks
from tests.repositories import ROOT


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "docs", folder / "docs")
    write_pages(folder / "docs")
    shutil.copy(ROOT / "mkdocs.yml", folder)
    for package in ("implicit_models", "pipelines", "stages"):
        (folder / package).symlink_to(ROOT / package)
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


def _pages(entry) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    values = entry if isinstance(entry, list) else entry.values()
    return [page for each in values for page in _pages(each)]


def test_every_page_is_in_the_navigation_once():
    pages = _pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    written = [path.name for path in (ROOT / "docs").glob("*.md")]
    assert sorted(pages) == sorted([*written, *(f"notebooks/{name}.md" for name in notebooks())])


def test_every_page_is_built_and_in_the_index_of_the_search(site):
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert pages <= {path.stem for path in site.glob("*.html")}
    index = (site / "search.js").read_text()
    assert "free.center_weight" in index and "even permutations of five things" in index


def test_the_python_api_has_every_public_name_with_its_docstring(site):
    text = (site / "api.html").read_text()
    for package in ("implicit_models", "implicit_models.equilibrium", "pipelines"):
        for name in places_of_names(str(importlib.import_module(package).__file__)):
            assert f'id="{package}.{name}"' in text, name
    assert "Iterate the cell from" in text and "a time step log-uniform in" in text


def test_pages_name_nothing_from_elsewhere_and_begin_with_our_worker(site):
    for page in site.glob("*.html"):
        text = page.read_text()
        loaded = re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="(https?:[^"]+)"', text)
        assert loaded == [], page.name
        scripts = re.findall(r'<script src="([^"]+)"', text)
        worker = [name.endswith("javascripts/iframe-worker.js") for name in scripts]
        assert worker.index(True) < len(worker) - 1 and "bundle" in scripts[-1], scripts
        assert 'class="mermaid"' not in text, page.name  # which would be loaded


def test_notebooks_are_pages_with_their_pictures_and_links(site):
    for name in notebooks():
        text = (site / "notebooks" / f"{name}.html").read_text()
        assert "RESULTS_ROOT" in text
        for link in re.findall(r'<img alt="[^"]*" src="([^"]+)"', text):
            assert (site / "notebooks" / link).is_file(), link
        assert "../docs/" not in text
