"""The fused kernels of a model's forward and backward pass compile for an H100, on any machine.

Triton's interpreter runs what its compiler refuses, and knows nothing of a GPU's memory.
"""

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="Triton is there on Linux only")

SHARED_MEMORY = 227 * 1024  # of a program on an H100
LAUNCHED = {
    *("convolution _convolve", "convolution _differentiate_weights"),
    *("convolution _differentiate_inputs", "norm _norm", "norm _differentiate"),
    *("scan _states_kernel", "scan _outputs_kernel", "scan _head_gradients_kernel"),
    *("scan _map_gradients_kernel", "rotary _rotate", "swiglu _gate", "swiglu _differentiate"),
    *("update _update", "step _step"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "configuration"), [("bfloat16", -1), ("float32", 0)])
def test_all_launches_compile(dtype: str, configuration: int) -> None:
    environment = {name: x for name, x in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.compile_for_h100", dtype, str(configuration)],
        env=environment,
        text=True,
        capture_output=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    launches = [line.rsplit(" ", 1) for line in done.stdout.splitlines()]
    assert {name for name, _ in launches} == LAUNCHED
    assert all(int(shared) <= SHARED_MEMORY for _, shared in launches)
