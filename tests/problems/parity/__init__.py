"""The parity of the bits so far: a problem to copy (docs/architecture.md)."""
