"""Downstream tasks: trained models on the benchmarks of lm-eval."""
