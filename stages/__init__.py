"""The stages of dvc.yaml, one thin file each: read parameters, call the library, write outputs."""

import os

# libgomp, which PyTorch's threads on a CPU are of, reads it when torch is first imported. A thread
# that waits for another looks 300,000 times before it sleeps, unless told otherwise; where other
# work has the other's core, all of that is in vain, after every operation (docs/benchmarks.md).
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
