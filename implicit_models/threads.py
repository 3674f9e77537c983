"""How PyTorch's threads on a CPU wait for each other."""

import os


def wait_briefly() -> None:
    """Make a thread that waits for another sleep soon, unless the environment says otherwise.

    libgomp reads its environment when torch is first imported: call this before. Unless told
    otherwise a waiting thread looks 300,000 times before it sleeps, after every operation; where
    other work has the core of the thread that is waited for, this keeps both from their work
    (docs/benchmarks.md, "Beside other work").
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "2000")
