"""The benchmarks' harness: results file, table and exit code."""

import json

import pytest

from benchmarks import harness


def run(value):
    def run(quick):
        rows = [{"name": "loop", "seconds": 0.5}, {"name": "scan", "tokens": 12345}]
        return harness.Report(rows, {"speed": harness.at_least(value, 2.0)})

    return run


@pytest.mark.parametrize(("value", "code"), [(3.0, 0), (1.0, 1)])
def test_a_bar_decides_the_exit_code(tmp_path, capsys, value, code):
    assert harness.main("example", run(value), arguments=[], results=tmp_path) == code
    content = json.loads((tmp_path / "example.json").read_text())
    assert content["bars"] == {"speed": {"value": value, "required": 2.0, "holds": not code}}
    assert content["rows"][1] == {"name": "scan", "tokens": 12345}
    assert content["device"]["cores"] >= 1 and content["device"]["cpu"]
    assert set(content["versions"]) == {"python", "numpy"}
    printed = capsys.readouterr().out
    assert "12,345" in printed and ("DOES NOT HOLD" in printed) == bool(code)


def test_quick_judges_nothing_and_keeps_the_results(tmp_path):
    assert harness.main("example", run(1.0), arguments=["--quick"], results=tmp_path) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["example.quick.json"]


def test_bars_and_timing():
    assert harness.at_most(1.0, 2.0).holds and not harness.at_most(3.0, 2.0).holds
    calls = []
    timing = harness.measure(lambda: calls.append(1), repeats=3, warmup=2)
    assert len(calls) == 5 and 0 <= timing.best <= timing.median
