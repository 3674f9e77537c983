"""A kind of problem of the tests: the parity of the bits so far."""
