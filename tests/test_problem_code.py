"""Which code the results of a kind of problem depend on, by its package and not by its name."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from implicit_models import code_digest, code_imports, outside_code
from implicit_models.code_digest import not_of_problem
from implicit_models.evaluation import evaluation_resume
from implicit_models.evaluation.evaluation_resume import evaluation_identity
from implicit_models.outside_code import outside_digests
from implicit_models.problems.table import KINDS
from stages.training.identity import Identity

OPTIMISATION = SimpleNamespace(model_dump=dict)
LIBRARY = "implicit_models.problems"


def code_of(kind: str) -> dict[str, str]:
    return dict(Identity.of(kind, {"optimisation": OPTIMISATION}, "data", None, 8).code)


def of_problems(code: dict[str, str]) -> set[str]:
    return {path for path in code if path.startswith("problems/") and path.count("/") > 1}


@pytest.mark.parametrize("kind", list(KINDS))
def test_weights_depend_on_their_own_kind_but_not_on_how_it_is_tested_and_told(kind):
    found = of_problems(code_of(kind))
    own = f"problems/{kind}"
    without = tuple(f"{own}/{part}" for part in ("checks.py", "report/", "evaluation/"))
    files = (code_digest.LIBRARY / own).rglob("*.py")
    paths = {file.relative_to(code_digest.LIBRARY).as_posix() for file in files}
    assert found == {path for path in paths if not path.startswith(without)}


def test_a_kind_may_be_called_otherwise_than_its_folder(monkeypatch):
    monkeypatch.setitem(KINDS, "stories", f"{LIBRARY}.catbabi")
    assert code_of("stories") == code_of("catbabi")


def test_folders_that_are_no_kinds_count(monkeypatch, tmp_path):
    """Those that kinds share, and what is around a kind that lies deeper."""
    for file in ("a/parameters.py", "a/report/interface.py", "b/parameters.py", "shared/bits.py"):
        path = tmp_path / LIBRARY.replace(".", "/") / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    monkeypatch.setattr(code_digest, "LIBRARY", tmp_path / "implicit_models")
    own = {"problems/a/checks.py", "problems/a/report"}
    assert {*not_of_problem(f"{LIBRARY}.a")} == {"problems/b"} | own
    deeper = {f"problems/shared/vote/{each}" for each in ("checks.py", "report")}
    assert {*not_of_problem(f"{LIBRARY}.shared.vote")} == {"problems/a", "problems/b"} | deeper


def test_a_package_outside_the_library_counts_with_what_it_imports(monkeypatch):
    monkeypatch.setitem(KINDS, "bits", "tests.problems.parity")
    found = {path for path in code_of("bits") if path.startswith("tests/")}
    parity = "tests/problems/parity"
    assert {f"{parity}/parameters.py", f"{parity}/data/interface.py"} <= found
    assert not {path for path in found if path.startswith((f"{parity}/eval", f"{parity}/report"))}
    assert not of_problems(code_of("bits"))
    tested = {*outside_digests("tests.problems.parity", "evaluation")}
    assert {f"{parity}/evaluation/interface.py", f"{parity}/data/interface.py"} <= tested


def test_an_edit_outside_the_library_is_other_code(monkeypatch, tmp_path):
    package = tmp_path / "own" / "majority"
    (package / "data").mkdir(parents=True)
    (package / "parameters.py").write_text("import own.bits\n")
    (package / "data" / "interface.py").write_text("labels = 2\n")
    (tmp_path / "own" / "bits.py").write_text("ones = 1\n")
    for module in (code_imports, outside_code):
        monkeypatch.setattr(module, "ROOT", tmp_path)

    def digests() -> dict[str, str]:
        code_imports._source_file.cache_clear()
        code_imports._imports.cache_clear()
        return outside_digests("own.majority", "data")

    try:
        before = digests()
        assert "own/bits.py" in before
        (package / "data" / "interface.py").write_text("labels = 3\n")
        changed = {path for path, digest in digests().items() if before[path] != digest}
        assert changed == {"own/majority/data/interface.py"}
    finally:
        code_imports._source_file.cache_clear()
        code_imports._imports.cache_clear()


def test_a_package_outside_the_library_counts_with_what_it_borrows_of_another_kind(monkeypatch):
    needed = [
        "implicit_models/problems/text/data/finding.py",
        "implicit_models/files.py",
        "own/a.py",
    ]
    monkeypatch.setattr(outside_code, "needed_files", lambda modules: needed)
    monkeypatch.setattr(outside_code, "file_digests", lambda root, paths: dict.fromkeys(paths, ""))
    assert [*outside_digests("own.majority", "data")] == [needed[2], needed[0]]


def test_scores_depend_on_the_package_too(monkeypatch):
    monkeypatch.setattr(evaluation_resume, "digest_source", str)
    seen = []
    monkeypatch.setattr(evaluation_resume, "digest", lambda *what: seen.append(what) or "digest")
    for package in (f"{LIBRARY}.text", "tests.problems.parity"):
        evaluation_identity(package, Path("model"))
    text, parity = (of_problems(each[-2]) for each in seen)
    assert "problems/text/evaluation/interface.py" in text and not parity
    assert "tests/problems/parity/evaluation/interface.py" in seen[1][-2]
