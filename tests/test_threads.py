"""What PyTorch's threads are told before they begin."""

import os
import subprocess
import sys

import pytest

OPENMP = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
IN_EFFECT = "GOMP_SPINCOUNT = '"  # in what libgomp says of itself


@pytest.mark.skipif(sys.platform != "linux", reason="PyTorch's wheels have libgomp on Linux alone")
@pytest.mark.parametrize(
    ("module", "given", "found"),
    [
        ("implicit_models", {"GOMP_SPINCOUNT": "77"}, "77"),
        ("implicit_models", {"OMP_WAIT_POLICY": "passive"}, "0"),
        ("implicit_models.problems.word_problem.diagnose", {}, "2000"),
        ("stages.training.train_free", {}, "2000"),
        ("benchmarks.training_step", {}, "2000"),
    ],
)
def test_how_often_a_thread_looks_before_it_sleeps(module: str, given: dict[str, str], found: str):
    environment = {name: value for name, value in os.environ.items() if name not in OPENMP}
    said = subprocess.run(
        [sys.executable, "-c", f"import {module}, torch"],
        env=environment | given | {"OMP_DISPLAY_ENV": "verbose"},
        capture_output=True,
        text=True,
        check=True,
    ).stderr
    assert IN_EFFECT in said, "this PyTorch has another OpenMP than libgomp"
    assert {part.partition("'")[0] for part in said.split(IN_EFFECT)[1:]} == {found}
