"""How PyTorch's threads on a CPU wait for each other."""

import os


def wait_briefly() -> None:
    """Have a thread that waits for another sleep soon, unless the environment says otherwise.

    It has to be asked before torch is first imported, which is when libgomp reads the environment;
    processes that are started afterwards have it, too. Of itself a thread looks 300,000 times
    before it sleeps, after every operation: where other work has the other's core, in vain
    (docs/benchmarks.md, "Beside other work").
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
