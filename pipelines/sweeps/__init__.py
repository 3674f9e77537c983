"""Sweeps: the product of values, each point an experiment of DVC in a clone of its own."""
