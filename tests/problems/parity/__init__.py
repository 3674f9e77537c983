"""The parity of the bits so far: a problem to copy (docs/add_problem.md)."""
