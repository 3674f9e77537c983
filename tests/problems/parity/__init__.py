"""Strings of bits, and their parity so far: parameters, data, evaluation and report."""
