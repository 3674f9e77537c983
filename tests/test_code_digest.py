"""Which edits of a source file are edits of what it computes."""

from pathlib import Path

import pytest

from implicit_models import code_digest
from implicit_models.code_digest import LIBRARY, NOT_COMPUTING, c_tokens, code_digests

PYTHON = '''
"""A module."""

import math


class Scale:
    """A class."""

    factor: float = 2.0
    """What is multiplied with."""

    def of(self, x: float, *, name: str = "x") -> float:
        """Return it."""
        # the whole of it
        return math.sqrt(x) * (self.factor + 1)  # of x


def shown(x: int | None = None) -> str:
    return f"{x!r:>{3}} and 'so on' {Scale().of(1.0) + (0 if x is None else x):.3f}"
'''
C = r"""
/* A file. */
#define TWICE(x) ((x) \
                  + (x))
#if defined(__AVX2__)  // where there is one
static const char *name = "a // b  \" /* c */";
#endif
int f(int a, int b) { return a - -b; }  // done
"""


@pytest.fixture
def digest(tmp_path, monkeypatch):
    """Return the digest of a text, as a file of a language."""
    monkeypatch.setattr(code_digest, "_CACHE", tmp_path / "cache" / "digests.json")

    def digest(text: str, suffix: str = ".py") -> str:
        folder = tmp_path / "code"
        folder.mkdir(exist_ok=True)
        (folder / f"file{suffix}").write_text(text)
        return code_digests(folder)[f"file{suffix}"]

    return digest


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"""A module."""', '"""Another description."""'),
        ('"""A module."""', ""),
        ('    """A class."""\n', ""),
        ('    """What is multiplied with."""\n', ""),
        ('        """Return it."""\n', '        """Return the scaled number, in words."""\n'),
        ("# the whole of it", "# all of it"),
        ("  # of x", ""),
        ('"x"', "'x'"),
        ("import math\n\n", "import math\n"),
        (
            "(self, x: float, *, name: str",
            "(\n        self,\n        x: float,\n        *, name: str",
        ),
        ("math.sqrt(x) * (self.factor + 1)", "(math.sqrt(x)*((self.factor + 1)))"),
    ],
)
def test_comments_docstrings_and_layout_of_python_do_not_count(digest, before, after):
    assert before in PYTHON
    assert digest(PYTHON.replace(before, after)) == digest(PYTHON)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("2.0", "2"),
        ("+ 1)", "+ True)"),
        ("(self.factor + 1)", "self.factor + 1"),
        ('name: str = "x"', "name: str = b'x'"),
        ("name: str", "name: object"),
        ("x: int | None = None", "x: int | None"),
        ("*, name", "name"),
        ("math.sqrt", "math.cbrt"),
        ("and 'so", "and  'so"),
        (":>{3}", ":<{3}"),
        ("!r", "!s"),
    ],
)
def test_every_change_of_what_python_does_counts(digest, before, after):
    assert before in PYTHON
    assert digest(PYTHON.replace(before, after)) != digest(PYTHON)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("/* A file. */", "/* Several\n   lines. */"),
        ("  // where there is one", ""),
        ("  // done", " /* done */"),
        (" \\\n                  + (x)", " + (x)"),
        ("int a, int b", "int a,int  b"),
        ("{ return", "{\n    return"),
        ("#if defined", "#if   defined"),
    ],
)
def test_comments_and_layout_of_c_do_not_count(digest, before, after):
    assert before in C
    assert digest(C.replace(before, after), ".c") == digest(C, ".c")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a - -b", "a--b"),
        ("a // b  ", "a // b "),
        ("/* c */", "/* d */"),
        ("TWICE(x)", "TWICE (x)"),
        ("static const", "staticconst"),
        ("#if defined(__AVX2__)", "#if !defined(__AVX2__)"),
    ],
)
def test_every_change_of_what_c_does_counts(digest, before, after):
    assert before in C
    assert digest(C.replace(before, after), ".c") != digest(C, ".c")


def test_the_tokens_of_c():
    text = '#define F(x) x  /* a\nb */\nx <<= 0x1.8p-3f; /* c */ s = \'a\' + "b\\"";'
    assert c_tokens(text) == [
        "#define F(x) x", "x", "<<=", "0x1.8p-3f", ";", "s", "=", "'a'", "+", '"b\\""', ";",
    ]  # fmt: skip


def test_a_digest_is_the_same_in_all_versions_of_python(digest):
    """These are of Python 3.11, 3.12 and 3.13."""
    assert digest(PYTHON)[:16] == "a0b3554aad324973"


def test_files_are_digested_apart_and_some_are_left_out(tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "left" / "out").mkdir(parents=True)
    for file in ("kept/a.py", "kept/b.py", "left/out/c.py", "d.c", "notes.txt"):
        (tmp_path / file).write_text("x = 1;\n")
    before = code_digests(tmp_path, without=("left", "kept/b.py"))
    assert before.keys() == {"d.c", "kept/a.py"}
    (tmp_path / "kept/b.py").write_text("x = 2\n")
    (tmp_path / "left/out/c.py").write_text("x = 2\n")
    assert code_digests(tmp_path, without=("left", "kept/b.py")) == before
    (tmp_path / "d.c").write_text("x = 2;\n")
    after = code_digests(tmp_path, without=("left", "kept/b.py"))
    assert {name for name in before if before[name] != after[name]} == {"d.c"}


def test_a_file_is_parsed_once(digest, monkeypatch, tmp_path):
    first = digest(PYTHON)
    with monkeypatch.context() as patch:
        patch.setattr(code_digest, "_digest", lambda *_: pytest.fail("parsed again"))
        assert digest(PYTHON) == first
    (tmp_path / "cache" / "digests.json").write_text("{")  # of a full disk
    assert digest(PYTHON) == first
    monkeypatch.setattr(code_digest, "_CACHE", Path("/proc/nothing/digests.json"))
    assert digest(PYTHON.replace("2.0", "3.0")) != first


def test_what_computes_is_all_of_the_library_but_what_is_named():
    assert all((LIBRARY / name).exists() for name in NOT_COMPUTING)
    packages = {name.split("/")[0] for name in code_digests(without=NOT_COMPUTING)}
    assert {"backbones", "equilibrium", "kernels", "language_models", "training"} <= packages
    assert not packages & {"tracking", "reporting", "planning"}
    found = code_digests(without=NOT_COMPUTING)
    assert "cost/devices.py" not in found and "kernels/native/attention.c" in found


def test_what_is_half_written_counts_as_it_is_and_an_editors_lock_does_not(digest, tmp_path):
    assert digest("def f(:") != digest("def f(: ")
    (tmp_path / "code" / "file.py").write_bytes(b"# caf\xe9")  # not UTF-8
    (tmp_path / "code" / ".#file.py").symlink_to("me@here.1234:5678")  # as Emacs has it
    assert list(code_digests(tmp_path / "code")) == ["file.py"]
