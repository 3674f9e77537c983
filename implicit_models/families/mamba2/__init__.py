"""Mamba2, explicit and implicit."""
