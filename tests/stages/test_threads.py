"""What stages, and the commands that start them, tell PyTorch's threads before these begin."""

import os
import subprocess
import sys

import pytest

import pipelines
import stages

OPENMP = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
IN_EFFECT = "GOMP_SPINCOUNT = '"  # in what libgomp says of itself


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, "1000"),
        ({"GOMP_SPINCOUNT": "77"}, "77"),
        ({"OMP_WAIT_POLICY": "passive"}, "0"),
    ],
    ids=["of_stages", "of_ones_own", "policy_of_ones_own"],
)
@pytest.mark.parametrize("package", [stages.__name__, pipelines.__name__])
def test_how_often_a_thread_looks_before_it_sleeps(package: str, given: dict[str, str], found: str):
    environment = {name: value for name, value in os.environ.items() if name not in OPENMP}
    said = subprocess.run(
        [sys.executable, "-c", f"import {package}, torch"],
        env=environment | given | {"OMP_DISPLAY_ENV": "verbose"},
        capture_output=True,
        text=True,
        check=True,
    ).stderr
    if IN_EFFECT not in said:
        pytest.skip("this PyTorch has another OpenMP than libgomp")
    assert {part.partition("'")[0] for part in said.split(IN_EFFECT)[1:]} == {found}
