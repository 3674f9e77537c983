"""Evaluation: what a trained model gets right, and what the search for its fixed points costs."""
