"""Implicit models made of explicit checkpoints."""
