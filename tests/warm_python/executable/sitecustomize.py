"""First in a process's PYTHONPATH: what it starts with its own Python has the warm one."""

import os
import sys

sys.executable = os.environ["WARM_PYTHON"]
