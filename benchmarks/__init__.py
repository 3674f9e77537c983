"""Benchmarks: `python -m benchmarks.NAME`; never part of the tests."""

# Before torch, so that its threads wait for each other as those of stages and commands do.
import implicit_models  # noqa: F401
