"""Stages on other machines: where they go, how data travels, GPUs, work pools, Slurm."""
