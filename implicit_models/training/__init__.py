"""Training: curriculum, objective, optimiser, checkpoints and the loop."""
