"""Benchmarks: `python -m benchmarks.NAME`; never part of the tests."""
