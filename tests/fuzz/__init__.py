"""Parameters and files as nobody should write them: what stages answer to them.

`make fuzz`, or ``python -m tests.fuzz``: thousands of parameter files against the readers of all
stages, and every damage to every file that a stage reads. A stage may do what it should, or refuse
in one line that names a key or a file; a traceback, or another result with exit status 0, fails.
"""
