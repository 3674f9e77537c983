"""Experiment tracking that can neither stop nor slow a training run."""
