"""The documentation builds as a site: every page is in it, and names no script elsewhere."""

import ast
import dataclasses
import html
import importlib
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml

import implicit_models
from implicit_models.lazy_names import places_of_names
from scripts.notebook_pages import write_pages
from scripts.store_notebooks import notebooks, read
from tests.repositories import ROOT


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "docs", folder / "docs")
    write_pages(folder / "docs")
    shutil.copy(ROOT / "mkdocs.yml", folder)
    for package in ("implicit_models", "pipelines", "scripts", "stages"):
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


def test_a_worker_from_disk_gets_copies(tmp_path):
    """The search changes the query that it is given, which the page goes on typing into."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("there is no chromium (apt install chromium)")
    shutil.copy(ROOT / "docs/javascripts/iframe-worker.js", tmp_path / "shim.js")
    (tmp_path / "worker.js").write_text(
        "const last = {};"
        "self.onmessage = ({data}) => {"
        "  data.query = null; last.query = 'answered'; postMessage(last); last.query = null; };"
    )
    (tmp_path / "page.html").write_text(
        "<script src='shim.js'></script><p>no answer</p><script>"
        "const asked = {query: 'typed'}, worker = new Worker('worker.js');"
        "worker.onmessage = ({data}) => {"
        "  document.querySelector('p').textContent = `${asked.query}, ${data.query}`; };"
        "worker.postMessage(asked);</script>"
    )
    command = [browser, "--headless", "--no-sandbox", "--virtual-time-budget=5000", "--dump-dom"]
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    done = subprocess.run(
        [*command, profile, (tmp_path / "page.html").as_uri()],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "<p>typed, answered</p>" in done.stdout


def test_every_page_is_built_and_in_the_index_of_the_search(site):
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert pages <= {path.stem for path in site.glob("*.html")}
    index = (site / "search.js").read_text()
    assert "free.center_weight" in index and "even permutations of five things" in index


@pytest.mark.parametrize("name", ["ImplicitMamba2Config", "ImplicitLlamaConfig", "LSTMConfig"])
def test_the_python_api_has_the_defaults_of_configurations(site, name):
    page = (site / "api.html").read_text().partition(f'id="implicit_models.{name}"')[2]
    signature = html.unescape(re.sub("<[^>]+>", "", page.partition("Bases:")[0]))
    shown = " ".join(signature.split())
    configuration = getattr(implicit_models, name)
    own = {field for base in configuration.__mro__ if _is_ours(base) for field in _annotated(base)}
    fields = [field for field in dataclasses.fields(configuration) if field.name in own]
    assert len(fields) > 5
    for field in fields:
        written = re.search(rf"\b{field.name}: [^=]*= ([^\s,]+),? ", shown)
        assert written, field.name
        assert ast.literal_eval(written[1]) == field.default, field.name


def _is_ours(base: type) -> bool:
    return base.__module__.startswith("implicit_models.")


def _annotated(base: type) -> list[str]:
    """Return the fields that a class itself declares; of `family` it says the class's alone."""
    return [name for name in base.__dict__.get("__annotations__", {}) if name != "family"]


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


class Links(HTMLParser):
    """What a page refers to, and what of it can be referred to."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.anchors: set[str] = set()
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        of = dict(attrs)
        self.targets += [of[name] or "" for name in ("href", "src") if name in of]
        self.anchors |= {of[name] or "" for name in ("id", "name") if name in of}


def test_every_link_leads_to_a_file_and_a_place_in_it(site):
    root = site.resolve()
    pages = {path: Links(path) for path in root.rglob("*.html")}
    assert len(pages) > 40
    for page, links in pages.items():
        for target in links.targets:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            path = unquote(parts.path)
            if page.name == "404.html":  # any address has it: its links begin at the server's root
                path = path.replace("/", f"{root}/", 1)
            file = (page.parent / path).resolve() if path else page
            assert file.is_file(), f"{page.name}: {target}"
            if parts.fragment:
                assert unquote(parts.fragment) in pages[file].anchors, f"{page.name}: {target}"


def test_notebooks_are_pages_with_their_pictures_named_by_the_headings_above_them(site):
    alternatives = {}
    for name, path in notebooks().items():
        text = (site / "notebooks" / f"{name}.html").read_text()
        assert "RESULTS_ROOT" in text
        assert "../docs/" not in text
        shown = [each for cell in read(path).cells for each in cell.get("outputs", [])]
        stored = sum("image/png" in each.get("data", {}) for each in shown)
        of = alternatives[name] = re.findall(rf'<img alt="([^"]+)" src="{name}_\d+.png"', text)
        assert len(set(of)) == len(of) == stored, of
    assert alternatives["length"] == ["Accuracy by length", "Position by position", "Training"]
    languages = ["Formal languages, figure 2", "Formal languages, figure 3"]
    assert alternatives["formal_languages"][1:] == languages
